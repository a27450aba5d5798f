// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/random_access_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace deltaedge {

RandomAccessFile::RandomAccessFile(std::string path, int descriptor,
                                   int64_t size_bytes)
    : path_(std::move(path)),
      descriptor_(descriptor),
      size_bytes_(size_bytes) {}

RandomAccessFile::RandomAccessFile(RandomAccessFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

RandomAccessFile& RandomAccessFile::operator=(
    RandomAccessFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

RandomAccessFile::~RandomAccessFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::StatusOr<RandomAccessFile> RandomAccessFile::Open(
    const std::string& path) {
  // Without O_NONBLOCK, opening a pipe waits for its writer.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot be opened"));
  }
  RandomAccessFile file(path, descriptor, 0);
  struct stat info;
  if (fstat(descriptor, &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path, ": has no size"));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is not a regular file"));
  }
  file.size_bytes_ = info.st_size;
  return file;
}

absl::Status RandomAccessFile::Read(int64_t offset, int64_t bytes,
                                    void* out) const {
  // Some systems refuse a single read beyond 2 GiB.
  constexpr int64_t kMaxRead = int64_t{1} << 30;
  char* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t got =
        pread(descriptor_, to, std::min(bytes, kMaxRead), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return absl::ErrnoToStatus(
          errno, absl::StrCat(path_, ": cannot be read at byte ", offset));
    }
    if (got == 0) {
      return absl::DataLossError(absl::StrCat(path_, ": ends at byte ", offset,
                                              ", ", bytes,
                                              " bytes before it should"));
    }
    to += got;
    offset += got;
    bytes -= got;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path,
                                          int64_t max_bytes) {
  DELTAEDGE_ASSIGN_OR_RETURN(const RandomAccessFile file,
                             RandomAccessFile::Open(path));
  if (file.size_bytes() > max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, ": has ", file.size_bytes(), " bytes; at most ",
                     max_bytes, " are read"));
  }
  std::string text(file.size_bytes(), '\0');
  DELTAEDGE_RETURN_IF_ERROR(file.Read(0, file.size_bytes(), &text[0]));
  return text;
}

}  // namespace deltaedge
