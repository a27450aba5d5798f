// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TESTS_TESTING_SCRIPTED_DRAFTER_H_
#define DELTAEDGE_TESTS_TESTING_SCRIPTED_DRAFTER_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "engine/drafter.h"
#include "engine/types.h"

namespace deltaedge::testing {

// A drafter that knows the future: `sequence` is what plain decoding gives,
// prompt included. Each round asks `rounds` for a count: that many drafts are
// right, the next one is wrong, and those after it are right again, so that
// counting matches instead of the matching prefix shows.
class ScriptedDrafter : public Drafter {
 public:
  struct Round {
    int32_t propose = 0;  // Drafts in all.
    int32_t right = 0;    // Of those, right ones at the front.
  };
  using Script = std::function<Round(int round, int32_t max_drafts)>;

  ScriptedDrafter(std::vector<TokenId> sequence, int32_t vocab_size,
                  Script script)
      : sequence_(std::move(sequence)),
        vocab_size_(vocab_size),
        script_(std::move(script)) {}

  void Propose(absl::Span<const TokenId> sequence, int32_t max_drafts,
               std::vector<TokenId>* drafts) override {
    Round round = script_(static_cast<int>(rounds_.size()), max_drafts);
    round.propose = std::min(round.propose, max_drafts);
    round.right = std::min(round.right, round.propose);
    rounds_.push_back(round);
    for (int32_t i = 0; i < round.propose; ++i) {
      const size_t position = sequence.size() + i;
      TokenId token = position < sequence_.size() ? sequence_[position] : 0;
      if (i == round.right) token = (token + 1) % vocab_size_;
      drafts->push_back(token);
    }
  }

  // What it was asked for so far, at most as much as was wanted.
  const std::vector<Round>& rounds() const { return rounds_; }

 private:
  const std::vector<TokenId> sequence_;
  const int32_t vocab_size_;
  const Script script_;
  std::vector<Round> rounds_;
};

}  // namespace deltaedge::testing

#endif  // DELTAEDGE_TESTS_TESTING_SCRIPTED_DRAFTER_H_
