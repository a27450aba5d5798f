// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_OPS_PACKED_CACHE_H_
#define DELTAEDGE_ENGINE_OPS_PACKED_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/mmap_file.h"
#include "engine/base/status_macros.h"

namespace deltaedge {

// The packed weights of a model's products in a file, so that the second start
// maps them instead of making them: nothing is read but what is used, and
// several processes share the pages.
//
// A file is good for one model, one kind of processor and one way of packing:
// `key` says which, in words, and a file with another key is none. It is
// written beside its place and renamed when whole, so that others who start at
// the same time find all of it or nothing, and each other's work at most
// replaced by the same.
//
//   0    8  magic "DELTAPAK"
//   8    4  version of this layout
//   12   4  CRC-32C of the table and the key
//   16   8  offset of the table, behind all pieces
//   24   8  pieces
//   32   8  bytes of the key, which follows the table
//   40  24  zero
//   64      pieces, each at a multiple of 64 bytes
//   table   per piece: 8 bytes offset, 8 bytes size, 4 bytes CRC-32C, 4 zero
//
// Numbers are little-endian. Thread-compatible.
class PackedCache {
 public:
  // Whether contents are read and compared with their checksums.
  enum class Verify { kStructure, kChecksums };

  // How much of it a step reads: all, for which huge pages serve, or here and
  // there some, for which they would read too much.
  enum class Use { kAll, kSome };

  // Maps `path`. NotFound: there is none, or it has another key (stale).
  // DataLoss: it is damaged. Else as MmapFile::Open().
  static absl::StatusOr<std::unique_ptr<PackedCache>> Open(
      const std::string& path, absl::string_view key, Verify verify,
      Use use = Use::kAll);

  // Pieces in the order in which they were added.
  int64_t size() const { return static_cast<int64_t>(pieces_.size()); }
  // Lives as long as the cache; 64-byte aligned. Empty: there is no such piece.
  absl::Span<const std::byte> piece(int64_t i) const;

 private:
  PackedCache() = default;

  struct Piece {
    uint64_t offset = 0, size = 0;
  };

  MmapFile file_;
  std::vector<Piece> pieces_;
};

// Makes such a file.
class PackedCacheWriter {
 public:
  // Starts a file beside `path` (partial_file.h). PermissionDenied, NotFound
  // (no such folder), ResourceExhausted, Internal: as the system says.
  static absl::StatusOr<std::unique_ptr<PackedCacheWriter>> Create(
      const std::string& path, absl::string_view key);
  // Without Commit(), removes what was written.
  ~PackedCacheWriter();
  PackedCacheWriter(const PackedCacheWriter&) = delete;
  PackedCacheWriter& operator=(const PackedCacheWriter&) = delete;

  // Adds a piece. Errors as the system says; the writer is then of no use.
  absl::Status Add(absl::Span<const std::byte> piece);
  // Memory of the file itself for a piece of `size` bytes, 64-byte aligned, to
  // be filled and then added: pages that are not in use go to the disk and not
  // to the process's account. Lives as long as the writer. Errors as for Add.
  absl::StatusOr<absl::Span<std::byte>> Reserve(size_t size);
  // Puts the file into its place.
  absl::Status Commit();

 private:
  struct Piece {
    uint64_t offset, size;
    uint32_t checksum;
  };

  struct Mapping {
    void* begin;
    size_t size;
  };

  PackedCacheWriter() = default;
  absl::Status Write(const void* data, size_t size);
  absl::Status Pad();

  std::string path_, temporary_, key_;
  std::FILE* file_ = nullptr;
  uint64_t offset_ = 0;
  std::vector<Piece> pieces_;
  std::vector<Mapping> mappings_;
  std::byte* reserved_ = nullptr;  // The piece that Add waits for.
};

// Where the products of a model that is being opened find their packed weights,
// or leave them: one for one model, as they are made in the same order each
// time. Borrows the file. Thread-compatible.
class PackedPieces {
 public:
  explicit PackedPieces(const PackedCache* cache) : cache_(cache) {}
  // `in_file`: products keep their weights in the file's memory or are not
  // made, and the writer must outlive them.
  PackedPieces(PackedCacheWriter* writer, bool in_file)
      : writer_(writer), in_file_(in_file) {}

  // The next product's; empty: it has to be packed.
  absl::Span<const std::byte> Take() {
    return cache_ == nullptr ? absl::Span<const std::byte>()
                             : cache_->piece(next_++);
  }
  // Whether Take() has one.
  bool HasNext() const {
    return cache_ != nullptr && !cache_->piece(next_).empty();
  }
  // Whether it shall be packed where Reserve() says.
  bool in_file() const { return in_file_; }
  // Errors are those of status().
  absl::StatusOr<std::byte*> Reserve(size_t size) {
    DELTAEDGE_RETURN_IF_ERROR(status_);
    const absl::StatusOr<absl::Span<std::byte>> place = writer_->Reserve(size);
    status_ = place.status();
    DELTAEDGE_RETURN_IF_ERROR(status_);
    return place->data();
  }
  // It was packed.
  void Give(absl::Span<const std::byte> piece) {
    if (writer_ != nullptr && status_.ok()) status_ = writer_->Add(piece);
  }
  // Whether all that was given was written.
  const absl::Status& status() const { return status_; }

 private:
  const PackedCache* cache_ = nullptr;
  PackedCacheWriter* writer_ = nullptr;
  bool in_file_ = false;
  int64_t next_ = 0;
  absl::Status status_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_OPS_PACKED_CACHE_H_
