// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_BASE_MMAP_FILE_H_
#define DELTAEDGE_ENGINE_BASE_MMAP_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/base/attributes.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace deltaedge {

// A whole file, mapped read-only. Pages are read when they are first touched
// and belong to the system's page cache, so mapping a large file is instant.
//
// The file must not be changed while it is mapped. That it did not shrink while
// it was opened is checked; if it shrinks later, touching a page behind its new
// end raises SIGBUS, which a library cannot turn into an error without taking
// the process's signal handlers over. Replace files by renaming a new one over
// them, which leaves the mapped one alone. Reading every byte once right after
// opening, as a checksum does, narrows the window but does not close it.
//
// Movable, not copyable; a moved-from file is empty with null data. Const
// methods may be called from any thread.
class MmapFile {
 public:
  // Maps the file at `path`; symbolic links are followed. Errors name the path:
  // NotFound, PermissionDenied, InvalidArgument (a folder, a device, a pipe),
  // DataLoss (empty, or it shrank meanwhile), ResourceExhausted (too many open
  // files, no room in the address space), Internal for what else the system
  // said.
  static absl::StatusOr<MmapFile> Open(const std::string& path);

  MmapFile() = default;
  MmapFile(MmapFile&& other) noexcept { *this = std::move(other); }
  MmapFile& operator=(MmapFile&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(file_, other.file_);
    other.Close();
    return *this;
  }
  ~MmapFile() { Close(); }

  // Aligned to the system's page size.
  const std::byte* data() const ABSL_ATTRIBUTE_LIFETIME_BOUND { return data_; }
  int64_t size() const { return size_; }
  absl::Span<const std::byte> bytes() const ABSL_ATTRIBUTE_LIFETIME_BOUND {
    return absl::Span<const std::byte>(data_, static_cast<size_t>(size_));
  }

  // Copies the `size` bytes at `from`, which are of this file. They do not
  // become resident, where touching a few bytes maps all that the system's
  // cache holds of their neighbourhood in one piece, often 2 MiB. Allocates
  // nothing; cannot fail: what cannot be read is touched.
  void Copy(const void* from, size_t size, void* to) const;

  // For a file that is read from end to end again and again: asks the system to
  // read and map it in huge pages (AlignedBuffer::AllocateHugePages tells why),
  // as far as it is not in its cache in smaller ones. A hint; cannot fail.
  void UseHugePages() const;

  // Takes the file's pages out of this process's resident memory, for after its
  // contents were copied elsewhere. They stay valid: a later touch reads them
  // again. A hint; cannot fail.
  void Evict() const;

 private:
  void Close();

  std::byte* data_ = nullptr;
  int64_t size_ = 0;
  int file_ = -1;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_BASE_MMAP_FILE_H_
