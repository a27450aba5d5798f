// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_GOLDEN_CHECK_GOLDEN_JSON_H_
#define DELTAEDGE_TOOLS_GOLDEN_CHECK_GOLDEN_JSON_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/chat_message.h"
#include "nlohmann/json.hpp"

namespace deltaedge {

// Members of `object` by name. InvalidArgument: `object` is none, or the member
// is missing or of another type.
absl::StatusOr<const nlohmann::json*> JsonArray(const nlohmann::json& object,
                                                const char* key);
absl::StatusOr<std::string> JsonText(const nlohmann::json& object,
                                     const char* key);
absl::StatusOr<std::vector<int64_t>> JsonInts(const nlohmann::json& object,
                                              const char* key);
absl::StatusOr<std::vector<std::string>> JsonTexts(const nlohmann::json& object,
                                                   const char* key);

// Unset: it is not there or not a number.
std::optional<double> JsonOptionalNumber(const nlohmann::json& object,
                                         const char* key);

// {"role": "user", "content": "Hi"}. InvalidArgument: another role than system,
// user, assistant.
absl::StatusOr<ChatMessage> JsonMessage(const nlohmann::json& message);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_GOLDEN_CHECK_GOLDEN_JSON_H_
