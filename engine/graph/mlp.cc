// SPDX-License-Identifier: Apache-2.0

#include "engine/graph/mlp.h"

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/graph/launch.h"
#include "kernels/act/act.h"

namespace deltaedge {

absl::StatusOr<MlpScratch> MlpScratch::Allocate(int32_t max_rows,
                                                int32_t intermediate_size) {
  const int64_t floats = int64_t{max_rows} * intermediate_size;
  MlpScratch scratch;
  DELTAEDGE_ASSIGN_OR_RETURN(
      scratch.gate_up,
      AlignedArray<float>::Allocate(2 * floats, "feed-forward activations"));
  DELTAEDGE_ASSIGN_OR_RETURN(
      scratch.act,
      AlignedArray<float>::Allocate(floats, "feed-forward activations"));
  return scratch;
}

int64_t MlpScratch::bytes() const {
  return (gate_up.size() + act.size()) * static_cast<int64_t>(sizeof(float));
}

absl::StatusOr<Mlp> Mlp::Create(const MlpWeights& weights,
                                absl::string_view name,
                                const LinearOptions& options) {
  Mlp mlp;
  DELTAEDGE_ASSIGN_OR_RETURN(
      mlp.gate_up_, Linear::Create({weights.gate, weights.up},
                                   absl::StrCat(name, ".gate_up"), options));
  DELTAEDGE_ASSIGN_OR_RETURN(
      mlp.down_,
      Linear::Create({weights.down}, absl::StrCat(name, ".down"), options));
  return mlp;
}

void Mlp::Run(const float* h, int32_t rows, LinearInput* input,
              MlpScratch* scratch, float* y, pthreadpool_t pool) const {
  const int32_t width = down_->in_features();
  float* gate_up = scratch->gate_up.data();
  float* act = scratch->act.data();
  input->Set(h, rows, gate_up_->in_features());
  gate_up_->Run(*input, gate_up, PoolFor(*gate_up_, rows, pool));
  SwiGlu(rows, width, gate_up, 2 * width, gate_up + width, 2 * width, act,
         width, PoolFor(int64_t{rows} * width, pool));
  input->Set(act, rows, width);
  down_->Run(*input, y, PoolFor(*down_, rows, pool));
}

}  // namespace deltaedge
