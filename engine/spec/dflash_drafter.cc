// SPDX-License-Identifier: Apache-2.0

#include "engine/spec/dflash_drafter.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "engine/base/status_macros.h"
#include "kernels/attn/attention.h"

namespace deltaedge {

namespace {

int64_t TapFloats(const DraftConfig& config) {
  return static_cast<int64_t>(config.target_layers.size()) * config.hidden_size;
}

// KvView has no form for reading only.
KvView View(const DFlashContext& context, int32_t layer) {
  KvStore& kv = const_cast<KvStore&>(context.kv);
  return {kv.keys(layer), kv.values(layer), context.attention.kv_heads,
          context.attention.head_dim, context.capacity};
}

}  // namespace

absl::StatusOr<DFlashContext> DFlashContext::Create(const DraftConfig& config,
                                                    int64_t capacity) {
  DELTAEDGE_ASSIGN_OR_RETURN(KvStore kv,
                             KvStore::Create(DraftKvShape(config, capacity)));
  DELTAEDGE_ASSIGN_OR_RETURN(
      auto taps, AlignedArray<float>::Allocate({kTapRows, TapFloats(config)},
                                               "tapped rows"));
  return DFlashContext{config.attention, capacity, std::move(kv),
                       std::move(taps)};
}

int64_t DFlashContext::Bytes(const DraftConfig& config, int64_t capacity) {
  return DraftKvShape(config, capacity).bytes() +
         kTapRows * TapFloats(config) * static_cast<int64_t>(sizeof(float));
}

void DFlashContext::CopyFrom(const DFlashContext& from, int64_t covered) {
  assert(covered <= capacity && covered <= from.capacity);
  length = std::min(from.length, covered);
  assert(covered - length <= kTapRows);
  for (int32_t i = 0; i < kv.shape().layers; ++i) {
    KvCopy(View(from, i), length, View(*this, i));
  }
  for (int64_t p = length; p < covered; ++p) {
    const int64_t offset = p % kTapRows * tap_floats();
    std::copy_n(from.taps.data() + offset, tap_floats(), taps.data() + offset);
  }
}

absl::StatusOr<std::unique_ptr<DFlashDrafter>> DFlashDrafter::Create(
    DraftModel* model, int64_t capacity) {
  DELTAEDGE_ASSIGN_OR_RETURN(DFlashContext context,
                             DFlashContext::Create(model->config(), capacity));
  return std::unique_ptr<DFlashDrafter>(
      new DFlashDrafter(model, std::move(context)));
}

void DFlashDrafter::AddPending(int64_t end, Injections* injections) {
  // What was injected for tokens that the sequence no longer has is void.
  context_.length = std::min(context_.length, end);
  for (int64_t p = context_.length; p < end;) {
    const int64_t slot = p % DFlashContext::kTapRows;
    const int64_t rows = std::min(end - p, DFlashContext::kTapRows - slot);
    injections->push_back({context_.taps.data() + slot * context_.tap_floats(),
                           p, static_cast<int32_t>(rows), context_.capacity,
                           &context_.kv});
    p += rows;
  }
}

absl::Status DFlashDrafter::InjectTo(int64_t end, CancelFlags cancel) {
  Injections pending;
  AddPending(end, &pending);
  DELTAEDGE_RETURN_IF_ERROR(model_->Inject(pending, cancel));
  context_.length = end;
  return absl::OkStatus();
}

absl::Status DFlashDrafter::ProposeMany(absl::Span<const Request> requests,
                                        CancelFlags cancel) {
  if (requests.empty()) return absl::OkStatus();
  DraftModel* const model = requests[0].drafter->model_;
  Injections pending;
  for (const Request& request : requests) {
    request.drafter->AddPending(
        static_cast<int64_t>(request.sequence.size()) - 1, &pending);
  }
  DELTAEDGE_RETURN_IF_ERROR(model->Inject(pending, cancel));
  Blocks blocks;
  for (const Request& request : requests) {
    assert(request.drafter->model_ == model);
    DFlashContext& context = request.drafter->context_;
    context.length = static_cast<int64_t>(request.sequence.size()) - 1;
    request.drafts->resize(
        std::min(request.max_drafts, model->config().block_size - 1));
    request.drafter->margins_.resize(request.drafts->size());
    blocks.push_back({request.sequence.back(), context.length,
                      static_cast<int32_t>(request.drafts->size()),
                      context.capacity, &context.kv, /*logits=*/nullptr,
                      request.drafts->data(),
                      request.drafter->margins_.data()});
  }
  return model->Draft(blocks, cancel);
}

absl::Status DFlashDrafter::Propose(absl::Span<const TokenId> sequence,
                                    int32_t max_drafts, CancelFlags cancel,
                                    std::vector<TokenId>* drafts) {
  const Request request = {this, sequence, max_drafts, drafts};
  return ProposeMany({&request, 1}, cancel);
}

absl::Status DFlashDrafter::ObserveBlock(const BlockPlan& plan,
                                         const float* taps,
                                         CancelFlags cancel) {
  context_.length = std::min(context_.length, plan.position);
  if (plan.position + plan.rows - context_.length > DFlashContext::kTapRows) {
    DELTAEDGE_RETURN_IF_ERROR(InjectTo(plan.position, cancel));
  }
  for (int32_t t = 0; t < plan.rows; ++t) {
    const int64_t slot = (plan.position + t) % DFlashContext::kTapRows;
    std::copy_n(taps + t * context_.tap_floats(), context_.tap_floats(),
                context_.taps.data() + slot * context_.tap_floats());
  }
  return absl::OkStatus();
}

absl::Status DFlashDrafter::ObservePrefill(const BlockPlan& plan,
                                           const float* taps,
                                           CancelFlags cancel) {
  Injections rows;
  AddPending(plan.position, &rows);
  rows.push_back(
      {taps, plan.position, plan.rows, context_.capacity, &context_.kv});
  DELTAEDGE_RETURN_IF_ERROR(model_->Inject(rows, cancel));
  context_.length = plan.position + plan.rows;
  return absl::OkStatus();
}

}  // namespace deltaedge
