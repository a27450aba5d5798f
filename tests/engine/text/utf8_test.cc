// SPDX-License-Identifier: Apache-2.0

#include "engine/text/utf8.h"

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace deltaedge {
namespace {

using ::testing::HasSubstr;

std::string Encode(uint32_t code) {
  std::string s;
  if (code < 0x80) {
    s += static_cast<char>(code);
  } else if (code < 0x800) {
    s += static_cast<char>(0xC0 | code >> 6);
    s += static_cast<char>(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    s += static_cast<char>(0xE0 | code >> 12);
    s += static_cast<char>(0x80 | (code >> 6 & 0x3F));
    s += static_cast<char>(0x80 | (code & 0x3F));
  } else {
    s += static_cast<char>(0xF0 | code >> 18);
    s += static_cast<char>(0x80 | (code >> 12 & 0x3F));
    s += static_cast<char>(0x80 | (code >> 6 & 0x3F));
    s += static_cast<char>(0x80 | (code & 0x3F));
  }
  return s;
}

TEST(NextUtf8, EveryCharacterIsOne) {
  for (uint32_t code = 0; code < 0x110000; ++code) {
    const bool surrogate = code >= 0xD800 && code < 0xE000;
    const std::string text = Encode(code) + "x";
    const Utf8Step step = NextUtf8(text);
    if (surrogate) {
      ASSERT_EQ(step.kind, Utf8Step::Kind::kBroken) << code;
      ASSERT_EQ(step.bytes, 1u) << code;
    } else {
      ASSERT_EQ(step.kind, Utf8Step::Kind::kCharacter) << code;
      ASSERT_EQ(step.bytes, text.size() - 1) << code;
      for (size_t cut = 1; cut + 1 < text.size(); ++cut) {
        const Utf8Step part = NextUtf8(absl::string_view(text).substr(0, cut));
        ASSERT_EQ(part.kind, Utf8Step::Kind::kCut) << code;
        ASSERT_EQ(part.bytes, cut) << code;
      }
    }
  }
}

TEST(NextUtf8, BrokenBytesTakeTheirMaximalSubpart) {
  const struct {
    absl::string_view text;
    size_t bytes;
  } cases[] = {
      {"\x80", 1},              // A continuation alone.
      {"\xC0\xAF", 1},          // Overlong.
      {"\xC1\xBF", 1},          // Overlong.
      {"\xE0\x80\xAF", 1},      // Overlong.
      {"\xF0\x8F\xBF\xBF", 1},  // Overlong.
      {"\xED\xA0\x80", 1},      // A surrogate.
      {"\xF4\x90\x80\x80", 1},  // Beyond U+10FFFF.
      {"\xF5\x80", 1},
      {"\xFF", 1},
      {"\xC3(", 1},
      {"\xE4\xB8(", 2},
      {"\xF0\x9F\x98(", 3},
  };
  for (const auto& c : cases) {
    const Utf8Step step = NextUtf8(c.text);
    EXPECT_EQ(step.kind, Utf8Step::Kind::kBroken) << c.text;
    EXPECT_EQ(step.bytes, c.bytes) << c.text;
  }
}

TEST(CheckUtf8, NamesThePlace) {
  EXPECT_TRUE(CheckUtf8("", "x").ok());
  EXPECT_TRUE(CheckUtf8("caf\xC3\xA9", "x").ok());
  EXPECT_TRUE(CheckUtf8(absl::string_view("a\0b", 3), "x").ok());

  const absl::Status broken = CheckUtf8("caf\xC3\xA9 \xED\xA0\x80", "the text");
  EXPECT_EQ(broken.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(broken.message(), HasSubstr("the text"));
  EXPECT_THAT(broken.message(), HasSubstr("byte 6 (0xed)"));

  const absl::Status cut = CheckUtf8("ab\xF0\x9F", "the text");
  EXPECT_THAT(cut.message(), HasSubstr("cut short"));
  EXPECT_THAT(cut.message(), HasSubstr("byte 2 (0xf0)"));
}

TEST(StripUnicodeSpace, TakesWhatPythonTakes) {
  EXPECT_EQ(StripUnicodeSpace(""), "");
  EXPECT_EQ(StripUnicodeSpace(" \t\r\n\v\f"), "");
  EXPECT_EQ(StripUnicodeSpace("  a b\n"), "a b");
  EXPECT_EQ(StripUnicodeSpace("\x1C\x1F\xC2\x85\xC2\xA0\xE2\x80\xA8\xE3\x80\x80"
                              "\xE4\xB8\xAD"
                              "\xE2\x80\x80\xE2\x80\xAF\xE1\x9A\x80"),
            "\xE4\xB8\xAD");
  // Zero-width space and Mongolian vowel separator are none.
  EXPECT_EQ(StripUnicodeSpace("\xE2\x80\x8B"), "\xE2\x80\x8B");
  EXPECT_EQ(StripUnicodeSpace("\xE1\xA0\x8E"), "\xE1\xA0\x8E");
}

}  // namespace
}  // namespace deltaedge
