// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_BENCH_SYNTHETIC_ACCEPTANCE_H_
#define DELTAEDGE_TOOLS_BENCH_SYNTHETIC_ACCEPTANCE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/engine.h"
#include "engine/options.h"
#include "engine/session.h"
#include "engine/types.h"

namespace deltaedge {

// Drafts that agree as often as wanted, whatever the models: what speculation
// would bring at that acceptance. Everything is paid for that would be: the
// drafter drafts, then its tokens are replaced by ones known to be right, up to
// a fixed number, and wrong ones behind. That number alternates between two
// neighbours such that steps bring `mean_tokens` in the mean, the target's own
// token included. What comes out is what would come out without drafts.
//
// Thread-compatible; outlives its sessions.
class SyntheticAcceptance {
 public:
  // mean_tokens >= 1.
  explicit SyntheticAcceptance(double mean_tokens)
      : mean_tokens_(mean_tokens) {}

  double mean_tokens() const { return mean_tokens_; }

  // Lets `engine` answer `prompts`, greedily and without drafts, so that the
  // right tokens are known: so many, or up to a stop token.
  absl::Status Learn(const Engine& engine,
                     absl::Span<const std::vector<TokenId>> prompts,
                     int32_t new_tokens, bool stop_tokens);

  // A session with such drafts, for prompts that were learnt and greedy
  // answers. Errors of Engine::NewSession().
  absl::StatusOr<std::unique_ptr<Session>> NewSession(
      const Engine& engine, const SessionOptions& options) const;

  // Internal: `sequence` is not the beginning of what was learnt.
  absl::Status Check(absl::Span<const TokenId> sequence) const;

 private:
  class Drafts;

  // One that begins with `sequence`, or null.
  const std::vector<TokenId>* Find(absl::Span<const TokenId> sequence) const;

  const double mean_tokens_;
  // Prompts with their answers.
  std::vector<std::unique_ptr<const std::vector<TokenId>>> known_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_BENCH_SYNTHETIC_ACCEPTANCE_H_
