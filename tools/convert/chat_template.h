// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_CONVERT_CHAT_TEMPLATE_H_
#define DELTAEDGE_TOOLS_CONVERT_CHAT_TEMPLATE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/model/chat_table.h"
#include "engine/model/tokenizer_tables.h"
#include "engine/types.h"
#include "nlohmann/json.hpp"

namespace deltaedge {

// The chat table of the checkpoint in the folder `directory`, whose tokenizer
// is `tables`: its template (chat_template.jinja, or "chat_template" of
// tokenizer_config.json or chat_template.json, the first that is there) is
// recognised, and ReadStopTokens() added. Unset: the checkpoint has no
// template.
// Errors are those of RecogniseChatTemplate() and of reading the files; all
// name the file.
absl::StatusOr<std::optional<ChatTable>> ReadChatTable(
    const std::string& directory, const TokenizerTables& tables);

// Finds the table that writes conversations as the Jinja template `source`
// does. The template is not translated but watched: it renders probe
// conversations (with and without a system message, several turns, empty
// texts, blanks at both ends, thinking unset, on and off, with and without an
// opened reply), and so does every table that is known: ChatML with a standing
// system message or none, trimmed texts or not, and the ways to open a reply.
// The first table that agrees on all probes is the template's.
//
// No probe holds reasoning in an earlier turn or a tool: a conversation is
// append-only here, so reasoning stays where it was said, and a template that
// removes it is followed in everything else.
//
// `variables` are the names that the template sees besides the conversation
// (bos_token, eos_token ...). `stop_tokens` of the result holds the token that
// ends a turn.
//
// Unimplemented: the template uses something of Jinja that is not known (its
// name and line), or no table agrees: the message shows the first probe on
// which the nearest one differs, both renderings, and the table's name.
// InvalidArgument: not a template, or the tokenizer lacks a marker.
absl::StatusOr<ChatTable> RecogniseChatTemplate(absl::string_view source,
                                                const nlohmann::json& variables,
                                                const TokenizerTables& tables);

// Ids that end a reply, each once: "eos_token_id" of generation_config.json,
// then of config.json (or of its text_config). Files and keys may be absent.
// InvalidArgument: not an id or a list of ids, or outside the vocabulary of
// `tables`, padding included.
absl::StatusOr<std::vector<TokenId>> ReadStopTokens(
    const std::string& directory, const TokenizerTables& tables);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_CONVERT_CHAT_TEMPLATE_H_
