// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_CHAT_MESSAGE_H_
#define DELTAEDGE_ENGINE_CHAT_MESSAGE_H_

#include <string>

namespace deltaedge {

// Who speaks.
enum class Role { kSystem, kUser, kAssistant };

// One message of a conversation.
struct ChatMessage {
  Role role = Role::kUser;
  std::string text;  // UTF-8; may be empty.
};

// Whether the model is asked to reason before it answers.
enum class Thinking {
  kUnset,  // The model's own habit.
  kOff,    // Answer at once.
  kOn,     // Reason first.
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_CHAT_MESSAGE_H_
