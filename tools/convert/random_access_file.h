// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_CONVERT_RANDOM_ACCESS_FILE_H_
#define DELTAEDGE_TOOLS_CONVERT_RANDOM_ACCESS_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace deltaedge {

// A regular file, open for reading at any offset. Reads instead of mapping: a
// file that shrinks or fails under a reader is then an error and not a signal,
// and a checkpoint read once leaves no pages behind in this process.
//
// Movable. Const methods may be called from any thread.
class RandomAccessFile {
 public:
  // NotFound, PermissionDenied and the like: what the system said.
  // InvalidArgument: not a regular file.
  static absl::StatusOr<RandomAccessFile> Open(const std::string& path);

  RandomAccessFile(RandomAccessFile&& other) noexcept;
  RandomAccessFile& operator=(RandomAccessFile&& other) noexcept;
  ~RandomAccessFile();

  const std::string& path() const { return path_; }
  int64_t size_bytes() const { return size_bytes_; }  // When it was opened.

  // Reads exactly `bytes` at `offset` into `out`. DataLoss: the file ends
  // before that; `out` then holds anything.
  absl::Status Read(int64_t offset, int64_t bytes, void* out) const;

 private:
  RandomAccessFile(std::string path, int descriptor, int64_t size_bytes);

  std::string path_;
  int descriptor_ = -1;
  int64_t size_bytes_ = 0;
};

// The whole of a small file. ResourceExhausted: larger than `max_bytes`.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path,
                                          int64_t max_bytes);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_CONVERT_RANDOM_ACCESS_FILE_H_
