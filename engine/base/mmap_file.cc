// SPDX-License-Identifier: Apache-2.0

#include "engine/base/mmap_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace deltaedge {
namespace {

absl::Status SystemError(int error, absl::string_view action,
                         const std::string& path) {
  // Ends in ": " and the error's own text.
  const std::string message(
      absl::ErrnoToStatus(error,
                          absl::StrCat("cannot ", action, " file '", path, "'"))
          .message());
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    case ENAMETOOLONG:
    case ELOOP:
    case ENXIO:
    case ENODEV:
      return absl::InvalidArgumentError(message);
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case EOVERFLOW:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::InternalError(message);
  }
}

}  // namespace

absl::StatusOr<MmapFile> MmapFile::Open(const std::string& path) {
  if (path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the path of a file must not hold a zero byte: '", path.c_str(), "'"));
  }
  // Without O_NONBLOCK, opening a pipe waits for somebody to write to it.
  int file;
  do {
    file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  } while (file < 0 && errno == EINTR);
  if (file < 0) return SystemError(errno, "open", path);
  // Where the application has closed its standard input, that number is free
  // and the file stays open: who then reads from it must not get weights.
  if (file <= STDERR_FILENO) {
    const int low = file;
    file = fcntl(low, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    const int error = errno;
    close(low);
    if (file < 0) return SystemError(error, "open", path);
  }
  absl::Cleanup close_file = [file] { close(file); };

  struct stat info;
  if (fstat(file, &info) != 0) return SystemError(errno, "examine", path);
  if (S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", path, "' is a folder, not a file"));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", path, "' is not a regular file"));
  }
  const int64_t size = info.st_size;
  if (size == 0) {
    return absl::DataLossError(absl::StrCat("file '", path, "' is empty"));
  }
  if (static_cast<uint64_t>(size) > std::numeric_limits<size_t>::max()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("file '", path, "' of ", size,
                     " bytes does not fit this process's address space"));
  }
  void* const data =
      mmap(nullptr, static_cast<size_t>(size), PROT_READ, MAP_PRIVATE, file, 0);
  if (data == MAP_FAILED) return SystemError(errno, "map", path);
  MmapFile mapped;
  mapped.data_ = static_cast<std::byte*>(data);
  mapped.size_ = size;
  mapped.file_ = file;
  std::move(close_file).Cancel();

  if (fstat(file, &info) != 0) return SystemError(errno, "examine", path);
  if (info.st_size < size) {
    return absl::DataLossError(absl::StrCat("file '", path, "' shrank from ",
                                            size, " to ", info.st_size,
                                            " bytes while it was opened"));
  }
  return mapped;
}

void MmapFile::Copy(const void* from, size_t size, void* to) const {
  const auto* begin = static_cast<const std::byte*>(from);
  auto* end = static_cast<std::byte*>(to);
  while (size > 0) {
    const ssize_t got =
        pread(file_, end, size, static_cast<off_t>(begin - data_));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    begin += got;
    end += got;
    size -= static_cast<size_t>(got);
  }
  std::memcpy(end, begin, size);
}

void MmapFile::UseHugePages() const {
  if (data_ != nullptr) {
    madvise(data_, static_cast<size_t>(size_), MADV_HUGEPAGE);
  }
}

void MmapFile::Evict() const {
  if (data_ != nullptr) {
    madvise(data_, static_cast<size_t>(size_), MADV_DONTNEED);
  }
}

void MmapFile::Close() {
  if (data_ == nullptr) return;
  munmap(data_, static_cast<size_t>(size_));
  close(file_);
  data_ = nullptr;
  size_ = 0;
  file_ = -1;
}

}  // namespace deltaedge
