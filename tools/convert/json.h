// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_CONVERT_JSON_H_
#define DELTAEDGE_TOOLS_CONVERT_JSON_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace deltaedge {

// Arrays and objects may be nested this deep, which is far more than any
// checkpoint does.
inline constexpr int kMaxJsonDepth = 64;

// `text` as JSON, parsed strictly: no duplicate keys, no comments, valid UTF-8,
// at most kMaxJsonDepth levels. Never throws. InvalidArgument starts with
// `source`, the name of the file that `text` came from.
absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text,
                                         absl::string_view source);

// The same for a file of at most `max_bytes`.
absl::StatusOr<nlohmann::json> ReadJsonFile(const std::string& path,
                                            int64_t max_bytes);

// `value` as JSON on one line for a message, cut when it is long.
std::string ShortJson(const nlohmann::json& value);

// What a parser's error says, without the library's own numbering of errors.
std::string JsonErrorText(const nlohmann::json::exception& error);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_CONVERT_JSON_H_
