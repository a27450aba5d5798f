// SPDX-License-Identifier: Apache-2.0

#include "tools/golden_check/golden_check.h"

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/testing/emulated.h"
#include "tests/tools/golden_check/golden_files.h"
#include "tools/golden_check/report.h"

namespace deltaedge {
namespace {

using testing::GoldenFile;
using testing::Runfile;

// Paths from the top; `checks` are those that the golden has at least, so that
// one that is no longer recognised is noticed.
struct Case {
  std::string name;
  std::string golden;
  std::string model;
  std::string draft;
  int checks;
  int not_run = 0;
};

std::string PathOrNone(const std::string& path) {
  return path.empty() ? "" : Runfile(path);
}

class GoldenTest : public ::testing::TestWithParam<Case> {};

TEST_P(GoldenTest, Passes) {
  GoldenCheckOptions options;
  options.golden = Runfile(GetParam().golden);
  options.model = PathOrNone(GetParam().model);
  options.draft = PathOrNone(GetParam().draft);
  Report report(stdout);
  const absl::Status status = RunGoldenCheck(options, &report);
  ASSERT_TRUE(status.ok()) << status;
  report.Summary();
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.failed(), 0);
  EXPECT_GE(report.passed(), GetParam().checks);
  EXPECT_EQ(report.not_run(), GetParam().not_run);
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  return info.param.name;
}

constexpr char kGolden[] = "tests/testdata/golden/";
constexpr char kOps[] = "tests/testdata/ops/";

Case TargetCase(const std::string& name, const std::string& golden,
                const std::string& model, int checks) {
  return {name, kGolden + golden, kGolden + model, "", checks};
}

Case DraftCase(const std::string& name, const std::string& golden,
               const std::string& draft, int checks) {
  return {name, kGolden + golden + "/golden.safetensors",
          std::string(kGolden) + "tiny-qwen35", kGolden + draft, checks};
}

// The first `few` if an emulator runs them.
std::vector<Case> Cases(const char* what, std::vector<Case> cases, size_t few) {
  cases.resize(testing::FewerIfEmulated(what, cases.size(), few));
  return cases;
}

INSTANTIATE_TEST_SUITE_P(
    Targets, GoldenTest,
    ::testing::ValuesIn(Cases(
        "targets",
        {TargetCase("Untied", "tiny-qwen35-untied/golden.safetensors",
                    "tiny-qwen35-untied", 210),
         TargetCase("NextMoe", "tiny-qwen3next-moe/golden.safetensors",
                    "tiny-qwen3next-moe", 273),
         TargetCase("PlainRigged16", "tiny-qwen35/rigged_b16.safetensors",
                    "tiny-qwen35", 40),
         TargetCase("MoeRigged8", "tiny-qwen35moe/rigged_b8.safetensors",
                    "tiny-qwen35moe", 14),
         TargetCase("Plain", "tiny-qwen35/golden.safetensors", "tiny-qwen35",
                    336),
         TargetCase("PlainRigged8", "tiny-qwen35/rigged_b8.safetensors",
                    "tiny-qwen35", 60),
         TargetCase("Published", "tiny-qwen35/golden.safetensors",
                    "tiny-qwen35-published", 336),
         TargetCase("UntiedRigged8", "tiny-qwen35-untied/rigged_b8.safetensors",
                    "tiny-qwen35-untied", 14),
         TargetCase("UntiedPublished", "tiny-qwen35-untied/golden.safetensors",
                    "tiny-qwen35-untied-published", 210),
         TargetCase("Moe", "tiny-qwen35moe/golden.safetensors",
                    "tiny-qwen35moe", 294),
         TargetCase("MoePublished", "tiny-qwen35moe/golden.safetensors",
                    "tiny-qwen35moe-published", 294),
         TargetCase("NextMoeRigged8",
                    "tiny-qwen3next-moe/rigged_b8.safetensors",
                    "tiny-qwen3next-moe", 14),
         TargetCase("NextDense", "tiny-qwen3next-dense/golden.safetensors",
                    "tiny-qwen3next-dense", 210),
         TargetCase("NextDenseRigged8",
                    "tiny-qwen3next-dense/rigged_b8.safetensors",
                    "tiny-qwen3next-dense", 14),
         Case{"WithDraft",
              "tests/testdata/golden/tiny-qwen35/golden.safetensors",
              "tests/testdata/golden/tiny-qwen35",
              "tests/testdata/golden/tiny-qwen35-dflash-trained", 350}},
        4)),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Drafts, GoldenTest,
    ::testing::ValuesIn(Cases(
        "drafts",
        {DraftCase("Trained", "tiny-qwen35-dflash-trained",
                   "tiny-qwen35-dflash-trained", 120),
         DraftCase("SlidingCausal", "tiny-qwen35-dflash-swa/causal",
                   "tiny-qwen35-dflash-swa", 60),
         DraftCase("Random", "tiny-qwen35-dflash", "tiny-qwen35-dflash", 100),
         DraftCase("SlidingSymmetric", "tiny-qwen35-dflash-swa/symmetric",
                   "tiny-qwen35-dflash-swa", 60)},
        2)),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Operators, GoldenTest,
    ::testing::Values(
        Case{"DeltaRule", std::string(kOps) + "gated_delta_rule.safetensors",
             "", "", 144},
        Case{"Convolution", std::string(kOps) + "causal_conv1d.safetensors", "",
             "", 16, /*not_run=*/2},
        Case{"Norms", std::string(kOps) + "norms.safetensors", "", "", 9},
        Case{"Gates", std::string(kOps) + "gates.safetensors", "", "", 2},
        Case{"Rope", std::string(kOps) + "rope.safetensors", "", "", 3}),
    CaseName);

INSTANTIATE_TEST_SUITE_P(
    Texts, GoldenTest,
    ::testing::Values(Case{"Tokenizer", "tests/testdata/tokenizer", "", "", 20,
                           /*not_run=*/2}),
    CaseName);

TEST(GoldenCheckTest, NumberOfThreadsChangesNothing) {
  GoldenCheckOptions options;
  options.golden = GoldenFile("tiny-qwen35-untied/rigged_b8.safetensors");
  options.model = GoldenFile("tiny-qwen35-untied");
  options.threads = 2;
  Report report(nullptr);
  const absl::Status status = RunGoldenCheck(options, &report);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.passed(), 21);
}

}  // namespace
}  // namespace deltaedge
