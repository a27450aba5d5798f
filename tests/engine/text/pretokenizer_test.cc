// SPDX-License-Identifier: Apache-2.0

#include "engine/text/pretokenizer.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/text/nfc.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/engine/text/golden.h"

namespace deltaedge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::ReadGolden;

std::string Expression(const std::string& name) {
  return ReadGolden("regex.json")[name + "_regex"].get<std::string>();
}

std::vector<std::string> Split(const std::string& expression,
                               absl::string_view text) {
  const absl::StatusOr<Pretokenizer> pretokenizer =
      Pretokenizer::Make(expression);
  if (!pretokenizer.ok()) {
    ADD_FAILURE() << pretokenizer.status();
    return {};
  }
  const absl::StatusOr<std::vector<absl::string_view>> pieces =
      pretokenizer->Split(text);
  if (!pieces.ok()) {
    ADD_FAILURE() << pieces.status();
    return {};
  }
  return std::vector<std::string>(pieces->begin(), pieces->end());
}

TEST(Pretokenizer, SplitsAsTheReference) {
  const nlohmann::json golden = ReadGolden("pretokenize.json");
  ASSERT_GT(golden.size(), 300u);
  for (const char* name : {"qwen3", "qwen35"}) {
    const absl::StatusOr<Pretokenizer> pretokenizer =
        Pretokenizer::Make(Expression(name));
    ASSERT_TRUE(pretokenizer.ok()) << pretokenizer.status();
    for (const nlohmann::json& c : golden) {
      const absl::StatusOr<std::string> text =
          Nfc(c["text"].get_ref<const std::string&>());
      ASSERT_TRUE(text.ok());
      const absl::StatusOr<std::vector<absl::string_view>> pieces =
          pretokenizer->Split(*text);
      ASSERT_TRUE(pieces.ok()) << pieces.status();
      EXPECT_EQ(std::vector<std::string>(pieces->begin(), pieces->end()),
                c[name].get<std::vector<std::string>>())
          << name << ": " << c["text"];
    }
  }
}

// Case C21: combining marks stay with letters in Qwen3.5, and are pieces of
// their own before it.
TEST(Pretokenizer, MarksAndDigits) {
  const std::string qwen3 = Expression("qwen3"), qwen35 = Expression("qwen35");
  const std::string namaste =
      "\xE0\xA4\xA8\xE0\xA4\xAE\xE0\xA4\xB8\xE0\xA5\x8D\xE0\xA4\xA4\xE0\xA5\x87"
      " 123";
  EXPECT_EQ(Split(qwen3, namaste).size(), 7u);
  EXPECT_EQ(Split(qwen35, namaste).size(), 5u);
  EXPECT_EQ(Split(qwen3,
                  "e\xCC\x81"
                  "a x2")
                .size(),
            4u);
  EXPECT_EQ(Split(qwen35,
                  "e\xCC\x81"
                  "a x2")
                .size(),
            3u);
  const std::string mixed =
      "\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E\xF0\x9F\x99\x82 12.5";
  EXPECT_EQ(Split(qwen3, mixed).size(), 7u);
  EXPECT_EQ(Split(qwen35, mixed).size(), 7u);
}

TEST(Pretokenizer, KeepsWhatLiesBetweenMatches) {
  EXPECT_THAT(Split("[0-9]", "ab1c2"), ElementsAre("ab", "1", "c", "2"));
  EXPECT_THAT(Split("z", "abc"), ElementsAre("abc"));
  EXPECT_THAT(Split("a", ""), ElementsAre());
  // An empty match is no piece, but it is a cut.
  EXPECT_THAT(Split("x*", "ab\xC3\xA9xxb"),
              ElementsAre("a", "b", "\xC3\xA9", "xx", "b"));
}

// The reference's engine follows White_Space; PCRE2's own \s adds U+180E.
TEST(Pretokenizer, WhiteSpaceIsUnicodes) {
  const std::string separator = "\xE1\xA0\x8E";
  EXPECT_THAT(Split("\\s+", "a" + separator + " b"),
              ElementsAre("a" + separator, " ", "b"));
  EXPECT_THAT(Split("[^\\s]+", separator + " "), ElementsAre(separator, " "));
  EXPECT_THAT(Split("\\S+", separator + " "), ElementsAre(separator, " "));
  EXPECT_THAT(Split("\\s+",
                    "a\xC2\x85\xE3\x80\x80"
                    "b"),
              ElementsAre("a", "\xC2\x85\xE3\x80\x80", "b"));
  // Not escapes of that kind.
  EXPECT_THAT(Split("\\\\s", "a\\sb"), ElementsAre("a", "\\s", "b"));
  EXPECT_THAT(Split("[]\\s]", "a]b"), ElementsAre("a", "]", "b"));
}

// Case C21: a megabyte of one character, or of one kind.
TEST(Pretokenizer, LongRunsAreNoDanger) {
  constexpr size_t kLength = 1 << 20;
  for (const char* name : {"qwen3", "qwen35"}) {
    const std::string expression = Expression(name);
    EXPECT_EQ(Split(expression, std::string(kLength, 'x')).size(), 1u);
    EXPECT_EQ(Split(expression, std::string(kLength, ' ')).size(), 1u);
    EXPECT_EQ(Split(expression, std::string(kLength, ' ') + "x").size(), 2u);
    EXPECT_EQ(Split(expression, std::string(kLength, '!')).size(), 1u);
    EXPECT_EQ(Split(expression, std::string(kLength, '7')).size(), kLength);
    std::string lines;
    while (lines.size() < kLength) lines += "\r\n  ";
    EXPECT_EQ(Split(expression, lines).size(), 2u);
  }
}

TEST(Pretokenizer, RunawayExpressionIsAnError) {
  const absl::StatusOr<Pretokenizer> runaway = Pretokenizer::Make("(a+a+)+b");
  ASSERT_TRUE(runaway.ok());
  const absl::Status status =
      runaway->Split(std::string(64, 'a') + "cb").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("match limit"));
}

// What would be taken for something else once white space is written out.
TEST(Pretokenizer, RefusesByNameWhatItWouldMisread) {
  const struct {
    const char *expression, *message;
  } cases[] = {
      {"[[:alpha:]\\s]+", "such as [:alpha:], at byte 1,"},
      {"a[^\\s[:^punct:]]", "such as [:alpha:], at byte 5,"},
      {"[[.a.]]", "such as [:alpha:], at byte 1,"},
      {"[[=a=]\\s]", "such as [:alpha:], at byte 1,"},
      {"\\Q[\\E\\s", "quoting with \\Q, at byte 0,"},
      {"[ab\\s-\\x{4000}]", "a range that begins with \\s, at byte 3,"},
      {"[\\S]", "\\S inside a bracketed class, at byte 1,"},
  };
  for (const auto& c : cases) {
    const absl::Status status = Pretokenizer::Make(c.expression).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument)
        << c.expression;
    EXPECT_THAT(status.message(), HasSubstr(c.message));
  }
  // None of these is one.
  EXPECT_THAT(Split("[:\\s-]+", "a:- b"), ElementsAre("a", ":- ", "b"));
  EXPECT_THAT(Split("[[]+", "a[["), ElementsAre("a", "[["));
  EXPECT_THAT(Split("\\[:\\s", "a[: b"), ElementsAre("a", "[: ", "b"));
}

TEST(Pretokenizer, RefusesUnsoundExpressions) {
  for (const std::string& expression :
       {std::string("(a"), std::string("[a"), std::string("a{2,1}"),
        std::string("\\C"), std::string("[\\S]"), std::string("\\p{Nonsense}"),
        std::string("\xFF"), std::string(1000, '('),
        std::string(Pretokenizer::kMaxExpressionBytes + 1, 'a')}) {
    const absl::StatusOr<Pretokenizer> made = Pretokenizer::Make(expression);
    EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument)
        << expression.substr(0, 20);
    EXPECT_THAT(made.status().message(), HasSubstr("pretokenizer expression"));
  }
  EXPECT_THAT(Pretokenizer::Make("ab(cd").status().message(),
              HasSubstr("at byte 5"));
}

}  // namespace
}  // namespace deltaedge
