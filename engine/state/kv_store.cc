// SPDX-License-Identifier: Apache-2.0

#include "engine/state/kv_store.h"

#include <utility>

#include "engine/base/status_macros.h"

namespace deltaedge {

absl::StatusOr<KvStore> KvStore::Create(const KvShape& shape) {
  KvStore store;
  store.shape_ = shape;
  for (int32_t i = 0; i < shape.layers; ++i) {
    DELTAEDGE_ASSIGN_OR_RETURN(
        auto keys,
        AlignedArray<float>::Allocate(shape.key_floats, "attention keys"));
    DELTAEDGE_ASSIGN_OR_RETURN(
        auto values,
        AlignedArray<float>::Allocate(shape.value_floats, "attention values"));
    store.keys_.push_back(std::move(keys));
    store.values_.push_back(std::move(values));
  }
  return store;
}

}  // namespace deltaedge
