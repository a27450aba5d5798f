// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_BENCH_PROMPTS_H_
#define DELTAEDGE_TOOLS_BENCH_PROMPTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace deltaedge {

struct Prompt {
  std::string text;
  std::string from;  // Where it stands, for errors: "FILE: line 3".
};

// Prompts of a text file, one on each line that is not blank: plain text, or an
// object {"prompt": "..."} on lines that begin with a brace, whose other
// members are not looked at. Errors of ReadSmallFile(). InvalidArgument names
// the file and the line that is neither, or says that there is no prompt.
absl::StatusOr<std::vector<Prompt>> ReadPrompts(const std::string& path);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_BENCH_PROMPTS_H_
