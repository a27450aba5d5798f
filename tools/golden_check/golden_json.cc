// SPDX-License-Identifier: Apache-2.0

#include "tools/golden_check/golden_json.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "tools/convert/json.h"

namespace deltaedge {

namespace {

using nlohmann::json;

// Null: not an object, or without the member.
const json* Member(const json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

absl::Status WrongType(const json& object, const char* key,
                       absl::string_view wanted) {
  const json* member = Member(object, key);
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", key, "\" is ", member == nullptr ? "missing" : ShortJson(*member),
      "; it must be ", wanted));
}

}  // namespace

absl::StatusOr<const json*> JsonArray(const json& object, const char* key) {
  const json* member = Member(object, key);
  if (member == nullptr || !member->is_array()) {
    return WrongType(object, key, "a list");
  }
  return member;
}

absl::StatusOr<std::string> JsonText(const json& object, const char* key) {
  const json* member = Member(object, key);
  if (member == nullptr || !member->is_string()) {
    return WrongType(object, key, "a text");
  }
  return member->get<std::string>();
}

absl::StatusOr<std::vector<int64_t>> JsonInts(const json& object,
                                              const char* key) {
  DELTAEDGE_ASSIGN_OR_RETURN(const json* list, JsonArray(object, key));
  std::vector<int64_t> values;
  for (const json& value : *list) {
    if (!value.is_number_integer()) {
      return WrongType(object, key, "a list of whole numbers");
    }
    values.push_back(value.get<int64_t>());
  }
  return values;
}

absl::StatusOr<std::vector<std::string>> JsonTexts(const json& object,
                                                   const char* key) {
  DELTAEDGE_ASSIGN_OR_RETURN(const json* list, JsonArray(object, key));
  std::vector<std::string> values;
  for (const json& value : *list) {
    if (!value.is_string()) return WrongType(object, key, "a list of texts");
    values.push_back(value.get<std::string>());
  }
  return values;
}

std::optional<double> JsonOptionalNumber(const json& object, const char* key) {
  const json* member = Member(object, key);
  if (member == nullptr || !member->is_number()) return std::nullopt;
  return member->get<double>();
}

absl::StatusOr<ChatMessage> JsonMessage(const json& message) {
  ChatMessage result;
  DELTAEDGE_ASSIGN_OR_RETURN(const std::string role, JsonText(message, "role"));
  DELTAEDGE_ASSIGN_OR_RETURN(result.text, JsonText(message, "content"));
  if (role == "system") {
    result.role = Role::kSystem;
  } else if (role == "user") {
    result.role = Role::kUser;
  } else if (role == "assistant") {
    result.role = Role::kAssistant;
  } else {
    return absl::InvalidArgumentError(absl::StrCat(
        "role \"", role, "\"; roles are system, user and assistant"));
  }
  return result;
}

}  // namespace deltaedge
