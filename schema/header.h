// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_SCHEMA_HEADER_H_
#define DELTAEDGE_SCHEMA_HEADER_H_

#include <cstdint>
#include <cstring>

namespace deltaedge {
namespace schema {

// The fixed bytes at the start of a model file. FORMAT.md shows them in a
// table; the constants below are the only place in code that knows them.
//
// To extend the header: take bytes from the zeros at kReservedOffset. If an old
// reader may ignore the new field, let zero mean "absent" and drop its bytes
// from the check for zeros; if not, raise kHeaderVersion. Nothing that is there
// moves.

// Bytes 0 .. 7. Text on purpose: the file's name for `file` and for people.
inline constexpr char kMagic[8] = {'D', 'E', 'L', 'T', 'A', 'E', 'D', 'G'};

inline constexpr uint32_t kHeaderVersion = 1;

// Size of the header; the index follows it directly.
inline constexpr uint32_t kHeaderBytes = 64;

// Where each field starts. Numbers are little-endian whatever the machine.
inline constexpr uint32_t kMagicOffset = 0;          // 8 bytes
inline constexpr uint32_t kIndexBytesOffset = 8;     // 64 bits
inline constexpr uint32_t kFirstSegmentOffset = 16;  // 64 bits
inline constexpr uint32_t kSegmentBytesOffset = 24;  // 64 bits
inline constexpr uint32_t kVersionOffset = 32;       // 32 bits
inline constexpr uint32_t kReservedOffset = 36;      // 24 bytes of zero
inline constexpr uint32_t kReservedBytes = 24;
inline constexpr uint32_t kIndexChecksumOffset = 60;  // 32 bits

// The first segment starts at a multiple of this, so that it can be mapped on
// its own on machines with pages of up to 64 KiB.
inline constexpr uint64_t kFirstSegmentAlignment = 64 * 1024;

// Every segment starts at a multiple of this: a cache line, and the widest
// vector.
inline constexpr uint64_t kSegmentAlignment = 64;

// Most bytes of an index. A vocabulary of 250,000 tokens takes about 6 MiB.
inline constexpr uint64_t kMaxIndexBytes = 64 * 1024 * 1024;

struct FileHeader {
  uint32_t version = kHeaderVersion;
  // Of the index, without the padding behind it.
  uint64_t index_bytes = 0;
  // Where the first segment starts, from the beginning of the file.
  uint64_t first_segment = 0;
  // From there to the end of the file.
  uint64_t segment_bytes = 0;
  // CRC-32C of bytes 0 .. kIndexChecksumOffset-1 of the file, then the index.
  uint32_t index_checksum = 0;
};

// What ParseHeader() saw.
enum class HeaderResult {
  kOk,
  kNotOurs,       // Other magic.
  kNewerVersion,  // Our magic, a layout that this code does not know.
  kDamaged,       // Version 0, or something where zeros belong.
};

namespace internal {

inline void PutLittleEndian(uint64_t value, int bytes, uint8_t* out) {
  for (int i = 0; i < bytes; ++i) {
    out[i] = static_cast<uint8_t>(value >> (8 * i));
  }
}

inline uint64_t GetLittleEndian(const uint8_t* in, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) {
    value |= static_cast<uint64_t>(in[i]) << (8 * i);
  }
  return value;
}

}  // namespace internal

// Writes all kHeaderBytes of `out`.
inline void SerializeHeader(const FileHeader& header, uint8_t* out) {
  std::memset(out, 0, kHeaderBytes);
  std::memcpy(out + kMagicOffset, kMagic, sizeof(kMagic));
  internal::PutLittleEndian(header.index_bytes, 8, out + kIndexBytesOffset);
  internal::PutLittleEndian(header.first_segment, 8, out + kFirstSegmentOffset);
  internal::PutLittleEndian(header.segment_bytes, 8, out + kSegmentBytesOffset);
  internal::PutLittleEndian(header.version, 4, out + kVersionOffset);
  internal::PutLittleEndian(header.index_checksum, 4,
                            out + kIndexChecksumOffset);
}

// Reads kHeaderBytes of `in`. Fills `header` only if the result is kOk, and
// says nothing about whether sizes and checksum are true.
inline HeaderResult ParseHeader(const uint8_t* in, FileHeader* header) {
  if (std::memcmp(in + kMagicOffset, kMagic, sizeof(kMagic)) != 0) {
    return HeaderResult::kNotOurs;
  }
  const auto version =
      static_cast<uint32_t>(internal::GetLittleEndian(in + kVersionOffset, 4));
  if (version > kHeaderVersion) return HeaderResult::kNewerVersion;
  if (version == 0) return HeaderResult::kDamaged;
  for (uint32_t i = 0; i < kReservedBytes; ++i) {
    if (in[kReservedOffset + i] != 0) return HeaderResult::kDamaged;
  }
  header->version = version;
  header->index_bytes = internal::GetLittleEndian(in + kIndexBytesOffset, 8);
  header->first_segment =
      internal::GetLittleEndian(in + kFirstSegmentOffset, 8);
  header->segment_bytes =
      internal::GetLittleEndian(in + kSegmentBytesOffset, 8);
  header->index_checksum = static_cast<uint32_t>(
      internal::GetLittleEndian(in + kIndexChecksumOffset, 4));
  return HeaderResult::kOk;
}

}  // namespace schema
}  // namespace deltaedge

#endif  // DELTAEDGE_SCHEMA_HEADER_H_
