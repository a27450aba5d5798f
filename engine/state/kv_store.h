// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_STATE_KV_STORE_H_
#define DELTAEDGE_ENGINE_STATE_KV_STORE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/aligned_buffer.h"

namespace deltaedge {

// Sizes of a KvStore. The layout inside a layer is the attention kernel's; this
// floor only knows how many floats it takes.
struct KvShape {
  int32_t layers = 0;
  int64_t key_floats = 0;    // Of one layer.
  int64_t value_floats = 0;  // Of one layer.

  int64_t bytes() const {
    return layers * (key_floats + value_floats) *
           static_cast<int64_t>(sizeof(float));
  }
};

// Keys and values of one sequence, indexed by position: rows at or beyond the
// sequence's length are free to be written, which is all that rolling back
// means here. Memory is reserved at once and costs what is touched.
class KvStore {
 public:
  // ResourceExhausted: no memory.
  static absl::StatusOr<KvStore> Create(const KvShape& shape);

  float* keys(int32_t layer) { return keys_[layer].data(); }
  float* values(int32_t layer) { return values_[layer].data(); }
  const KvShape& shape() const { return shape_; }

 private:
  KvStore() = default;

  KvShape shape_;
  std::vector<AlignedArray<float>> keys_, values_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_STATE_KV_STORE_H_
