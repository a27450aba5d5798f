// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_MODEL_CHAT_TABLE_H_
#define DELTAEDGE_ENGINE_MODEL_CHAT_TABLE_H_

#include <optional>
#include <string>
#include <vector>

#include "engine/types.h"

namespace deltaedge {

// How a conversation is written for one model, as data. The converter finds it
// (tools/convert/chat_template.h), the model file stores it.
//
// A message is laid out as
//
//   turn_start  role's name  name_end  text  turn_end
//
// and a reply is opened by
//
//   turn_start  assistant_name  name_end  reply_open
//
// All of these but `text` are markers: wherever a marker spells one of
// `control_tokens`, that token is meant. A message's text never is one, so
// nobody can type a turn marker.
struct ChatTable {
  std::string turn_start;  // "<|im_start|>"; begins with a control token.
  std::string system_name = "system";
  std::string user_name = "user";
  std::string assistant_name = "assistant";
  std::string name_end;  // "\n"
  std::string turn_end;  // "<|im_end|>\n"; begins with a control token.

  // What follows the opening of a reply, by Thinking. All three equal: the
  // model has no such switch.
  std::string reply_open_unset;
  std::string reply_open_off;  // "<think>\n\n</think>\n\n"
  std::string reply_open_on;   // "<think>\n"

  // Text of the system message of a conversation that brings none. Unset: such
  // a conversation has no system message.
  std::optional<std::string> default_system;

  // Texts lose white space at both ends, as str.strip() of Python does.
  bool trim_texts = false;

  // A system message may stand anywhere; if not, only at the very beginning.
  bool system_anywhere = true;

  struct ControlToken {
    TokenId id = 0;
    std::string text;
  };
  std::vector<ControlToken> control_tokens;  // All that the markers spell.

  // Ids that end the assistant's turn.
  std::vector<TokenId> stop_tokens;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_MODEL_CHAT_TABLE_H_
