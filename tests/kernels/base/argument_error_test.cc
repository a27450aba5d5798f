// SPDX-License-Identifier: Apache-2.0

#include "kernels/base/argument_error.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace deltaedge {
namespace {

TEST(ArgumentErrorTest, NamesTheArgumentTheValueAndWhatIsAllowed) {
  EXPECT_EQ(ToString({"sequences", -1, -7, "at least 0"}),
            "sequences is -7; allowed: at least 0");
  EXPECT_EQ(ToString({"stride", -1, INT64_MIN, "at least 1"}),
            "stride is -9223372036854775808; allowed: at least 1");
}

TEST(ArgumentErrorTest, PutsTheIndexIntoTheFirstBrackets) {
  EXPECT_EQ(ToString({"spec_state_indices[]", 3, -1, "0 to slots - 1"}),
            "spec_state_indices[3] is -1; allowed: 0 to slots - 1");
  EXPECT_EQ(ToString({"sequence[].each[]", 0, 16, "aligned to 64 bytes"}),
            "sequence[0].each[] is 16; allowed: aligned to 64 bytes");
}

TEST(ArgumentErrorTest, AnIndexWithoutBracketsIsLeftOut) {
  EXPECT_EQ(ToString({"out", 2, -1, "no overlap"}),
            "out is -1; allowed: no overlap");
  EXPECT_EQ(ToString({"range[].end", -1, 0, "at least 1"}),
            "range[].end is 0; allowed: at least 1");
}

}  // namespace
}  // namespace deltaedge
