// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_TYPES_H_
#define DELTAEDGE_ENGINE_TYPES_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace deltaedge {

// Index of a token: a row of the embedding table. Valid ids are
// 0 .. vocab_size-1; rows past the tokenizer's last entry are padding, which a
// model may still use (DFlash's mask token is often one of them).
using TokenId = int32_t;

// Why generation ended. Values are stable: append only.
enum class FinishReason {
  kNone = 0,         // Not ended: another token can be asked for.
  kStopToken = 1,    // A stop id was sampled. It joins the sequence, unprinted.
  kStopText = 2,     // The text reached one of GenerateOptions::stop_texts.
  kMaxTokens = 3,    // GenerateOptions::max_new_tokens was reached.
  kContextFull = 4,  // SessionOptions::max_context was reached.
  kCancelled = 5,    // Cancel() was called, or the callback returned false.
};

// How a session takes back what was drafted in vain. Tokens and scores are the
// same bits either way; this is about memory and time.
enum class Rollback {
  // One recurrent state per layer and a journal of the last block, from which
  // the rows that count are redone when the next block reads the state.
  kJournal,
  // A state per row of a block, in a ring of 2 + K slots, as the reference
  // design has it: rolling back picks a slot. Takes 2 + K times the memory of a
  // state and writes one per row. For comparison.
  kSlots,
};

// Who proposed a token. The target always decides; this is for statistics.
enum class TokenSource { kTarget, kDraft };

// One delivered token.
struct TokenEvent {
  TokenId id = 0;
  int64_t position = 0;  // 0-based index in the session's sequence.
  TokenSource source = TokenSource::kTarget;
  // UTF-8 text that this token completed; may be empty in the middle of a
  // multi-byte character, and is empty for a stop token and for special tokens,
  // which no reader is meant to see (their text: Tokenizer::Bytes). Valid until
  // the callback returns, or, from Next(), until the next call on the session.
  absl::string_view text;
  // The target's scores from which the token was chosen: [vocab_size], or empty
  // unless GenerateOptions::logits. Valid as long as `text`.
  absl::Span<const float> logits;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_TYPES_H_
