// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/prompts.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/convert/temp_folder.h"

namespace deltaedge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TempFolder;

TEST(PromptsTest, TextAndObjects) {
  const TempFolder folder;
  const auto prompts = ReadPrompts(folder.Write(
      "p", "one\n\n  two words \n{\"id\": 1, \"prompt\": \"a\\nb\"}\r\nlast"));
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  std::vector<std::string> texts, lines;
  for (const Prompt& prompt : *prompts) {
    texts.push_back(prompt.text);
    lines.push_back(prompt.from.substr(prompt.from.find(": ")));
  }
  EXPECT_THAT(texts, ElementsAre("one", "two words", "a\nb", "last"));
  EXPECT_THAT(lines,
              ElementsAre(": line 1", ": line 3", ": line 4", ": line 5"));
}

TEST(PromptsTest, ErrorsNameFileAndLine) {
  const TempFolder folder;
  EXPECT_TRUE(absl::IsNotFound(ReadPrompts(folder / "none").status()));
  for (const char* line : {"{\"prompt\": 3}", "{\"prompt\": \"\"}",
                           "{\"text\": \"x\"}", "{prompt", "\xff"}) {
    const auto prompts =
        ReadPrompts(folder.Write("p", "fine\n" + std::string(line)));
    EXPECT_TRUE(absl::IsInvalidArgument(prompts.status())) << line;
    EXPECT_THAT(std::string(prompts.status().message()),
                HasSubstr("/p: line 2"));
  }
  EXPECT_THAT(
      std::string(ReadPrompts(folder.Write("p", "\n \n")).status().message()),
      HasSubstr("no prompt"));
}

}  // namespace
}  // namespace deltaedge
