// SPDX-License-Identifier: Apache-2.0

#include "engine/ops/packed_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/crc/crc32c.h"
#include "absl/strings/str_cat.h"
#include "engine/base/partial_file.h"
#include "engine/base/status_macros.h"

namespace deltaedge {

namespace {

constexpr char kMagic[] = "DELTAPAK";
constexpr uint32_t kVersion = 1;
constexpr uint64_t kHeaderBytes = 64;
constexpr uint64_t kEntryBytes = 24;
constexpr uint64_t kAlignment = 64;
constexpr uint64_t kMaxKeyBytes = 4096;
constexpr uint64_t kMaxPieces = uint64_t{1} << 20;

void Put32(uint32_t value, char* to) {
  for (int i = 0; i < 4; ++i) to[i] = static_cast<char>(value >> (8 * i));
}
void Put64(uint64_t value, char* to) {
  for (int i = 0; i < 8; ++i) to[i] = static_cast<char>(value >> (8 * i));
}
uint64_t Get(const char* from, int bytes) {
  uint64_t value = 0;
  for (int i = bytes - 1; i >= 0; --i) {
    value = value << 8 | static_cast<unsigned char>(from[i]);
  }
  return value;
}

absl::Status SystemError(absl::string_view what, const std::string& path) {
  const int error = errno;
  return absl::ErrnoToStatus(error,
                             absl::StrCat("cannot ", what, " '", path, "'"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PackedCache>> PackedCache::Open(
    const std::string& path, absl::string_view key, Verify verify, Use use) {
  std::unique_ptr<PackedCache> cache(new PackedCache());
  DELTAEDGE_ASSIGN_OR_RETURN(cache->file_, MmapFile::Open(path));
  if (use == Use::kAll) cache->file_.UseHugePages();
  const absl::string_view file(
      reinterpret_cast<const char*>(cache->file_.data()),
      static_cast<size_t>(cache->file_.size()));
  const auto damaged = [&path](absl::string_view what) {
    return absl::DataLossError(absl::StrCat("'", path, "': ", what));
  };
  if (file.size() < kHeaderBytes || file.substr(0, 8) != kMagic) {
    return damaged("no file of packed weights");
  }
  if (Get(file.data() + 8, 4) != kVersion) {
    return absl::NotFoundError(
        absl::StrCat("'", path, "': packed weights of another layout"));
  }
  const uint32_t checksum = static_cast<uint32_t>(Get(file.data() + 12, 4));
  const uint64_t table = Get(file.data() + 16, 8);
  const uint64_t pieces = Get(file.data() + 24, 8);
  const uint64_t key_bytes = Get(file.data() + 32, 8);
  if (pieces > kMaxPieces || key_bytes > kMaxKeyBytes || table < kHeaderBytes ||
      table > file.size() ||
      file.size() - table != pieces * kEntryBytes + key_bytes) {
    return damaged("cut short, or its header is damaged");
  }
  if (static_cast<uint32_t>(absl::ComputeCrc32c(file.substr(table))) !=
      checksum) {
    return damaged("its table is damaged");
  }
  if (file.substr(table + pieces * kEntryBytes) != key) {
    return absl::NotFoundError(absl::StrCat(
        "'", path, "': packed weights of another model, processor or build"));
  }
  for (uint64_t i = 0; i < pieces; ++i) {
    const char* entry = file.data() + table + i * kEntryBytes;
    const Piece piece = {Get(entry, 8), Get(entry + 8, 8)};
    if (piece.offset % kAlignment != 0 || piece.offset < kHeaderBytes ||
        piece.offset > table || piece.size > table - piece.offset) {
      return damaged("a piece lies outside");
    }
    if (verify == Verify::kChecksums &&
        static_cast<uint32_t>(absl::ComputeCrc32c(
            file.substr(piece.offset, piece.size))) != Get(entry + 16, 4)) {
      return damaged("a piece is damaged");
    }
    cache->pieces_.push_back(piece);
  }
  return cache;
}

absl::Span<const std::byte> PackedCache::piece(int64_t i) const {
  if (i < 0 || i >= size()) return {};
  return file_.bytes().subspan(pieces_[i].offset, pieces_[i].size);
}

absl::StatusOr<std::unique_ptr<PackedCacheWriter>> PackedCacheWriter::Create(
    const std::string& path, absl::string_view key) {
  std::unique_ptr<PackedCacheWriter> writer(new PackedCacheWriter());
  writer->path_ = path;
  writer->key_ = std::string(key);
  std::string temporary;
  DELTAEDGE_ASSIGN_OR_RETURN(const int fd, CreatePartialFile(path, &temporary));
  writer->temporary_ = std::move(temporary);
  writer->file_ = fdopen(fd, "wb");
  if (writer->file_ == nullptr) {
    close(fd);
    return SystemError("write", writer->temporary_);
  }
  const char header[kHeaderBytes] = {};
  DELTAEDGE_RETURN_IF_ERROR(writer->Write(header, sizeof(header)));
  return writer;
}

PackedCacheWriter::~PackedCacheWriter() {
  for (const Mapping& mapping : mappings_) munmap(mapping.begin, mapping.size);
  if (file_ != nullptr) fclose(file_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

absl::Status PackedCacheWriter::Write(const void* data, size_t size) {
  if (fwrite(data, 1, size, file_) != size) {
    return SystemError("write", temporary_);
  }
  offset_ += size;
  return absl::OkStatus();
}

absl::Status PackedCacheWriter::Pad() {
  const char zeros[kAlignment] = {};
  return Write(zeros, (kAlignment - offset_ % kAlignment) % kAlignment);
}

absl::Status PackedCacheWriter::Add(absl::Span<const std::byte> piece) {
  const absl::string_view bytes(reinterpret_cast<const char*>(piece.data()),
                                piece.size());
  const auto checksum = static_cast<uint32_t>(absl::ComputeCrc32c(bytes));
  const std::byte* const reserved = std::exchange(reserved_, nullptr);
  if (reserved != nullptr && piece.data() == reserved) {
    pieces_.push_back({offset_ - bytes.size(), bytes.size(), checksum});
    return absl::OkStatus();
  }
  DELTAEDGE_RETURN_IF_ERROR(Pad());
  pieces_.push_back({offset_, bytes.size(), checksum});
  return Write(bytes.data(), bytes.size());
}

absl::StatusOr<absl::Span<std::byte>> PackedCacheWriter::Reserve(size_t size) {
  DELTAEDGE_RETURN_IF_ERROR(Pad());
  if (fflush(file_) != 0) return SystemError("write", temporary_);
  const size_t room = std::max<size_t>(size, 1);
  // A page without a place on the disk would end the process when written to.
  const int error = posix_fallocate(fileno(file_), static_cast<off_t>(offset_),
                                    static_cast<off_t>(room));
  if (error != 0) {
    errno = error;
    return SystemError("make room in", temporary_);
  }
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t begin = offset_ / page * page;
  const size_t before = offset_ - begin;
  void* const mapped =
      mmap(nullptr, before + room, PROT_READ | PROT_WRITE, MAP_SHARED,
           fileno(file_), static_cast<off_t>(begin));
  if (mapped == MAP_FAILED) return SystemError("map", temporary_);
  mappings_.push_back({mapped, before + room});
  offset_ += size;
  if (fseek(file_, static_cast<long>(offset_), SEEK_SET) != 0) {
    return SystemError("write", temporary_);
  }
  reserved_ = static_cast<std::byte*>(mapped) + before;
  return absl::MakeSpan(reserved_, size);
}

absl::Status PackedCacheWriter::Commit() {
  std::string end;
  for (const Piece& piece : pieces_) {
    char entry[kEntryBytes] = {};
    Put64(piece.offset, entry);
    Put64(piece.size, entry + 8);
    Put32(piece.checksum, entry + 16);
    end.append(entry, sizeof(entry));
  }
  end += key_;
  char header[kHeaderBytes] = {};
  std::memcpy(header, kMagic, 8);
  Put32(kVersion, header + 8);
  Put32(static_cast<uint32_t>(absl::ComputeCrc32c(end)), header + 12);
  Put64(offset_, header + 16);
  Put64(pieces_.size(), header + 24);
  Put64(key_.size(), header + 32);
  DELTAEDGE_RETURN_IF_ERROR(Write(end.data(), end.size()));
  if (fseek(file_, 0, SEEK_SET) != 0) return SystemError("write", temporary_);
  DELTAEDGE_RETURN_IF_ERROR(Write(header, sizeof(header)));
  if (fflush(file_) != 0 || fsync(fileno(file_)) != 0) {
    return SystemError("write", temporary_);
  }
  std::FILE* const file = std::exchange(file_, nullptr);
  if (fclose(file) != 0) return SystemError("write", temporary_);
  if (rename(temporary_.c_str(), path_.c_str()) != 0) {
    return SystemError("replace", path_);
  }
  temporary_.clear();
  return absl::OkStatus();
}

}  // namespace deltaedge
