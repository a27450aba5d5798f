// SPDX-License-Identifier: Apache-2.0

#include <sched.h>

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/demo_pair.h"
#include "tests/testing/program.h"

namespace deltaedge {
namespace {

using testing::Outcome;

const std::string kTarget = testing::DemoPair().target;
const std::string kDraft = testing::DemoPair().draft;

// The program takes as many threads as it may run on; one here, since other
// tests run beside this one.
void StayOnOneCpu() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    CPU_ZERO(&allowed);
    CPU_SET(cpu, &allowed);
    break;
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(allowed), &allowed), 0);
}

Outcome Minimal(const std::vector<std::string>& args,
                const std::string& output_file = "") {
  StayOnOneCpu();
  testing::Launch launch;
  launch.path = testing::Runfile("examples/minimal/minimal");
  launch.args = args;
  launch.output_file = output_file;
  return testing::RunToEnd(launch);
}

TEST(Minimal, PrintsAWholeAnswer) {
  for (const std::string& draft : {kDraft, std::string()}) {
    const Outcome outcome = Minimal({kTarget, draft, "What is a dog?"});
    EXPECT_EQ(outcome.status, 0);
    EXPECT_EQ(outcome.out,
              "A dog is a member of the genus Canis that has been domesticated "
              "by man since prehistoric times.\n");
    EXPECT_EQ(outcome.err, "");
  }
}

TEST(Minimal, SaysWhatIsWrong) {
  Outcome outcome = Minimal({kTarget});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.err.find("usage:"), std::string::npos);

  outcome = Minimal({"no-such-file.gdn", kDraft, "Hello!"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("no-such-file.gdn"), std::string::npos)
      << outcome.err;

  outcome = Minimal({kTarget, kDraft, "broken \xff"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("not UTF-8"), std::string::npos) << outcome.err;

  EXPECT_EQ(Minimal({kTarget, kDraft, "Hello!"}, "/dev/full").status, 1);
}

}  // namespace
}  // namespace deltaedge
