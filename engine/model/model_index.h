// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_MODEL_MODEL_INDEX_H_
#define DELTAEDGE_ENGINE_MODEL_MODEL_INDEX_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/model/model_contents.h"
#include "engine/model/weights.h"

namespace deltaedge {

// The index of a model file as plain data, on the way in and on the way out.
// Its source is the only place that knows the FlatBuffers schema.

// A tensor and its segment; schema/model.fbs, table Tensor.
struct TensorEntry {
  std::string name;
  WeightType type = WeightType::kUnknown;
  std::vector<int32_t> shape;
  int64_t offset_bytes = 0;  // From the first segment.
  int64_t size_bytes = 0;
  uint32_t checksum = 0;  // CRC-32C.
};

struct ModelIndex {
  ModelContents contents;
  uint64_t fingerprint = 0;
  std::vector<TensorEntry> tensors;
};

// Whether a model can be built from `index` and segments of `segment_bytes` in
// all: sizes within limits, every tensor of the architecture there once with
// its shape and a type it may have, segments aligned, apart, inside and without
// anything behind them, tokenizer and chat tables that agree with themselves
// and with the vocabulary. InvalidArgument names the first thing that is wrong.
absl::Status CheckIndex(const ModelIndex& index, int64_t segment_bytes);

// The FlatBuffer. Its size depends on everything but fingerprint and checksums,
// so a writer can place segments before it knows these. Assumes that
// CheckIndex() passes. ResourceExhausted if it grows beyond
// schema::kMaxIndexBytes.
absl::StatusOr<std::string> SerializeIndex(const ModelIndex& index);

// The reverse, for bytes that nobody vouches for, at an address that is a
// multiple of 8. DataLoss: not such a FlatBuffer, or one that lacks something;
// Unimplemented: it needs a newer reader. What comes back has its tables in
// proportion to `bytes` and is not otherwise checked.
absl::StatusOr<ModelIndex> ParseIndex(absl::Span<const uint8_t> bytes);

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_MODEL_MODEL_INDEX_H_
