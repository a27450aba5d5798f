// SPDX-License-Identifier: Apache-2.0

#include "engine/graph/moe.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/graph/launch.h"
#include "kernels/act/act.h"
#include "kernels/moe/moe.h"

namespace deltaedge {

// What Validate(TargetConfig) lets through, the kernel takes.
static_assert(kMaxExperts <= kMoeMaxExperts);

namespace {

template <class T>
absl::Status AllocateRows(int64_t rows, int64_t width, AlignedArray<T>* array) {
  absl::StatusOr<AlignedArray<T>> allocated =
      AlignedArray<T>::Allocate(rows * width, "activations of experts");
  if (allocated.ok()) *array = *std::move(allocated);
  return allocated.status();
}

}  // namespace

absl::StatusOr<MoeScratch> MoeScratch::Allocate(int32_t max_rows,
                                                int32_t hidden_size,
                                                const MoeConfig& config) {
  const int32_t k = config.experts_per_token, size = config.expert_size;
  const int32_t choices = max_rows * k;
  MoeScratch s;
  DELTAEDGE_RETURN_IF_ERROR(
      AllocateRows(max_rows, config.experts + 1, &s.logits));
  DELTAEDGE_RETURN_IF_ERROR(AllocateRows(max_rows, k, &s.ids));
  DELTAEDGE_RETURN_IF_ERROR(AllocateRows(max_rows, k, &s.weights));
  DELTAEDGE_RETURN_IF_ERROR(AllocateRows(max_rows, k, &s.places));
  DELTAEDGE_RETURN_IF_ERROR(AllocateRows(1, config.experts, &s.ends));
  DELTAEDGE_RETURN_IF_ERROR(AllocateRows(choices, hidden_size, &s.x));
  DELTAEDGE_RETURN_IF_ERROR(AllocateRows(choices, 2 * size, &s.gate_up));
  DELTAEDGE_RETURN_IF_ERROR(AllocateRows(choices, size, &s.act));
  DELTAEDGE_RETURN_IF_ERROR(AllocateRows(choices, hidden_size, &s.y));
  DELTAEDGE_ASSIGN_OR_RETURN(
      s.input, LinearInput::Allocate(choices, std::max(hidden_size, size)));
  s.groups.reserve(std::min(choices, config.experts));
  return s;
}

int64_t MoeScratch::bytes() const {
  return logits.size_bytes() + ids.size_bytes() + weights.size_bytes() +
         places.size_bytes() + ends.size_bytes() + x.size_bytes() +
         gate_up.size_bytes() + act.size_bytes() + y.size_bytes() +
         input.bytes();
}

absl::StatusOr<Moe> Moe::Create(const MoeWeights& weights,
                                const MoeConfig& config, absl::string_view name,
                                const LinearOptions& options) {
  Moe moe;
  moe.experts_ = config.experts;
  moe.top_k_ = config.experts_per_token;
  moe.normalise_ = config.normalise;
  DELTAEDGE_ASSIGN_OR_RETURN(
      moe.router_, Linear::Create({weights.router, weights.shared_router},
                                  absl::StrCat(name, ".router"), options));
  DELTAEDGE_ASSIGN_OR_RETURN(
      moe.gate_up_,
      LinearStack::Create(weights.gate_up, config.experts,
                          absl::StrCat(name, ".gate_up"), options));
  DELTAEDGE_ASSIGN_OR_RETURN(
      moe.down_, LinearStack::Create(weights.down, config.experts,
                                     absl::StrCat(name, ".down"), options));
  DELTAEDGE_ASSIGN_OR_RETURN(
      Mlp shared,
      Mlp::Create(weights.shared, absl::StrCat(name, ".shared"), options));
  moe.shared_ = std::make_unique<Mlp>(std::move(shared));
  return moe;
}

int64_t Moe::packed_bytes() const {
  return router_->packed_bytes() + gate_up_->packed_bytes() +
         down_->packed_bytes() + shared_->packed_bytes();
}

void Moe::Sort(int32_t rows, MoeScratch* scratch) const {
  const int32_t choices = rows * top_k_;
  const int32_t* const ids = scratch->ids.data();
  int32_t* const ends = scratch->ends.data();
  std::fill_n(ends, experts_, 0);
  for (int32_t i = 0; i < choices; ++i) ++ends[ids[i]];
  scratch->groups.clear();
  int32_t begin = 0;
  for (int32_t expert = 0; expert < experts_; ++expert) {
    const int32_t count = ends[expert];
    if (count > 0) scratch->groups.push_back({expert, count});
    ends[expert] = begin;
    begin += count;
  }
  for (int32_t i = 0; i < choices; ++i) {
    scratch->places.data()[i] = ends[ids[i]]++;
  }
}

void Moe::Run(const float* h, int32_t rows, LinearInput* input,
              MlpScratch* shared, MoeScratch* scratch, float* y,
              pthreadpool_t pool) const {
  const int32_t hidden = gate_up_->in_features();
  const int32_t size = down_->in_features();
  const int32_t choices = rows * top_k_;
  MoeScratch& s = *scratch;
  input->Set(h, rows, hidden);
  router_->Run(*input, s.logits.data(), PoolFor(*router_, rows, pool));
  MoeRoute(rows, experts_, top_k_, normalise_, s.logits.data(), experts_ + 1,
           s.ids.data(), s.weights.data(),
           PoolFor(int64_t{choices} * experts_, pool));
  Sort(rows, &s);
  MoeGather(rows, hidden, top_k_, h, s.places.data(), s.x.data(),
            PoolFor(int64_t{choices} * hidden, pool));
  s.input.Set(s.x.data(), choices, hidden);
  gate_up_->Run(s.input, s.groups, s.gate_up.data(),
                PoolFor(*gate_up_, choices, pool));
  SwiGlu(choices, size, s.gate_up.data(), 2 * size, s.gate_up.data() + size,
         2 * size, s.act.data(), size, PoolFor(int64_t{choices} * size, pool));
  s.input.Set(s.act.data(), choices, size);
  down_->Run(s.input, s.groups, s.y.data(), PoolFor(*down_, choices, pool));
  shared_->Run(h, rows, input, shared, y, pool);
  MoeCombine(rows, hidden, top_k_, s.y.data(), s.places.data(),
             s.weights.data(), s.logits.data() + experts_, experts_ + 1, y,
             PoolFor(int64_t{choices} * hidden, pool));
}

}  // namespace deltaedge
