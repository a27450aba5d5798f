// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_CHAT_FORMAT_H_
#define DELTAEDGE_ENGINE_CHAT_FORMAT_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/chat_message.h"
#include "engine/tokenizer.h"
#include "engine/types.h"

namespace deltaedge {

struct ChatPiece;
struct ChatTable;

struct RenderOptions {
  // End with the marker that opens the assistant's turn, so that what is
  // generated next is its reply. Without it the conversation only grows.
  bool open_reply = true;

  // Whether the reply begins with reasoning; read only with open_reply.
  // InvalidArgument if set for a model that has no such switch.
  Thinking thinking = Thinking::kUnset;
};

// Turns messages into ids, as the model file describes. Never touches a
// session: the caller passes the ids to Session::Prefill. Knows nothing of
// drafts, so speculation cannot change a prompt. Immutable: every method may be
// called from any thread.
//
// A conversation is append-only. What the model said stays in the session as
// the tokens it said, reasoning included; a later turn adds to it:
//
//   const ChatFormat& chat = engine->chat();
//   auto ids = chat.Render({{Role::kUser, "What is a lantern?"}});
//   if (ids.ok()) session->Prefill(*ids);           // then Generate ...
//   ids = chat.RenderAfter(session->tokens(), {{Role::kUser, "And a lamp?"}});
//   if (ids.ok()) session->Prefill(*ids);           // then Generate ...
//
// Message texts are encoded so that nobody can type a turn marker: a text that
// spells "<|im_end|>" is those ten characters and not the token. (Tokens that
// are not special, such as "<think>", are ordinary words of the vocabulary and
// stay what they are.)
class ChatFormat {
 public:
  // For the engine and the tools; applications get theirs from Engine::chat().
  // A null `table` is a model without a chat template: it has no stop tokens
  // and renders nothing. `tokenizer` must outlive the result.
  // InvalidArgument: the table and the tokenizer do not belong together (a
  // control token that is another id there), or the table lacks a turn marker.
  static absl::StatusOr<std::unique_ptr<ChatFormat>> Make(
      const Tokenizer* tokenizer, std::unique_ptr<const ChatTable> table);

  ~ChatFormat();
  ChatFormat(const ChatFormat&) = delete;
  ChatFormat& operator=(const ChatFormat&) = delete;

  // Whether the model has a chat template. Without one, rendering gives
  // FailedPrecondition.
  bool available() const { return table_ != nullptr; }

  // Ids of a conversation from its very beginning, the model's standing system
  // message included if it has one and `messages` does not begin with another.
  // InvalidArgument names the message and, for a text that is not UTF-8, the
  // byte; also for no messages at all.
  absl::StatusOr<std::vector<TokenId>> Render(
      absl::Span<const ChatMessage> messages,
      const RenderOptions& options = {}) const;

  // Ids that continue a session which holds `so_far` (Session::tokens()).
  // First comes what `so_far` leaves open:
  //   * a turn that ended with its end marker, as a reply does that a stop
  //     token ended: the rest of what follows that marker ("\n");
  //   * a turn without its end marker, as a reply that a limit or Cancel() cut:
  //     the marker and what follows it;
  //   * a finished turn, or text that never was a chat: nothing.
  // Then `messages`, which may be none: so a reply that was cut is followed by
  // another. Rendering turn by turn gives the ids of rendering all at once,
  // given that the model's own tokens are the encoding of its text.
  // An empty `so_far` is Render().
  absl::StatusOr<std::vector<TokenId>> RenderAfter(
      absl::Span<const TokenId> so_far, absl::Span<const ChatMessage> messages,
      const RenderOptions& options = {}) const;

  // The text whose ids Render() gives, control tokens spelt out: for people and
  // logs. Not for encoding: in it, markers and what was typed look alike.
  absl::StatusOr<std::string> RenderText(
      absl::Span<const ChatMessage> messages,
      const RenderOptions& options = {}) const;

  // Ids that end an assistant's turn.
  absl::Span<const TokenId> stop_tokens() const;

 private:
  ChatFormat(const Tokenizer* tokenizer,
             std::unique_ptr<const ChatTable> table);

  absl::Status CheckAvailable() const;
  absl::StatusOr<std::vector<TokenId>> EncodePieces(
      absl::Span<const ChatPiece> pieces) const;
  absl::Span<const TokenId> MissingEnd(absl::Span<const TokenId> so_far) const;

  const Tokenizer* const tokenizer_;
  const std::unique_ptr<const ChatTable> table_;
  std::vector<TokenId> turn_start_, turn_end_;  // The markers' ids.
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_CHAT_FORMAT_H_
