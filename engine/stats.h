// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_STATS_H_
#define DELTAEDGE_ENGINE_STATS_H_

#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace deltaedge {

// Counters since the session was made or Reset(). Plain sums, so that two of
// them can be added or subtracted; rates are computed, never stored.
//
// Every verified token is delivered, discarded or waiting to be delivered.
struct SessionStats {
  int64_t prefill_tokens = 0;    // Given to Prefill and taken.
  int64_t delivered_tokens = 0;  // Given out by Generate and Next.
  int64_t discarded = 0;    // Verified but never delivered: a stop came first.
  int64_t steps = 0;        // Target passes while decoding.
  int64_t draft_steps = 0;  // Those that verified at least one draft.
  int64_t drafted = 0;      // Drafts that were verified.
  int64_t accepted = 0;     // Of those, drafts that the target agreed with.
  // Of the random numbers of the last Start() or Generate(): the one it was
  // given, or the one that was drawn. No counter.
  uint64_t seed = 0;
  // [i]: how often a block had an i-th draft, and how often it was accepted.
  // The tail tells whether a shorter block would pay.
  std::vector<int64_t> tried_at, accepted_at;

  // Running the models on a prompt; drafting; running the target on a block;
  // the rest of a step.
  absl::Duration prefill_time, draft_time, verify_time, accept_time;
  // From the beginning of the last Prefill to the first token after it.
  absl::Duration time_to_first_token;

  double acceptance_rate() const {
    return drafted == 0 ? 0.0 : static_cast<double>(accepted) / drafted;
  }
  // Verified tokens per pass of the target: accepted drafts and one more.
  double tokens_per_step() const {
    return steps == 0 ? 0.0 : static_cast<double>(accepted + steps) / steps;
  }
  double prefill_tokens_per_second() const {
    const double s = absl::ToDoubleSeconds(prefill_time);
    return s == 0.0 ? 0.0 : prefill_tokens / s;
  }
  double decode_tokens_per_second() const {
    const double s =
        absl::ToDoubleSeconds(draft_time + verify_time + accept_time);
    return s == 0.0 ? 0.0 : delivered_tokens / s;
  }
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_STATS_H_
