// SPDX-License-Identifier: Apache-2.0
//
// A golden that differs from what we compute, in whatever way, must not pass.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/emulated.h"
#include "tests/tools/convert/safetensors_writer.h"
#include "tests/tools/convert/temp_folder.h"
#include "tests/tools/golden_check/golden_files.h"
#include "tools/convert/safetensors.h"
#include "tools/convert/tensor_source.h"
#include "tools/golden_check/golden_check.h"
#include "tools/golden_check/report.h"

namespace deltaedge {
namespace {

using testing::GoldenFile;
using testing::ReadBytes;
using testing::Runfile;
using testing::SafetensorsWriter;
using testing::TempFolder;
using testing::WriteBytes;

// `path` with element `index` of tensor `name` replaced. All types that goldens
// use have 4 bytes.
template <class Value>
void Replace(const std::string& path, const std::string& name, int64_t index,
             const std::function<Value(Value)>& change) {
  const auto file = Safetensors::OpenFile(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const SourceTensor* entry = file->Find(name);
  ASSERT_NE(entry, nullptr) << name;
  ASSERT_LT(index, entry->elements);
  std::string bytes = ReadBytes(path);
  char* at =
      &bytes[entry->offset + index * static_cast<int64_t>(sizeof(Value))];
  Value value;
  std::memcpy(&value, at, sizeof(value));
  value = change(value);
  std::memcpy(at, &value, sizeof(value));
  WriteBytes(path, bytes);
}

void ReplaceText(const std::string& path, const std::string& from,
                 const std::string& to) {
  ASSERT_EQ(from.size(), to.size());
  std::string bytes = ReadBytes(path);
  const size_t at = bytes.find(from);
  ASSERT_NE(at, std::string::npos);
  WriteBytes(path, bytes.replace(at, from.size(), to));
}

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

class FailuresTest : public ::testing::Test {
 protected:
  // A copy of a golden that can be written to. In an emulator the names of its
  // longer prompts are unknown ones, so nobody looks at them.
  std::string Copy(const std::string& golden) {
    std::string bytes = ReadBytes(golden);
    for (int i = testing::FewerIfEmulated("prompts", 7, 4); i < 7; ++i) {
      const std::string prompt = "\"p" + std::to_string(i) + ".";
      for (size_t at = 0; (at = bytes.find(prompt, at)) != std::string::npos;) {
        bytes[at + 1] = 'x';
      }
    }
    return folder_.Write("golden.safetensors", bytes);
  }

  // Runs the check, which must fail in `names`, and in nothing else.
  void ExpectFailures(const GoldenCheckOptions& options,
                      const std::vector<std::string>& names) {
    Report report(stdout);
    const absl::Status status = RunGoldenCheck(options, &report);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_FALSE(report.ok());
    EXPECT_EQ(report.failures(), names);
    EXPECT_EQ(report.failed(), static_cast<int64_t>(names.size()));
  }

  GoldenCheckOptions Target(const std::string& golden) {
    GoldenCheckOptions options;
    options.golden = golden;
    options.model = GoldenFile("tiny-qwen35-untied");
    return options;
  }

  GoldenCheckOptions Draft(const std::string& golden,
                           const std::string& draft) {
    GoldenCheckOptions options;
    options.golden = golden;
    options.model = GoldenFile("tiny-qwen35");
    options.draft = GoldenFile(draft);
    return options;
  }

  TempFolder folder_;
};

TEST_F(FailuresTest, OneLogitByOnePart) {
  const std::string golden =
      Copy(GoldenFile("tiny-qwen35-untied/golden.safetensors"));
  Replace<float>(golden, "p3.logits", 1234, [](float x) { return x + 0.02f; });
  ExpectFailures(Target(golden), {"p3.logits"});
}

TEST_F(FailuresTest, NotANumber) {
  const std::string golden =
      Copy(GoldenFile("tiny-qwen35-untied/golden.safetensors"));
  Replace<float>(golden, "p2.rec_state.1", 17,
                 [](float) { return std::numeric_limits<float>::quiet_NaN(); });
  Replace<float>(golden, "p3.hidden.2", 0,
                 [](float) { return std::numeric_limits<float>::infinity(); });
  ExpectFailures(Target(golden), {"p2.rec_state.1", "p3.hidden.2"});
}

TEST_F(FailuresTest, GreedyToken) {
  const std::string golden =
      Copy(GoldenFile("tiny-qwen35-untied/golden.safetensors"));
  Replace<int32_t>(golden, "p0.greedy", 47, [](int32_t x) { return x ^ 1; });
  ExpectFailures(Target(golden), {"p0.greedy"});
}

TEST_F(FailuresTest, StateAfterGreedy) {
  const std::string golden =
      Copy(GoldenFile("tiny-qwen35-untied/golden.safetensors"));
  Replace<float>(golden, "p1.after_greedy.conv_state.2", 5,
                 [](float x) { return x + 1; });
  ExpectFailures(Target(golden), {"p1.after_greedy.conv_state.2"});
}

TEST_F(FailuresTest, OldestColumnIsNotCompared) {
  const std::string golden =
      Copy(GoldenFile("tiny-qwen35-untied/golden.safetensors"));
  Replace<float>(golden, "p3.conv_state.0", 4, [](float x) { return x + 1; });
  Report report(nullptr);
  ASSERT_TRUE(RunGoldenCheck(Target(golden), &report).ok());
  EXPECT_TRUE(report.ok());
}

TEST_F(FailuresTest, StateOfALayerThatHasNone) {
  const std::string golden =
      Copy(GoldenFile("tiny-qwen35-untied/golden.safetensors"));
  ReplaceText(golden, "\"p0.rec_state.2\"", "\"p0.rec_state.3\"");
  ReplaceText(golden, "\"p1.hidden.4\"", "\"p1.hidden.9\"");
  ExpectFailures(Target(golden), {"p0.rec_state.3", "p1.hidden.9"});
}

TEST_F(FailuresTest, Router) {
  const std::string golden =
      Copy(GoldenFile("tiny-qwen3next-moe/golden.safetensors"));
  GoldenCheckOptions options = Target(golden);
  options.model = GoldenFile("tiny-qwen3next-moe");
  Replace<float>(golden, "p3.router_logits.2", 77,
                 [](float x) { return x + 0.1f; });
  Replace<int32_t>(golden, "p2.router_topk.3", 3,
                   [](int32_t x) { return x ^ 1; });
  Replace<float>(golden, "p3.router_weights.0", 20,
                 [](float x) { return x + 0.001f; });
  ExpectFailures(options, {"p2.router_topk.3", "p3.router_logits.2",
                           "p3.router_weights.0"});
}

TEST_F(FailuresTest, RouterOfALayerThatHasNone) {
  const std::string golden =
      Copy(GoldenFile("tiny-qwen3next-moe/golden.safetensors"));
  GoldenCheckOptions options = Target(golden);
  options.model = GoldenFile("tiny-qwen3next-moe");
  ReplaceText(golden, "\"p0.router_topk.2\"", "\"p0.router_topk.1\"");
  ReplaceText(golden, "\"p2.router_weights.0\"", "\"p2.router_weights.7\"");
  ExpectFailures(options, {"p0.router_topk.1", "p2.router_weights.7"});
}

TEST_F(FailuresTest, NoPrompt) {
  const std::string golden =
      Copy(GoldenFile("tiny-qwen35-untied/golden.safetensors"));
  ReplaceText(golden, "\"p0.ids\"", "\"p0.idx\"");
  ExpectFailures(Target(golden), {"p0"});
}

TEST_F(FailuresTest, PromptOutsideTheVocabulary) {
  const std::string golden =
      Copy(GoldenFile("tiny-qwen35-untied/golden.safetensors"));
  Replace<int32_t>(golden, "p3.ids", 10, [](int32_t) { return 512; });
  ExpectFailures(Target(golden), {"p3"});
}

TEST_F(FailuresTest, AnotherModel) {
  GoldenCheckOptions options =
      Target(GoldenFile("tiny-qwen35-untied/rigged_b8.safetensors"));
  options.model = GoldenFile("tiny-qwen35");
  Report report(nullptr);
  ASSERT_TRUE(RunGoldenCheck(options, &report).ok());
  EXPECT_FALSE(report.ok());
}

TEST_F(FailuresTest, RolledBackState) {
  const std::string golden =
      Copy(GoldenFile("tiny-qwen35-untied/rigged_b8.safetensors"));
  Replace<float>(golden, "p3.rec_state.0", 4 * 32 * 32 * 2 + 9,
                 [](float x) { return x + 1; });
  Replace<float>(golden, "p3.conv_state.1", 384 * 4 * 10 + 3,
                 [](float x) { return x + 1; });
  ExpectFailures(Target(golden), {"p3.conv_state.1", "p3.rec_state.0"});
}

TEST_F(FailuresTest, Acceptance) {
  const std::string golden =
      Copy(GoldenFile("tiny-qwen35-untied/rigged_b8.safetensors"));
  Replace<int32_t>(golden, "p3.emitted", 20, [](int32_t x) { return x ^ 1; });
  ExpectFailures(Target(golden), {"p3.emitted"});
  Replace<int32_t>(golden, "p3.accept", 2, [](int32_t x) { return x - 1; });
  Report report(nullptr);
  ASSERT_TRUE(RunGoldenCheck(Target(golden), &report).ok());
  EXPECT_TRUE(Contains(report.failures(), "p3.accept"));
}

TEST_F(FailuresTest, DraftScores) {
  const std::string golden =
      Copy(GoldenFile("tiny-qwen35-dflash-trained/golden.safetensors"));
  Replace<float>(golden, "p2.draft_k.1", 3, [](float x) { return x + 0.1f; });
  ExpectFailures(Draft(golden, "tiny-qwen35-dflash-trained"), {"p2.draft_k.1"});
}

TEST_F(FailuresTest, DraftedToken) {
  const std::string golden =
      Copy(GoldenFile("tiny-qwen35-dflash-trained/golden.safetensors"));
  // The last draft of the first block, which is not accepted.
  Replace<int32_t>(golden, "p3.trace.block", 7,
                   [](int32_t x) { return x ^ 1; });
  Report report(nullptr);
  ASSERT_TRUE(
      RunGoldenCheck(Draft(golden, "tiny-qwen35-dflash-trained"), &report)
          .ok());
  EXPECT_TRUE(Contains(report.failures(), "p3.trace.block, drafts"));
  EXPECT_FALSE(Contains(report.failures(), "p3.trace.accept"));
}

TEST_F(FailuresTest, DraftAcceptance) {
  const std::string golden =
      Copy(GoldenFile("tiny-qwen35-dflash-trained/golden.safetensors"));
  Replace<int32_t>(golden, "p3.trace.accept", 3,
                   [](int32_t x) { return x - 1; });
  Replace<int32_t>(golden, "p1.output", 30, [](int32_t x) { return x ^ 1; });
  ExpectFailures(Draft(golden, "tiny-qwen35-dflash-trained"),
                 {"p1.output", "p3.trace.accept"});
}

// The mask of sliding layers is the one that golden_meta.json names.
TEST_F(FailuresTest, AnotherWindow) {
  const std::string golden = folder_.Write(
      "golden.safetensors",
      ReadBytes(
          GoldenFile("tiny-qwen35-dflash-swa/causal/golden.safetensors")));
  folder_.Write("golden_meta.json", R"({"window_mode": "causal"})");
  Report causal(nullptr);
  ASSERT_TRUE(
      RunGoldenCheck(Draft(golden, "tiny-qwen35-dflash-swa"), &causal).ok());
  EXPECT_TRUE(causal.ok());
  std::vector<const char*> modes = {R"("symmetric")", R"("full")", "null"};
  modes.resize(testing::FewerIfEmulated("windows", 3, 1));
  for (const char* mode : modes) {
    folder_.Write("golden_meta.json",
                  std::string(R"({"window_mode": )") + mode + "}");
    Report report(nullptr);
    ASSERT_TRUE(
        RunGoldenCheck(Draft(golden, "tiny-qwen35-dflash-swa"), &report).ok());
    EXPECT_TRUE(Contains(report.failures(), "p3.draft_hidden.0")) << mode;
    EXPECT_TRUE(Contains(report.failures(), "p5.draft_logits")) << mode;
  }
  folder_.Write("golden_meta.json", R"({"window_mode": "wide"})");
  Report report(nullptr);
  EXPECT_EQ(
      RunGoldenCheck(Draft(golden, "tiny-qwen35-dflash-swa"), &report).code(),
      absl::StatusCode::kInvalidArgument);
}

TEST_F(FailuresTest, Operators) {
  struct Change {
    std::string file, tensor;
    float by;
  };
  for (const Change& change :
       std::vector<Change>{{"gated_delta_rule", "gdr4.out", 1e-5f},
                           {"gated_delta_rule", "gdr0.final_state", 1e-4f},
                           {"gated_delta_rule", "gdr5.step_states", 1e-4f},
                           {"causal_conv1d", "conv3.update_out", 1e-4f},
                           {"causal_conv1d", "conv4.prefill_state_out", 1e-3f},
                           {"norms", "norm1.gated_out", 1e-2f},
                           {"norms", "norm2.l2norm_out", 1e-5f},
                           {"norms", "norm0.rmsnorm_out", 1e-3f},
                           {"gates", "beta", 1e-4f},
                           {"gates", "g", 1.0f},
                           {"rope", "rope1.out", 1e-3f}}) {
    const std::string path = Runfile("tests/testdata/ops/" + change.file);
    GoldenCheckOptions options;
    options.golden = Copy(path + ".safetensors");
    folder_.Write("ops_meta.json",
                  ReadBytes(Runfile("tests/testdata/ops/ops_meta.json")));
    Replace<float>(options.golden, change.tensor, 1,
                   [&](float x) { return x + change.by; });
    ExpectFailures(options, {change.tensor});
  }
}

TEST_F(FailuresTest, OperatorWithoutWhatItNeeds) {
  SafetensorsWriter writer;
  writer.AddFloats("norm0.x", {1, 2}, {1, 2});
  writer.AddFloats("norm0.l2norm_out", {1, 3}, {1, 2, 3});
  writer.AddFloats("gdr0.q", {1, 1, 1, 2}, {1, 2});
  writer.AddFloats("conv0.x", {1, 1, 1}, {1});
  writer.AddFloats("conv0.weight", {1, 4}, {1, 2, 3, 4});
  writer.AddFloats("conv0.update_out", {1, 1, 1}, {1});
  writer.AddFloats("rope0.x", {1, 1, 2}, {1, 2});
  GoldenCheckOptions options;
  options.golden = folder_.Write("golden.safetensors", writer.Bytes());
  ExpectFailures(options, {"conv0", "gdr0", "norm0", "rope0"});
}

TEST_F(FailuresTest, ABiasIsNeitherPassedNorFailed) {
  SafetensorsWriter writer;
  writer.AddFloats("conv0.x", {1, 1, 1}, {1});
  writer.AddFloats("conv0.bias", {1}, {1});
  GoldenCheckOptions options;
  options.golden = folder_.Write("golden.safetensors", writer.Bytes());
  Report report(stdout);
  ASSERT_TRUE(RunGoldenCheck(options, &report).ok());
  EXPECT_EQ(report.not_run(), 1);
  EXPECT_EQ(report.passed(), 0);
  EXPECT_FALSE(report.ok());
}

TEST_F(FailuresTest, NothingKnown) {
  SafetensorsWriter writer;
  writer.AddFloats("weights", {2}, {1, 2});
  writer.AddFloats("p0.smell", {2}, {1, 2});
  GoldenCheckOptions options;
  for (const std::string& golden :
       {folder_.Write("golden.safetensors", writer.Bytes()),
        folder_.Write("golden.json", "{}"),
        folder_.Write("list.json", "[1, 2]"), GoldenFile("tiny-qwen35")}) {
    options.golden = golden;
    ExpectFailures(options, {golden});
  }
}

TEST_F(FailuresTest, UnknownTensorsBesideKnownOnes) {
  const std::string golden =
      Copy(GoldenFile("tiny-qwen35-untied/golden.safetensors"));
  ReplaceText(golden, "\"p0.rec_state.2\"", "\"p0.rec_smell.2\"");
  Report report(stdout);
  ASSERT_TRUE(RunGoldenCheck(Target(golden), &report).ok());
  EXPECT_TRUE(report.ok());
}

TEST_F(FailuresTest, Tokenizer) {
  for (const std::string file :
       {"encode.json", "decode_ids.json", "pretokenize.json", "chat.json"}) {
    TempFolder folder;
    folder.CopyFrom(Runfile("tests/testdata/tokenizer"));
    nlohmann::json list = nlohmann::json::parse(ReadBytes(folder / file));
    std::vector<std::string> names;
    if (file == "encode.json") {
      list[3]["mini_qwen3_regex"]["ids"][0] = 7;
      names = {"encode.mini_qwen3_regex.ids", "encode.mini_qwen3_regex.decoded",
               "encode.mini_qwen3_regex.decoded_skip_special"};
    } else if (file == "decode_ids.json") {
      for (nlohmann::json& entry : list) {
        if (entry["tok"] != "mini_qwen35_regex") continue;
        entry["decoded"] = "?";
        break;
      }
      names = {"decode_ids.mini_qwen35_regex.decoded"};
    } else if (file == "pretokenize.json") {
      list[0]["qwen35"][0] = "?";
      names = {"pretokenize.qwen35"};
    } else {
      list[2]["text"] = "?";
      names = {"chat.text"};
    }
    folder.Write(file, list.dump());
    GoldenCheckOptions options;
    options.golden = folder.path();
    ExpectFailures(options, names);
  }
}

TEST_F(FailuresTest, Options) {
  const std::string draft = GoldenFile("tiny-qwen35-dflash/golden.safetensors");
  Report report(nullptr);
  GoldenCheckOptions options;
  EXPECT_EQ(RunGoldenCheck(options, &report).code(),
            absl::StatusCode::kInvalidArgument);
  options.golden = draft;
  EXPECT_EQ(RunGoldenCheck(options, &report).code(),
            absl::StatusCode::kInvalidArgument);
  options.model = GoldenFile("tiny-qwen35");
  EXPECT_EQ(RunGoldenCheck(options, &report).code(),
            absl::StatusCode::kInvalidArgument);
  // A draft where a target belongs, a file that is none, and one that is not
  // there.
  options.draft = GoldenFile("tiny-qwen35-dflash");
  options.model = options.draft;
  EXPECT_FALSE(RunGoldenCheck(options, &report).ok());
  options.model = draft;
  EXPECT_FALSE(RunGoldenCheck(options, &report).ok());
  options.model = folder_ / "nowhere";
  EXPECT_EQ(RunGoldenCheck(options, &report).code(),
            absl::StatusCode::kNotFound);
  options.golden = folder_ / "nowhere";
  EXPECT_EQ(RunGoldenCheck(options, &report).code(),
            absl::StatusCode::kNotFound);
  EXPECT_FALSE(report.ok());
}

}  // namespace
}  // namespace deltaedge
