// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_CONVERT_GGUF_H_
#define DELTAEDGE_TOOLS_CONVERT_GGUF_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "nlohmann/json.hpp"
#include "tools/convert/random_access_file.h"
#include "tools/convert/tensor_source.h"

namespace deltaedge {

// A checkpoint in the GGUF format: one file, or all parts of a split one.
//
//   "GGUF", version, number of tensors, number of keys
//   keys:     name, type, value
//   tensors:  name, extents with the innermost first, type, offset
//   the bytes of all tensors, each at a multiple of general.alignment
//
// Little-endian files of version 2 and 3 are read. Shapes are told as
// everywhere else, outermost extent first.
//
// Nothing in a file is believed before it is checked, and nothing is allocated
// by a size that the file's own length does not cover: a damaged or hostile
// file is an error that names file, key or tensor, and value. All that the
// object holds are keys and names; values are read on demand.
//
// Movable. Const methods may be called from any thread.
class Gguf : public TensorSource {
 public:
  // `path` is the file, or the first part of a split one
  // ("NAME-00001-of-00003.gguf"), whose others must lie beside it and say
  // nothing that it does not say.
  // InvalidArgument: not a GGUF file, or an unsound one. DataLoss: cut short.
  // Unimplemented: another version, or a tensor of a type that is not read.
  // Else what the file system says.
  static absl::StatusOr<Gguf> Open(const std::string& path);

  // An object of all keys ("general.name"), flat. Numbers are integers or
  // doubles; texts may be any bytes.
  const nlohmann::json& metadata() const { return metadata_; }

  // Of all types that Open() takes: F32, F16, BF16, and Q8_0 and Q4_0, whose
  // blocks of 32 have a scale of 16 bits.
  absl::Status ReadFloats(const SourceTensor& entry, int64_t first,
                          absl::Span<float> out) const override;

 private:
  Gguf() : TensorSource("the metadata") {}

  // Opens `path` and adds its tensors; its keys become `*metadata`.
  absl::Status AddFile(const std::string& path, nlohmann::json* metadata);
  // Opens what the first part of a split file belongs to.
  absl::Status AddOtherParts();

  nlohmann::json metadata_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_CONVERT_GGUF_H_
