// SPDX-License-Identifier: Apache-2.0

#include "tools/eval/scored_text.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/status_macros.h"
#include "engine/chat_format.h"
#include "engine/chat_message.h"
#include "engine/model/chat_table.h"
#include "engine/text/bpe_tokenizer.h"
#include "engine/tokenizer.h"
#include "nlohmann/json.hpp"
#include "tools/convert/json.h"
#include "tools/convert/random_access_file.h"

namespace deltaedge {

namespace {

using nlohmann::json;

constexpr int64_t kMaxTextBytes = int64_t{1} << 28;

// A text, and whether each of its tokens counts.
struct Document {
  std::vector<TokenId> tokens;
  std::vector<bool> counts;
};

absl::StatusOr<std::vector<ChatMessage>> ParseConversation(
    absl::string_view line, absl::string_view source) {
  DELTAEDGE_ASSIGN_OR_RETURN(const json parsed, ParseJson(line, source));
  const auto wrong = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat(source, ": ", ShortJson(parsed),
                     " is no conversation: [{\"role\": \"system\", \"user\" or "
                     "\"assistant\", \"content\": \"...\"}, ...]"));
  };
  if (!parsed.is_array() || parsed.empty()) return wrong();
  std::vector<ChatMessage> messages;
  for (const json& part : parsed) {
    if (!part.is_object() || part.size() != 2 || !part.contains("role") ||
        !part.contains("content") || !part["content"].is_string()) {
      return wrong();
    }
    ChatMessage message;
    if (part["role"] == "system") {
      message.role = Role::kSystem;
    } else if (part["role"] == "assistant") {
      message.role = Role::kAssistant;
    } else if (part["role"] != "user") {
      return wrong();
    }
    message.text = part["content"].get<std::string>();
    messages.push_back(std::move(message));
  }
  return messages;
}

absl::StatusOr<Document> RenderConversation(
    const std::vector<ChatMessage>& messages, const ChatFormat& chat) {
  Document document;
  RenderOptions finished;
  finished.open_reply = false;
  DELTAEDGE_ASSIGN_OR_RETURN(document.tokens, chat.Render(messages, finished));
  document.counts.resize(document.tokens.size());
  for (size_t i = 1; i < messages.size(); ++i) {
    if (messages[i].role != Role::kAssistant) continue;
    DELTAEDGE_ASSIGN_OR_RETURN(
        const std::vector<TokenId> before,
        chat.Render(absl::MakeConstSpan(messages).first(i)));
    for (size_t t = before.size(); t < document.tokens.size(); ++t) {
      document.counts[t] = true;
      if (absl::c_linear_search(chat.stop_tokens(), document.tokens[t])) break;
    }
  }
  return document;
}

absl::StatusOr<std::vector<Document>> ReadDocuments(const std::string& path,
                                                    const ModelFile& model) {
  DELTAEDGE_ASSIGN_OR_RETURN(const std::string text,
                             ReadSmallFile(path, kMaxTextBytes));
  if (!model.tokenizer().has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(model.path(), ": has no tokenizer to read a text with"));
  }
  DELTAEDGE_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                             MakeBpeTokenizer(*model.tokenizer()));
  std::vector<Document> documents;
  if (!absl::EndsWith(path, ".jsonl")) {
    Document document;
    absl::StatusOr<std::vector<TokenId>> tokens =
        tokenizer->Encode(text, Tokenizer::Special::kAsToken);
    if (!tokens.ok()) {
      return absl::Status(tokens.status().code(),
                          absl::StrCat(path, ": ", tokens.status().message()));
    }
    document.tokens = *std::move(tokens);
    document.counts.assign(document.tokens.size(), true);
    documents.push_back(std::move(document));
    return documents;
  }
  if (!model.chat().has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(model.path(),
                     ": has no chat format to render conversations with; "
                     "plain text can be scored"));
  }
  DELTAEDGE_ASSIGN_OR_RETURN(
      const std::unique_ptr<ChatFormat> chat,
      ChatFormat::Make(tokenizer.get(),
                       std::make_unique<ChatTable>(*model.chat())));
  int64_t number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (line.empty()) continue;
    const std::string source = absl::StrCat(path, ": line ", number);
    DELTAEDGE_ASSIGN_OR_RETURN(const std::vector<ChatMessage> messages,
                               ParseConversation(line, source));
    absl::StatusOr<Document> document = RenderConversation(messages, *chat);
    if (!document.ok()) {
      return absl::Status(
          document.status().code(),
          absl::StrCat(source, ": ", document.status().message()));
    }
    documents.push_back(*std::move(document));
  }
  return documents;
}

}  // namespace

absl::StatusOr<std::vector<TextWindow>> ReadScoredText(const std::string& path,
                                                       const ModelFile& model,
                                                       int32_t context,
                                                       int64_t tokens) {
  DELTAEDGE_ASSIGN_OR_RETURN(const std::vector<Document> documents,
                             ReadDocuments(path, model));
  std::vector<TextWindow> windows;
  int64_t scored = 0;
  for (const Document& document : documents) {
    const size_t size = document.tokens.size();
    for (size_t begin = 0; begin + 1 < size; begin += context) {
      const size_t end = std::min(size, begin + context);
      TextWindow window;
      for (size_t t = begin + 1; t < end; ++t) {
        if (!document.counts[t] || (tokens > 0 && scored == tokens)) continue;
        window.scored.push_back(static_cast<int32_t>(t - begin - 1));
        ++scored;
      }
      if (window.scored.empty()) continue;
      window.tokens.assign(document.tokens.begin() + begin,
                           document.tokens.begin() + end);
      windows.push_back(std::move(window));
    }
  }
  if (windows.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": nothing in it can be scored: no token follows another",
        absl::EndsWith(path, ".jsonl") ? " in an assistant's answer" : ""));
  }
  return windows;
}

}  // namespace deltaedge
