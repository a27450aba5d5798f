// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/synthetic_acceptance.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/spec/block_drafter.h"
#include "engine/spec/draft_planner.h"
#include "engine/spec/drafter_wrapper.h"

namespace deltaedge {

class SyntheticAcceptance::Drafts : public ForwardingDrafter {
 public:
  Drafts(const SyntheticAcceptance& acceptance,
         std::unique_ptr<BlockDrafter> drafter)
      : ForwardingDrafter(std::move(drafter)), acceptance_(acceptance) {}

  void Review(absl::Span<const TokenId> sequence, const CostCurve& verifying,
              std::vector<TokenId>* drafts) override {
    ForwardingDrafter::Review(sequence, verifying, drafts);
    if (known_ == nullptr) known_ = acceptance_.Find(sequence);
    if (known_ == nullptr || drafts->empty()) return;
    owed_ += acceptance_.mean_tokens() - 1.0;
    const auto right =
        std::min(drafts->size(), static_cast<size_t>(std::floor(owed_ + 1e-6)));
    owed_ -= static_cast<double>(right);
    for (size_t i = 0; i < drafts->size(); ++i) {
      const size_t at = sequence.size() + i;
      const TokenId next = at < known_->size() ? (*known_)[at] : 0;
      (*drafts)[i] = i < right ? next : next == 0 ? 1 : 0;
    }
  }

  void Reset() override {
    ForwardingDrafter::Reset();
    known_ = nullptr;
    owed_ = 0.0;
  }

 private:
  const SyntheticAcceptance& acceptance_;
  const std::vector<TokenId>* known_ = nullptr;
  double owed_ = 0.0;  // Drafts that were to be right and were not yet.
};

absl::Status SyntheticAcceptance::Learn(
    const Engine& engine, absl::Span<const std::vector<TokenId>> prompts,
    int32_t new_tokens, bool stop_tokens) {
  for (const std::vector<TokenId>& prompt : prompts) {
    SessionOptions options;
    options.draft_tokens = 0;
    options.max_context = static_cast<int32_t>(
        std::min<int64_t>(engine.info().max_context,
                          static_cast<int64_t>(prompt.size()) + new_tokens));
    DELTAEDGE_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                               engine.NewSession(options));
    DELTAEDGE_RETURN_IF_ERROR(session->Prefill(prompt));
    GenerateOptions generate;
    generate.max_new_tokens = new_tokens;
    generate.ignore_model_stop_tokens = !stop_tokens;
    DELTAEDGE_RETURN_IF_ERROR(
        session->Generate(generate, [](const TokenEvent&) { return true; })
            .status());
    known_.push_back(
        std::make_unique<const std::vector<TokenId>>(session->tokens()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Session>> SyntheticAcceptance::NewSession(
    const Engine& engine, const SessionOptions& options) const {
  const ScopedDrafterWrapper wrapper(
      [this](std::unique_ptr<BlockDrafter> drafter) {
        return std::make_unique<Drafts>(*this, std::move(drafter));
      });
  return engine.NewSession(options);
}

absl::Status SyntheticAcceptance::Check(
    absl::Span<const TokenId> sequence) const {
  if (Find(sequence) != nullptr) return absl::OkStatus();
  return absl::InternalError(
      "an answer with drafts is not the one without them");
}

const std::vector<TokenId>* SyntheticAcceptance::Find(
    absl::Span<const TokenId> sequence) const {
  for (const auto& known : known_) {
    if (sequence.size() <= known->size() &&
        std::equal(sequence.begin(), sequence.end(), known->begin())) {
      return known.get();
    }
  }
  return nullptr;
}

}  // namespace deltaedge
