// SPDX-License-Identifier: Apache-2.0

#include "tools/cli/flags.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

ABSL_FLAG(deltaedge::FlagValue<int>, flag_of_this_test, 3, "");

namespace deltaedge {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

void ExpectRefused(const absl::Status& status, const std::string& message) {
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << message;
  EXPECT_EQ(std::string(status.message()), message);
}

TEST(FlagsTest, Ranges) {
  for (const int64_t value : {-2, 0, 5}) {
    EXPECT_TRUE(CheckRange("n", value, -2, 5).ok()) << value;
  }
  ExpectRefused(CheckRange("n", -3, -2, 5),
                "--n is \"-3\"; allowed is -2 to 5");
  ExpectRefused(CheckRange("n", 6, -2, 5), "--n is \"6\"; allowed is -2 to 5");
  EXPECT_FALSE(CheckRange("n", std::numeric_limits<int64_t>::max(), 0, 1).ok());
}

TEST(FlagsTest, Lists) {
  EXPECT_TRUE(CheckList("l", {"a"}).ok());
  EXPECT_TRUE(CheckList("l", {"a", "b", "A"}).ok());
  ExpectRefused(CheckList("l", {}), "--l is \"\"; allowed is at least one");
  ExpectRefused(CheckList("l", {"a", "b", "a"}),
                "--l is \"a,b,a\"; allowed is \"a\" once");
}

TEST(FlagsTest, NumbersAreInTheirOrder) {
  const auto numbers = Numbers("n", {"3", "1", "12"}, 1, 12);
  ASSERT_TRUE(numbers.ok()) << numbers.status();
  EXPECT_THAT(*numbers, ElementsAre(3, 1, 12));
  for (const char* bad :
       {"0", "13", "-1", "1e1", "", "x", "1.5", "99999999999"}) {
    ExpectRefused(Numbers("n", {"3", bad}, 1, 12).status(),
                  std::string("--n is \"") + bad + "\"; allowed is 1 to 12");
  }
  EXPECT_FALSE(Numbers("n", {}, 1, 12).ok());
  EXPECT_FALSE(Numbers("n", {"1", "1"}, 1, 12).ok());
}

TEST(FlagsTest, NoNumbersAreZeroAlone) {
  const auto none = NumbersOrNone("n", {"0"}, 1, 12);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_THAT(*none, IsEmpty());
  EXPECT_THAT(*NumbersOrNone("n", {"7"}, 1, 12), ElementsAre(7));
  ExpectRefused(NumbersOrNone("n", {"0", "7"}, 1, 12).status(),
                "--n is \"0\"; allowed is 1 to 12");
  EXPECT_FALSE(NumbersOrNone("n", {}, 1, 12).ok());
}

TEST(FlagsTest, Words) {
  EXPECT_EQ(*Word("w", "two", {"one", "two"}), 1);
  ExpectRefused(Word("w", "", {"one", "two"}).status(),
                "--w is \"\"; allowed is one or two");
}

TEST(FlagsTest, Arguments) {
  std::string name = "tool", word = "word";
  EXPECT_TRUE(CheckNoArguments({name.data()}).ok());
  ExpectRefused(CheckNoArguments({name.data(), word.data()}),
                "\"word\" is not expected: all is said by flags (--help lists "
                "all flags)");
}

TEST(FlagsTest, TheDefaultGivenByHandIsGiven) {
  const FlagValue<int> initial = absl::GetFlag(FLAGS_flag_of_this_test);
  EXPECT_EQ(initial.value, 3);
  EXPECT_FALSE(initial.is_given);
  absl::CommandLineFlag* const flag =
      absl::FindCommandLineFlag("flag_of_this_test");
  EXPECT_EQ(flag->DefaultValue(), "3");
  std::string error;
  EXPECT_FALSE(flag->ParseFrom("x", &error));
  EXPECT_FALSE(absl::GetFlag(FLAGS_flag_of_this_test).is_given);
  ASSERT_TRUE(flag->ParseFrom("3", &error)) << error;
  const FlagValue<int> given = absl::GetFlag(FLAGS_flag_of_this_test);
  EXPECT_EQ(given.value, 3);
  EXPECT_TRUE(given.is_given);
}

}  // namespace
}  // namespace deltaedge
