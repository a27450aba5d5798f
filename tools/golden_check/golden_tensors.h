// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_GOLDEN_CHECK_GOLDEN_TENSORS_H_
#define DELTAEDGE_TOOLS_GOLDEN_CHECK_GOLDEN_TENSORS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/types.h"
#include "tools/convert/safetensors.h"
#include "tools/convert/tensor_source.h"

namespace deltaedge {

template <class Value>
struct GoldenTensor {
  std::vector<int64_t> shape;
  std::vector<Value> values;

  int64_t dim(size_t i) const { return i < shape.size() ? shape[i] : 0; }
  // Row `i` of the outermost dimension.
  absl::Span<const Value> row(int64_t i) const {
    const size_t size = shape[0] == 0 ? 0 : values.size() / shape[0];
    return absl::MakeConstSpan(values).subspan(i * size, size);
  }
};

using GoldenFloats = GoldenTensor<float>;
using GoldenInts = GoldenTensor<int64_t>;

// The tensors of a golden file, by section ("p3", "gdr12": what stands before
// the first dot; "" without one), which remembers which were looked at, so that
// what nobody understands can be listed.
class GoldenTensors {
 public:
  static absl::StatusOr<GoldenTensors> Open(const std::string& path);

  // Sections in the order of their numbers: p2 before p10.
  std::vector<std::string> Sections() const;
  // Names without their section: "rec_state.0".
  std::vector<std::string> Names(absl::string_view section) const;
  bool Has(absl::string_view section, absl::string_view name) const;

  // NotFound, or as Safetensors::ReadFloats(). `dims`: how many it must have;
  // InvalidArgument otherwise. Marks the tensor as understood.
  absl::StatusOr<GoldenFloats> Floats(absl::string_view section,
                                      absl::string_view name, size_t dims);
  absl::StatusOr<GoldenInts> Ints(absl::string_view section,
                                  absl::string_view name, size_t dims);

  // Marks it as understood without reading it.
  void Skip(absl::string_view section, absl::string_view name);
  // Full names that nobody has looked at.
  std::vector<std::string> Unknown() const;

 private:
  explicit GoldenTensors(Safetensors file) : file_(std::move(file)) {}

  absl::StatusOr<const SourceTensor*> Find(const std::string& full_name,
                                           size_t dims);

  Safetensors file_;
  absl::btree_set<std::string> known_;
};

// `values` as token ids. InvalidArgument: one is not in 0 .. vocab_size - 1.
absl::StatusOr<std::vector<TokenId>> ToTokens(absl::Span<const int64_t> values,
                                              int32_t vocab_size);

// InvalidArgument unless `shape` is `expected`.
absl::Status CheckShape(absl::Span<const int64_t> shape,
                        absl::Span<const int64_t> expected);

// Splits "rec_state.12" into "rec_state" and 12; a name that does not end in a
// number of at most 9 digits has no number (-1) and stays whole.
std::pair<std::string, int32_t> SplitNumber(absl::string_view name);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_GOLDEN_CHECK_GOLDEN_TENSORS_H_
