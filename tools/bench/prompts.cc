// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/prompts.h"

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/text/utf8.h"
#include "nlohmann/json.hpp"
#include "tools/convert/json.h"
#include "tools/convert/random_access_file.h"

namespace deltaedge {

namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 26;

}  // namespace

absl::StatusOr<std::vector<Prompt>> ReadPrompts(const std::string& path) {
  DELTAEDGE_ASSIGN_OR_RETURN(const std::string text,
                             ReadSmallFile(path, kMaxBytes));
  std::vector<Prompt> prompts;
  int64_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty()) continue;
    Prompt prompt = {std::string(line), absl::StrCat(path, ": line ", number)};
    if (line[0] == '{') {
      DELTAEDGE_ASSIGN_OR_RETURN(const nlohmann::json object,
                                 ParseJson(line, prompt.from));
      const auto found = object.find("prompt");
      if (found == object.end() || !found->is_string() ||
          found->get_ref<const std::string&>().empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat(prompt.from, ": ", ShortJson(object),
                         " is no prompt; allowed is text, or an object like "
                         "{\"prompt\": \"...\"}"));
      }
      prompt.text = found->get<std::string>();
    }
    DELTAEDGE_RETURN_IF_ERROR(CheckUtf8(prompt.text, prompt.from));
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": no prompt in it"));
  }
  return prompts;
}

}  // namespace deltaedge
