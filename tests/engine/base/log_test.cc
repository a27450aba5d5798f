// SPDX-License-Identifier: Apache-2.0

#include "engine/base/log.h"

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

namespace deltaedge {
namespace {

using Lines = std::vector<std::pair<LogLevel, std::string>>;

class LogTest : public ::testing::Test {
 protected:
  ~LogTest() override { SetLogSink(nullptr); }
};

TEST_F(LogTest, IsSilentByDefaultAndGoesToTheSink) {
  Log(LogLevel::kWarning, "nobody hears this");
  Lines lines;
  SetLogSink([&lines](LogLevel level, absl::string_view message) {
    lines.emplace_back(level, std::string(message));
  });
  Log(LogLevel::kInfo, "a");
  Log(LogLevel::kWarning, "b");
  SetLogSink(nullptr);
  Log(LogLevel::kInfo, "c");
  EXPECT_EQ(lines, (Lines{{LogLevel::kInfo, "a"}, {LogLevel::kWarning, "b"}}));
}

TEST_F(LogTest, CallsDoNotOverlapAndNoneFollowsAReplacement) {
  constexpr int kThreads = 4;
  constexpr int kMessages = 500;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < kMessages; ++i) Log(LogLevel::kInfo, "x");
    });
  }
  for (int round = 0; round < 20; ++round) {
    // Unprotected on purpose: the thread sanitizer and the sink's own death
    // would show a call that overlaps or comes late.
    int calls = 0;
    SetLogSink([&calls](LogLevel, absl::string_view) { ++calls; });
    Log(LogLevel::kInfo, "mine");
    SetLogSink(nullptr);
    EXPECT_GE(calls, 1);
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace deltaedge
