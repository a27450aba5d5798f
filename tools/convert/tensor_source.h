// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_CONVERT_TENSOR_SOURCE_H_
#define DELTAEDGE_TOOLS_CONVERT_TENSOR_SOURCE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tools/convert/random_access_file.h"

namespace deltaedge {

// One tensor of a checkpoint: where it is, not what it holds. Row-major.
struct SourceTensor {
  std::string dtype;           // As the format calls it: "BF16", "Q8_0", ...
  std::vector<int64_t> shape;  // Outermost first; empty: a scalar.
  int64_t elements = 0;        // The product of `shape`.
  int64_t bytes = 0;           // Of all elements.
  int32_t file = 0;            // Index into files().
  int64_t offset = 0;          // Of the first byte, from the file's start.
  bool is_float = false;       // ReadFloats() can read it.
  bool is_quantised = false;   // Its values were rounded to a few bits.
};

// The tensors of a checkpoint of some format, by name, whose values are read on
// demand. Const methods may be called from any thread.
class TensorSource {
 public:
  using Entries = absl::btree_map<std::string, SourceTensor>;

  virtual ~TensorSource() = default;

  const Entries& entries() const { return entries_; }
  // Null: no such tensor.
  const SourceTensor* Find(absl::string_view name) const;

  const std::vector<RandomAccessFile>& files() const { return files_; }
  // Where `entry` is; config_name() of a source without files.
  const std::string& PathOf(const SourceTensor& entry) const {
    return files_.empty() ? config_name_ : files_[entry.file].path();
  }
  // What says which tensors there should be, for messages: "config.json".
  const std::string& config_name() const { return config_name_; }

  // Elements [first, first + out.size()) of `entry`, which must be one of
  // entries(), widened without loss. OutOfRange: beyond its end.
  // InvalidArgument: its type is none that can be read so.
  virtual absl::Status ReadFloats(const SourceTensor& entry, int64_t first,
                                  absl::Span<float> out) const = 0;

 protected:
  explicit TensorSource(std::string config_name)
      : config_name_(std::move(config_name)) {}
  TensorSource(TensorSource&&) = default;
  TensorSource& operator=(TensorSource&&) = default;

  // OutOfRange unless elements [first, first + count) are all `entry`'s.
  absl::Status CheckRange(const SourceTensor& entry, int64_t first,
                          int64_t count) const;

  std::vector<RandomAccessFile> files_;
  Entries entries_;

 private:
  std::string config_name_;
};

// "[4, 16]", for messages.
std::string ShapeText(absl::Span<const int64_t> shape);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_CONVERT_TENSOR_SOURCE_H_
