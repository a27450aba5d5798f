// SPDX-License-Identifier: Apache-2.0

#include "engine/base/status_macros.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace deltaedge {
namespace {

absl::StatusOr<std::unique_ptr<int>> Make(int value) {
  if (value < 0) return absl::OutOfRangeError("negative");
  return std::make_unique<int>(value);
}

absl::StatusOr<int> Sum(int a, int b) {
  DELTAEDGE_ASSIGN_OR_RETURN(const std::unique_ptr<int> first, Make(a));
  std::unique_ptr<int> second;
  DELTAEDGE_ASSIGN_OR_RETURN(second, Make(b));
  return *first + *second;
}

absl::Status Check(const absl::Status& status, int* reached) {
  if (*reached == 0) DELTAEDGE_RETURN_IF_ERROR(status);
  ++*reached;
  return absl::OkStatus();
}

TEST(StatusMacrosTest, AssignOrReturn) {
  EXPECT_EQ(Sum(2, 3).value(), 5);
  EXPECT_EQ(Sum(-2, 3).status(), absl::OutOfRangeError("negative"));
  EXPECT_EQ(Sum(2, -3).status(), absl::OutOfRangeError("negative"));
}

TEST(StatusMacrosTest, ReturnIfError) {
  int reached = 0;
  EXPECT_TRUE(Check(absl::OkStatus(), &reached).ok());
  EXPECT_EQ(reached, 1);
  reached = 0;
  EXPECT_EQ(Check(absl::DataLossError("x"), &reached),
            absl::DataLossError("x"));
  EXPECT_EQ(reached, 0);
}

}  // namespace
}  // namespace deltaedge
