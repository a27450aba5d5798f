// SPDX-License-Identifier: Apache-2.0

// What the README shows is what is built and run.

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

namespace deltaedge {
namespace {

// A file of `data`, by its path from the top.
std::string Read(const std::string& path) {
  const char* folder = std::getenv("TEST_SRCDIR");
  std::ifstream file(std::string(folder == nullptr ? "." : folder) +
                     "/deltaedge/" + path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// The fenced blocks of `markdown` that are marked as `language`.
std::vector<std::string> Blocks(absl::string_view markdown,
                                absl::string_view language) {
  std::vector<std::string> blocks;
  const std::vector<absl::string_view> parts =
      absl::StrSplit(markdown, "\n```");
  // Every other part is a block: its language, a line break, its lines.
  for (size_t i = 1; i < parts.size(); i += 2) {
    const std::vector<absl::string_view> block =
        absl::StrSplit(parts[i], absl::MaxSplits('\n', 1));
    if (block.size() == 2 && block[0] == language) {
      blocks.emplace_back(std::string(block[1]) + "\n");
    }
  }
  return blocks;
}

TEST(ReadmeExampleTest, BlocksAreFound) {
  EXPECT_EQ(Blocks("a\n```c++\nb;\n\nc;\n```\n```sh\nd\n```\n", "c++"),
            std::vector<std::string>{"b;\n\nc;\n"});
}

TEST(ReadmeExampleTest, IsPartOfMinimal) {
  const std::string minimal = Read("examples/minimal/minimal.cc");
  ASSERT_FALSE(minimal.empty());
  const std::vector<std::string> blocks = Blocks(Read("README.md"), "c++");
  ASSERT_FALSE(blocks.empty());
  for (const std::string& block : blocks) {
    EXPECT_TRUE(absl::StrContains(minimal, block))
        << "not in examples/minimal/minimal.cc:\n"
        << block;
  }
}

}  // namespace
}  // namespace deltaedge
