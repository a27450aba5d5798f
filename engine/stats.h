// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_STATS_H_
#define DELTAEDGE_ENGINE_STATS_H_

#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace deltaedge {

// Where the drafts of a step come from.
enum class DraftSource {
  kNone,    // Nowhere: plain decoding.
  kModel,   // The draft model.
  kLookup,  // What came after the last tokens where they stood before.
  kCustom,  // SessionOptions::drafter.
};

// Why a step drafted as many tokens as it did.
enum class DraftReason {
  kNoRoom,   // No draft could be of use: the answer or the context ends.
  kPinned,   // SessionOptions::draft_tokens says so.
  kBest,     // The most tokens per second, by what was seen so far.
  kPlain,    // None, because drafts would cost more than they bring.
  kProbe,    // To see whether so many bring more than it looks.
  kMeasure,  // None, to see what a step without drafts takes.
};

// How much a step drafted, and why: for people who want to know.
struct DraftChoice {
  DraftSource source = DraftSource::kNone;
  DraftReason reason = DraftReason::kNoRoom;
  int32_t drafts = 0;
  // What was expected of it, and of one without drafts. Unless pinned; zero:
  // not known yet.
  double tokens = 0.0;
  absl::Duration time, plain_time;
};

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
  // Of the drafts, those of the look-up.
  int64_t lookup_drafted = 0, lookup_accepted = 0;
  // Steps that could have drafted and did not, because it would not have paid,
  // and steps that tried something to learn what it brings.
  int64_t plain_by_choice = 0, probes = 0;
  DraftChoice last_choice;  // Of the last step that had one. No counter.
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
