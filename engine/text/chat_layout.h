// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_TEXT_CHAT_LAYOUT_H_
#define DELTAEDGE_ENGINE_TEXT_CHAT_LAYOUT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/chat_message.h"
#include "engine/model/chat_table.h"

namespace deltaedge {

// A stretch of a laid out conversation.
struct ChatPiece {
  std::string text;
  bool marker = false;  // The table's; otherwise a message's text.
};

struct ChatLayout {
  bool at_start = true;  // The first message begins the conversation.
  bool open_reply = true;
  Thinking thinking = Thinking::kUnset;
};

// `messages` as the table writes them, in order; joined they are the text that
// the model's own template gives.
// InvalidArgument names the message: a text that is not UTF-8 (and the offset),
// a role out of range, a system message where the model takes none; also a
// thinking switch that the model does not have, and a conversation of nothing.
absl::StatusOr<std::vector<ChatPiece>> LayOutChat(
    const ChatTable& table, absl::Span<const ChatMessage> messages,
    const ChatLayout& layout);

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_TEXT_CHAT_LAYOUT_H_
