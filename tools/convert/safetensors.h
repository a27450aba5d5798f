// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_CONVERT_SAFETENSORS_H_
#define DELTAEDGE_TOOLS_CONVERT_SAFETENSORS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tools/convert/tensor_source.h"

namespace deltaedge {

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
class Safetensors : public TensorSource {
 public:
  // One file. InvalidArgument: not a safetensors file, or an unsound one.
  // DataLoss: cut short. Else what the file system says.
  static absl::StatusOr<Safetensors> OpenFile(const std::string& path);

  // A checkpoint's folder: `model.safetensors`, or else the shards that
  // `model.safetensors.index.json` lists. Index and shards must agree about
  // every tensor. NotFound: the folder has neither file, or a shard is missing.
  static absl::StatusOr<Safetensors> OpenFolder(const std::string& folder);

  // Of F32, F16 and BF16.
  absl::Status ReadFloats(const SourceTensor& entry, int64_t first,
                          absl::Span<float> out) const override;
  // The same of BOOL, U8, I8, I16, U16, I32, U32 and I64.
  absl::Status ReadInts(const SourceTensor& entry, int64_t first,
                        absl::Span<int64_t> out) const;

  // A whole tensor by name. NotFound: no such tensor.
  absl::StatusOr<std::vector<float>> ReadFloats(absl::string_view name) const;
  absl::StatusOr<std::vector<int64_t>> ReadInts(absl::string_view name) const;

 private:
  Safetensors() : TensorSource("config.json") {}

  // Opens `path` and adds its tensors.
  absl::Status AddFile(const std::string& path);
  // Elements of `entry`, decoded by the reader of its type in `readers`.
  template <class Value>
  absl::Status Read(const SourceTensor& entry, int64_t first,
                    absl::Span<Value> out) const;
  template <class Value>
  absl::StatusOr<std::vector<Value>> ReadAll(absl::string_view name) const;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_CONVERT_SAFETENSORS_H_
