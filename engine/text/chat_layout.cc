// SPDX-License-Identifier: Apache-2.0

#include "engine/text/chat_layout.h"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/status_macros.h"
#include "engine/chat_message.h"
#include "engine/text/utf8.h"

namespace deltaedge {
namespace {

const std::string* RoleName(const ChatTable& table, Role role) {
  switch (role) {
    case Role::kSystem:
      return &table.system_name;
    case Role::kUser:
      return &table.user_name;
    case Role::kAssistant:
      return &table.assistant_name;
  }
  return nullptr;
}

const std::string* ReplyOpen(const ChatTable& table, Thinking thinking) {
  switch (thinking) {
    case Thinking::kUnset:
      return &table.reply_open_unset;
    case Thinking::kOff:
      return &table.reply_open_off;
    case Thinking::kOn:
      return &table.reply_open_on;
  }
  return nullptr;
}

void AddTurn(const ChatTable& table, const std::string& name,
             absl::string_view text, std::vector<ChatPiece>* pieces) {
  pieces->push_back({absl::StrCat(table.turn_start, name, table.name_end),
                     /*marker=*/true});
  if (table.trim_texts) text = StripUnicodeSpace(text);
  pieces->push_back({std::string(text), /*marker=*/false});
  pieces->push_back({table.turn_end, /*marker=*/true});
}

}  // namespace

absl::StatusOr<std::vector<ChatPiece>> LayOutChat(
    const ChatTable& table, absl::Span<const ChatMessage> messages,
    const ChatLayout& layout) {
  if (layout.at_start && messages.empty()) {
    return absl::InvalidArgumentError(
        "no messages: a conversation begins with at least one");
  }

  std::vector<ChatPiece> pieces;
  if (layout.at_start && table.default_system.has_value() &&
      messages[0].role != Role::kSystem) {
    AddTurn(table, table.system_name, *table.default_system, &pieces);
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    const std::string* name = RoleName(table, message.role);
    if (name == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("messages[", i, "].role is ",
                       static_cast<int>(message.role), ", not a Role"));
    }
    if (message.role == Role::kSystem && !table.system_anywhere &&
        !(layout.at_start && i == 0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "messages[", i,
          "] is a system message; this model takes one only as the first "
          "message of a conversation"));
    }
    DELTAEDGE_RETURN_IF_ERROR(
        CheckUtf8(message.text, absl::StrCat("messages[", i, "].text")));
    AddTurn(table, *name, message.text, &pieces);
  }

  if (layout.open_reply) {
    const std::string* reply_open = ReplyOpen(table, layout.thinking);
    if (reply_open == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("RenderOptions::thinking is ",
                       static_cast<int>(layout.thinking), ", not a Thinking"));
    }
    if (layout.thinking != Thinking::kUnset &&
        table.reply_open_off == table.reply_open_on &&
        table.reply_open_off == table.reply_open_unset) {
      return absl::InvalidArgumentError(
          "RenderOptions::thinking is set, but this model has no such switch; "
          "leave it unset");
    }
    pieces.push_back({absl::StrCat(table.turn_start, table.assistant_name,
                                   table.name_end, *reply_open),
                      /*marker=*/true});
  }
  return pieces;
}

}  // namespace deltaedge
