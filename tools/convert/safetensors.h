// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_CONVERT_SAFETENSORS_H_
#define DELTAEDGE_TOOLS_CONVERT_SAFETENSORS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tools/convert/random_access_file.h"

namespace deltaedge {

// One tensor of a checkpoint: where it is, not what it holds. Row-major.
struct SafetensorsEntry {
  std::string dtype;           // As in the file: "BF16", "F32", "I64", ...
  std::vector<int64_t> shape;  // Outermost first; empty: a scalar.
  int64_t elements = 0;        // The product of `shape`.
  int64_t bytes = 0;           // elements * size of one.
  int32_t file = 0;            // Index into files().
  int64_t offset = 0;          // Of the first byte, from the file's start.
};

// A checkpoint in the safetensors format: one file, or shards with an index.
// The format is 8 bytes of header length (little-endian), a JSON header that
// maps names to type, shape and byte range, then the bytes of all tensors, side
// by side without gaps.
//
// Nothing in a file is believed before it is checked, and nothing is allocated
// by a size that the file's own length does not cover: a damaged or hostile
// file is an error that names file, tensor and value. Values are read on
// demand, in pieces of any size; the object itself holds only names.
//
// Movable. Const methods may be called from any thread.
class Safetensors {
 public:
  // By name, in order.
  using Entries = absl::btree_map<std::string, SafetensorsEntry>;

  // One file. InvalidArgument: not a safetensors file, or an unsound one.
  // DataLoss: cut short. Else what the file system says.
  static absl::StatusOr<Safetensors> OpenFile(const std::string& path);

  // A checkpoint's folder: `model.safetensors`, or else the shards that
  // `model.safetensors.index.json` lists. Index and shards must agree about
  // every tensor. NotFound: the folder has neither file, or a shard is missing.
  static absl::StatusOr<Safetensors> OpenFolder(const std::string& folder);

  const Entries& entries() const { return entries_; }
  // Null: no such tensor.
  const SafetensorsEntry* Find(absl::string_view name) const;

  const std::vector<RandomAccessFile>& files() const { return files_; }
  const std::string& PathOf(const SafetensorsEntry& entry) const {
    return files_[entry.file].path();
  }

  // Whether ReadFloats() can read it: F32, F16, BF16.
  static bool IsFloat(const SafetensorsEntry& entry);

  // Elements [first, first + out.size()) of `entry`, which must be one of
  // entries(), widened without loss. OutOfRange: beyond its end.
  // InvalidArgument: its type is not one of F32, F16, BF16 (ReadFloats) or of
  // BOOL, U8, I8, I16, U16, I32, U32, I64 (ReadInts).
  absl::Status ReadFloats(const SafetensorsEntry& entry, int64_t first,
                          absl::Span<float> out) const;
  absl::Status ReadInts(const SafetensorsEntry& entry, int64_t first,
                        absl::Span<int64_t> out) const;

  // A whole tensor by name. NotFound: no such tensor.
  absl::StatusOr<std::vector<float>> ReadFloats(absl::string_view name) const;
  absl::StatusOr<std::vector<int64_t>> ReadInts(absl::string_view name) const;

 private:
  Safetensors() = default;

  // Opens `path` and adds its tensors.
  absl::Status AddFile(const std::string& path);
  // Elements of `entry`, decoded by the reader of its type in `readers`.
  template <class Value>
  absl::Status Read(const SafetensorsEntry& entry, int64_t first,
                    absl::Span<Value> out) const;
  template <class Value>
  absl::StatusOr<std::vector<Value>> ReadAll(absl::string_view name) const;

  std::vector<RandomAccessFile> files_;
  Entries entries_;
};

// "[4, 16]", for messages.
std::string ShapeText(absl::Span<const int64_t> shape);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_CONVERT_SAFETENSORS_H_
