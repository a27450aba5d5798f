// SPDX-License-Identifier: Apache-2.0

#include "engine/chat_format.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/status_macros.h"
#include "engine/chat_message.h"
#include "engine/model/chat_table.h"
#include "engine/text/chat_layout.h"
#include "engine/tokenizer.h"
#include "engine/types.h"

namespace deltaedge {
namespace {

// The longest control token that begins `text`, or null.
const ChatTable::ControlToken* ControlTokenAt(const ChatTable& table,
                                              absl::string_view text) {
  const ChatTable::ControlToken* longest = nullptr;
  for (const ChatTable::ControlToken& token : table.control_tokens) {
    if (absl::StartsWith(text, token.text) &&
        (longest == nullptr || token.text.size() > longest->text.size())) {
      longest = &token;
    }
  }
  return longest;
}

absl::Status CheckTable(const ChatTable& table, const Tokenizer& tokenizer) {
  for (const ChatTable::ControlToken& token : table.control_tokens) {
    DELTAEDGE_ASSIGN_OR_RETURN(const absl::string_view bytes,
                               tokenizer.Bytes(token.id));
    if (token.text.empty() || bytes != token.text) {
      return absl::InvalidArgumentError(absl::StrCat(
          "chat table: control token ", token.id, " is \"", token.text,
          "\", but the tokenizer has \"", bytes, "\" there"));
    }
  }
  for (const auto& [name, marker] :
       {std::make_pair("turn_start", &table.turn_start),
        std::make_pair("turn_end", &table.turn_end)}) {
    const ChatTable::ControlToken* first = ControlTokenAt(table, *marker);
    if (first == nullptr || !tokenizer.IsSpecial(first->id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("chat table: ", name, " is \"", *marker,
                       "\", which does not begin with a special token"));
    }
  }
  for (TokenId id : table.stop_tokens) {
    if (id < 0 || id >= tokenizer.vocab_size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "chat table: stop token ", id, " is outside the vocabulary of ",
          tokenizer.vocab_size()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

ChatFormat::ChatFormat(const Tokenizer* tokenizer,
                       std::unique_ptr<const ChatTable> table)
    : tokenizer_(tokenizer), table_(std::move(table)) {}

ChatFormat::~ChatFormat() = default;

absl::StatusOr<std::unique_ptr<ChatFormat>> ChatFormat::Make(
    const Tokenizer* tokenizer, std::unique_ptr<const ChatTable> table) {
  std::unique_ptr<ChatFormat> chat(new ChatFormat(tokenizer, std::move(table)));
  if (!chat->available()) return chat;
  DELTAEDGE_RETURN_IF_ERROR(CheckTable(*chat->table_, *tokenizer));
  DELTAEDGE_ASSIGN_OR_RETURN(
      chat->turn_start_,
      chat->EncodePieces({{chat->table_->turn_start, /*marker=*/true}}));
  DELTAEDGE_ASSIGN_OR_RETURN(
      chat->turn_end_,
      chat->EncodePieces({{chat->table_->turn_end, /*marker=*/true}}));
  return chat;
}

absl::Status ChatFormat::CheckAvailable() const {
  if (available()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this model has no chat template; encode the prompt with "
      "Engine::tokenizer() instead");
}

// The text between two control tokens is encoded in one piece, whoever wrote
// it: that is what the model was trained on, and a merge may cross from a
// marker into a message.
absl::StatusOr<std::vector<TokenId>> ChatFormat::EncodePieces(
    absl::Span<const ChatPiece> pieces) const {
  std::vector<TokenId> ids;
  std::string run;
  const auto flush_run = [&]() -> absl::Status {
    DELTAEDGE_ASSIGN_OR_RETURN(
        const std::vector<TokenId> encoded,
        tokenizer_->Encode(run, Tokenizer::Special::kAsText));
    ids.insert(ids.end(), encoded.begin(), encoded.end());
    run.clear();
    return absl::OkStatus();
  };
  for (const ChatPiece& piece : pieces) {
    if (!piece.marker) {
      run += piece.text;
      continue;
    }
    for (size_t i = 0; i < piece.text.size();) {
      const ChatTable::ControlToken* token =
          ControlTokenAt(*table_, absl::string_view(piece.text).substr(i));
      if (token == nullptr) {
        run += piece.text[i++];
        continue;
      }
      DELTAEDGE_RETURN_IF_ERROR(flush_run());
      ids.push_back(token->id);
      i += token->text.size();
    }
  }
  DELTAEDGE_RETURN_IF_ERROR(flush_run());
  return ids;
}

// Both markers begin with a control token, which no text can spell, so the last
// of them tells whether a turn is open.
absl::Span<const TokenId> ChatFormat::MissingEnd(
    absl::Span<const TokenId> so_far) const {
  const absl::Span<const TokenId> end = turn_end_;
  for (size_t i = so_far.size(); i-- > 0;) {
    if (so_far[i] == turn_start_[0]) return end;
    if (so_far[i] != end[0]) continue;
    const absl::Span<const TokenId> behind = so_far.subspan(i);
    const bool cut = behind.size() < end.size() &&
                     std::equal(behind.begin(), behind.end(), end.begin());
    return cut ? end.subspan(behind.size()) : absl::Span<const TokenId>();
  }
  return {};
}

absl::StatusOr<std::vector<TokenId>> ChatFormat::Render(
    absl::Span<const ChatMessage> messages,
    const RenderOptions& options) const {
  return RenderAfter({}, messages, options);
}

absl::StatusOr<std::vector<TokenId>> ChatFormat::RenderAfter(
    absl::Span<const TokenId> so_far, absl::Span<const ChatMessage> messages,
    const RenderOptions& options) const {
  DELTAEDGE_RETURN_IF_ERROR(CheckAvailable());
  DELTAEDGE_ASSIGN_OR_RETURN(
      const std::vector<ChatPiece> pieces,
      LayOutChat(*table_, messages,
                 {so_far.empty(), options.open_reply, options.thinking}));
  DELTAEDGE_ASSIGN_OR_RETURN(std::vector<TokenId> ids, EncodePieces(pieces));
  const absl::Span<const TokenId> missing = MissingEnd(so_far);
  ids.insert(ids.begin(), missing.begin(), missing.end());
  return ids;
}

absl::StatusOr<std::string> ChatFormat::RenderText(
    absl::Span<const ChatMessage> messages,
    const RenderOptions& options) const {
  DELTAEDGE_RETURN_IF_ERROR(CheckAvailable());
  DELTAEDGE_ASSIGN_OR_RETURN(
      const std::vector<ChatPiece> pieces,
      LayOutChat(*table_, messages,
                 {/*at_start=*/true, options.open_reply, options.thinking}));
  std::string text;
  for (const ChatPiece& piece : pieces) text += piece.text;
  return text;
}

absl::Span<const TokenId> ChatFormat::stop_tokens() const {
  if (!available()) return {};
  return table_->stop_tokens;
}

}  // namespace deltaedge
