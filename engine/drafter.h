// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_DRAFTER_H_
#define DELTAEDGE_ENGINE_DRAFTER_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/types.h"

namespace deltaedge {

// Guesses how a sequence goes on: an application's own source of drafts, such
// as a look-up in a document that the answer is likely to quote. The target
// checks every guess, so a bad one costs time and never changes a token.
//
//   class Echo : public deltaedge::Drafter {
//    public:
//     void Propose(absl::Span<const deltaedge::TokenId> sequence, int32_t max,
//                  std::vector<deltaedge::TokenId>* drafts) override {
//       drafts->assign(std::min<size_t>(max, 2), sequence.back());
//     }
//   };
//   options.drafter = std::make_shared<Echo>();
//
// Threads: called on the thread that runs the session, one call at a time for a
// session. One object given to several sessions must expect calls at the same
// time. Calls of any session of the same engine from inside Propose() return
// FailedPrecondition, Cancel(), Reset() and the counters excepted: their steps
// take turns, and this is part of one. Sessions of another engine may be used,
// such as one of a small model; engines that use one another both ways, each on
// a thread of its own, would wait for each other for ever.
class Drafter {
 public:
  virtual ~Drafter() = default;

  // Puts at most `max_drafts` >= 1 ids that may follow `sequence` into
  // `drafts`, which is empty on entry. Fewer, or none, means a shorter block,
  // and more are ignored. An id outside the vocabulary makes the session's call
  // fail with InvalidArgument. Must not throw: the library has no exceptions,
  // and a step that one leaves half done is not undone.
  virtual void Propose(absl::Span<const TokenId> sequence, int32_t max_drafts,
                       std::vector<TokenId>* drafts) = 0;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_DRAFTER_H_
