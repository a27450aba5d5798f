// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_MAKE_RANDOM_SAFETENSORS_WRITER_H_
#define DELTAEDGE_TOOLS_MAKE_RANDOM_SAFETENSORS_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace deltaedge {

struct SafetensorsSpec {
  std::string name;
  std::vector<int64_t> shape;
  bool bf16 = false;  // Else F32.
};

// Writes the tensors of a checkpoint into a folder, one after the other and in
// pieces: `model.safetensors`, or shards with their index, none of which has
// more than `max_shard_bytes` of tensors unless it is one tensor. Thread-
// compatible. After an error it is of no more use.
class SafetensorsWriter {
 public:
  // Tensors of floats should come before those of bfloat16, so that each lies
  // at a multiple of its numbers' size.
  SafetensorsWriter(std::string folder, std::vector<SafetensorsSpec> tensors,
                    int64_t max_shard_bytes);

  // The next numbers of the tensors, in their order and row-major, at most up
  // to the end of one tensor. Values of one of bfloat16 are such numbers.
  // Errors are the system's, with the file's name.
  absl::Status Append(absl::Span<const float> values);

  // After the last number.
  absl::Status Finish();

 private:
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  std::string ShardName(size_t shard) const;
  // Opens the file of `shard` and writes its header.
  absl::Status Begin(size_t shard);
  absl::Status Write(absl::Span<const char> bytes);
  absl::Status Close();

  const std::string folder_;
  const std::vector<SafetensorsSpec> tensors_;
  // Of each shard, the first of its tensors; and behind it their number.
  std::vector<size_t> shards_;
  std::unique_ptr<std::FILE, Closer> file_;
  std::string path_;     // Of file_.
  size_t shard_ = 0;     // The next to begin.
  size_t tensor_ = 0;    // The one whose numbers come next.
  int64_t written_ = 0;  // Of its numbers.
  std::vector<char> bytes_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_MAKE_RANDOM_SAFETENSORS_WRITER_H_
