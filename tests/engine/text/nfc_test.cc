// SPDX-License-Identifier: Apache-2.0

#include "engine/text/nfc.h"

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/engine/text/golden.h"

namespace deltaedge {
namespace {

std::string MustNfc(absl::string_view text) {
  const absl::StatusOr<std::string> composed = Nfc(text);
  EXPECT_TRUE(composed.ok()) << composed.status();
  return composed.value_or("");
}

TEST(Nfc, Composes) {
  EXPECT_EQ(MustNfc(""), "");
  EXPECT_EQ(MustNfc("plain"), "plain");
  EXPECT_EQ(MustNfc("e\xCC\x81"), "\xC3\xA9");
  // Marks in another order; Hangul letters; a singleton (Angstrom sign).
  EXPECT_EQ(MustNfc("a\xCC\xA7\xCC\x81"), MustNfc("a\xCC\x81\xCC\xA7"));
  EXPECT_EQ(MustNfc("\xE1\x84\x80\xE1\x85\xA1"), "\xEA\xB0\x80");
  EXPECT_EQ(MustNfc("\xE2\x84\xAB"), "\xC3\x85");
  // Compatibility characters stay.
  EXPECT_EQ(MustNfc("\xEF\xAC\x81"), "\xEF\xAC\x81");
}

TEST(Nfc, NulIsACharacter) {
  const absl::string_view text("e\xCC\x81\0e\xCC\x81", 7);
  EXPECT_EQ(MustNfc(text), std::string("\xC3\xA9\0\xC3\xA9", 5));
}

// Marks above (class 230) and below (220) a letter, in runs of any length:
// those below come first, the first above joins the letter, the rest keeps its
// order.
TEST(Nfc, OrdersRunsOfMarksHoweverLong) {
  const std::string above = "\xCC\x81", other_above = "\xCC\x80";
  const std::string below = "\xCC\xA6";
  for (const int pairs : {1, 2, 3, 40, 500000}) {
    std::string text = "e", expected = "\xC3\xA9";
    for (int i = 0; i < pairs; ++i) {
      text += i % 3 == 1 ? other_above : above;
      text += below;
      expected += below;
    }
    for (int i = 1; i < pairs; ++i) {
      expected += i % 3 == 1 ? other_above : above;
    }
    EXPECT_TRUE(MustNfc(text) == expected) << pairs;
    EXPECT_TRUE(MustNfc(expected) == expected) << pairs;
  }
}

TEST(Nfc, NormalisesAsTheReference) {
  int differing = 0;
  for (const nlohmann::json& c : testing::ReadGolden("pretokenize.json")) {
    const std::string& text = c["text"].get_ref<const std::string&>();
    const bool same = !c.contains("nfc") || c["nfc"].is_null();
    EXPECT_EQ(MustNfc(text), same ? text : c["nfc"].get<std::string>());
    differing += same ? 0 : 1;
  }
  EXPECT_GT(differing, 5);
}

}  // namespace
}  // namespace deltaedge
