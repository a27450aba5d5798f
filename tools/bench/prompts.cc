// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/prompts.h"

#include <fstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace deltaedge {

absl::StatusOr<std::vector<std::string>> ReadPrompts(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    return absl::NotFoundError(absl::StrCat("'", path, "': cannot be read"));
  }
  std::vector<std::string> prompts;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    absl::StripAsciiWhitespace(&line);
    if (line.empty()) continue;
    if (line[0] == '{') {
      const auto object = nlohmann::json::parse(line, /*cb=*/nullptr,
                                                /*allow_exceptions=*/false);
      const auto prompt = object.find("prompt");
      if (!object.is_object() || prompt == object.end() ||
          !prompt->is_string()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "'", path, "' line ", number,
            ": allowed is text, or an object like {\"prompt\": \"...\"}"));
      }
      line = prompt->get<std::string>();
    }
    prompts.push_back(std::move(line));
    line.clear();
  }
  if (prompts.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", path, "': no prompt in it"));
  }
  return prompts;
}

}  // namespace deltaedge
