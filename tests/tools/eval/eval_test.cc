// SPDX-License-Identifier: Apache-2.0

// The program: its two ways to be called, its output, its errors.

#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/demo_pair.h"
#include "tests/testing/program.h"
#include "tests/tools/convert/gguf_writer.h"
#include "tests/tools/convert/temp_folder.h"

namespace deltaedge {
namespace {

using ::testing::HasSubstr;
using testing::Outcome;

Outcome Eval(std::vector<std::string> args) {
  testing::Launch launch;
  launch.path = testing::Runfile("tools/eval/eval");
  launch.args = std::move(args);
  launch.args.insert(launch.args.begin(), "--threads=1");
  return testing::RunToEnd(launch);
}

std::vector<nlohmann::json> Lines(const std::string& out) {
  std::vector<nlohmann::json> lines;
  for (const auto& text : absl::StrSplit(out, '\n', absl::SkipEmpty())) {
    lines.push_back(nlohmann::json::parse(text.begin(), text.end(),
                                          /*cb=*/nullptr,
                                          /*allow_exceptions=*/false));
    EXPECT_TRUE(lines.back().is_object()) << text;
  }
  return lines;
}

std::string Model(const std::string& name) {
  return testing::Runfile("tests/testdata/models/" + name + ".gdn");
}

TEST(EvalTest, FilesAsJson) {
  const testing::TempFolder folder;
  const std::string text = folder.path() + "/text";
  testing::WriteBytes(text, std::string(200, 'a') + "and so on");
  const Outcome outcome =
      Eval({"--format=json", "--context=64", "--tokens=100", "--text=" + text,
            "--reference=" + Model("quant_f32"),
            "--target=" + Model("quant_f32"), Model("quant_q4")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const std::vector<nlohmann::json> lines = Lines(outcome.out);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["weights"], "quant_f32.gdn");
  EXPECT_EQ(lines[0]["tokens"], 100);
  EXPECT_EQ(lines[0]["kl_max"], 0.0);
  EXPECT_EQ(lines[0]["agreement"], 1.0);
  EXPECT_EQ(lines[0]["perplexity_ratio"], 1.0);
  EXPECT_EQ(lines[0]["perplexity"], lines[0]["reference_perplexity"]);
  EXPECT_EQ(lines[1]["weights"], "quant_q4.gdn");
  EXPECT_LT(lines[1]["file_bytes"], lines[0]["file_bytes"]);
  EXPECT_GT(lines[1]["kl_mean"], 0.0);
  EXPECT_LE(lines[1]["kl_median"], lines[1]["kl_p99"]);
  EXPECT_LE(lines[1]["kl_p99"], lines[1]["kl_max"]);
}

TEST(EvalTest, RecipesOfTheDefaultCheckpoint) {
  const Outcome outcome = Eval({"--tokens=40", "--recipes=q8,q4 head=q8"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const std::vector<std::string> lines =
      absl::StrSplit(outcome.out, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 4u) << outcome.out;
  EXPECT_THAT(lines[0],
              HasSubstr("40 tokens in windows of 512; reference f32"));
  EXPECT_THAT(lines[2], ::testing::StartsWith("q8 "));
  EXPECT_THAT(lines[3], ::testing::StartsWith("q4 head=q8 "));
  for (size_t i = 2; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i].size(), lines[1].size());
  }
}

// The 256 bytes as the letters that stand for them in vocabularies.
std::vector<std::string> ByteTokens() {
  std::vector<std::string> tokens;
  for (int letter = 33; letter < 256 + 68; ++letter) {
    if ((letter > 126 && letter < 161) || letter == 173) continue;
    tokens.push_back(
        letter < 128 ? std::string(1, static_cast<char>(letter))
                     : std::string({static_cast<char>(0xC0 | letter >> 6),
                                    static_cast<char>(0x80 | (letter & 63))}));
  }
  return tokens;
}

// A target of one attention layer, with a token for each byte.
std::string SmallGguf() {
  testing::GgufWriter writer;
  const std::string prefix = "qwen35.";
  writer.Text("general.architecture", "qwen35")
      .F32(prefix + "attention.layer_norm_rms_epsilon", 1e-6f)
      .F32(prefix + "rope.freq_base", 10000.0f)
      .Text("tokenizer.ggml.model", "gpt2")
      .Text("tokenizer.ggml.pre", "qwen35")
      .Texts("tokenizer.ggml.tokens", ByteTokens())
      .I32s("tokenizer.ggml.token_type", std::vector<int32_t>(256, 1))
      .Texts("tokenizer.ggml.merges", {});
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, int>>{{"block_count", 1},
                                                {"full_attention_interval", 1},
                                                {"context_length", 48},
                                                {"embedding_length", 32},
                                                {"feed_forward_length", 32},
                                                {"attention.head_count", 1},
                                                {"attention.head_count_kv", 1},
                                                {"attention.key_length", 32},
                                                {"attention.value_length", 32},
                                                {"ssm.conv_kernel", 4},
                                                {"ssm.state_size", 32},
                                                {"ssm.group_count", 1},
                                                {"ssm.time_step_rank", 1},
                                                {"ssm.inner_size", 32}}) {
    writer.U32(prefix + key, static_cast<uint32_t>(value));
  }
  for (const auto& [name, rows] : std::vector<std::pair<std::string, int>>{
           {"token_embd", 256},
           {"output_norm", 0},
           {"blk.0.attn_norm", 0},
           {"blk.0.post_attention_norm", 0},
           {"blk.0.attn_q", 64},
           {"blk.0.attn_k", 32},
           {"blk.0.attn_v", 32},
           {"blk.0.attn_output", 32},
           {"blk.0.attn_q_norm", 0},
           {"blk.0.attn_k_norm", 0},
           {"blk.0.ffn_gate", 32},
           {"blk.0.ffn_up", 32},
           {"blk.0.ffn_down", 32}}) {
    std::vector<int64_t> shape = {32};
    if (rows > 0) shape.insert(shape.begin(), rows);
    std::vector<float> values;
    for (int i = 0; i < std::max(rows, 1) * 32; ++i) {
      values.push_back(static_cast<float>(i * 7 % 11 - 5) / 16);
    }
    writer.Tensor(name + ".weight", shape, testing::kF32, values);
  }
  return writer.Bytes();
}

TEST(EvalTest, RecipesOfAGgufFile) {
  const testing::TempFolder folder;
  const Outcome outcome = Eval(
      {"--format=json", "--checkpoint=" + folder.Write("m.gguf", SmallGguf()),
       "--recipes=q8", "--text=" + folder.Write("text", "abbaabababba")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const std::vector<nlohmann::json> lines = Lines(outcome.out);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["weights"], "q8");
  EXPECT_EQ(lines[0]["tokens"], 11);
  EXPECT_EQ(lines[0]["context"], 48);
  EXPECT_GT(lines[0]["kl_mean"], 0.0);
}

// As everybody else takes it.
TEST(EvalTest, AnEmptyTmpdirIsNone) {
  testing::Launch launch;
  launch.path = testing::Runfile("tools/eval/eval");
  launch.args = {"--tokens=2", "--recipes=q8"};
  launch.environment = {"TMPDIR=", "TMP", "TEMP", "TEMPDIR"};
  const Outcome outcome = testing::RunToEnd(launch);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
}

TEST(EvalTest, TheDefaultContextShrinksToTheModels) {
  const testing::TempFolder folder;
  const std::string text = folder.path() + "/text";
  testing::WriteBytes(text, std::string(200, 'a'));
  const std::string model = Model("short");
  const Outcome outcome = Eval({"--format=json", "--text=" + text,
                                "--reference=" + model, "--target=" + model});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(Lines(outcome.out)[0]["context"], 60);
}

void ExpectRefused(const testing::Launch& launch, const std::string& message) {
  const Outcome outcome = testing::RunToEnd(launch);
  EXPECT_EQ(outcome.status, 1) << message;
  EXPECT_EQ(outcome.out, "") << message;
  EXPECT_THAT(outcome.err, ::testing::StartsWith("error: ")) << message;
  EXPECT_THAT(outcome.err, HasSubstr(message));
}

TEST(EvalTest, BadFlagsAreNamed) {
  const std::string f32 = Model("quant_f32");
  const std::string reference = "--reference=" + f32;
  const testing::TempFolder folder;
  const std::string fifo = folder / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  for (const auto& [args, message] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--format=xml"}, "--format is \"xml\""},
           {{"--context=1"}, "--context is \"1\"; allowed is 2 to "},
           {{"--context=-1"}, "--context is \"-1\"; allowed is 2 to "},
           {{"--context=1000000000"}, "allowed is 2 to 2048"},
           {{"--context=1000000000", reference, Model("quant_q4")},
            "--context is \"1000000000\"; allowed is 2 to "},
           {{"--context=61", "--reference=" + Model("short"), f32},
            "--context is \"61\"; allowed is 2 to 60"},
           {{"--context=512", "--reference=" + Model("short"), f32},
            "--context is \"512\"; allowed is 2 to 60"},
           {{"--tokens=-1"}, "--tokens is \"-1\"; allowed is 0 to"},
           {{"--threads=257"}, "--threads is \"257\"; allowed is 0 to 256"},
           {{"--threads=-1"}, "--threads is \"-1\"; allowed is 0 to 256"},
           {{"--recipes=q8,q5"}, "\"q5\" is no type of weights"},
           {{"--recipes=q8,"}, "--recipes: a recipe is empty"},
           {{"--recipes="}, "--recipes is \"\"; allowed is at least one"},
           {{"--recipes=q8,q4,q8"}, "allowed is \"q8\" once"},
           {{"--checkpoint=/nonexistent"}, "/nonexistent"},
           {{"--checkpoint=" + f32}, "a checkpoint is a folder or a GGUF file"},
           {{"--checkpoint=" +
             folder.Write("other.gguf", testing::GgufWriter()
                                            .Text("general.architecture", "x")
                                            .Bytes())},
            "general.architecture is \"x\"; supported are qwen35"},
           {{"--text=/nonexistent"}, "/nonexistent: cannot be opened"},
           {{"--text=/"}, "/: is not a regular file"},
           {{"--text=/dev/zero"}, "/dev/zero: is not a regular file"},
           {{"--text=" + fifo}, "fifo: is not a regular file"},
           {{reference}, "--reference needs --target"},
           {{f32}, "--target needs --reference"},
           {{reference, f32, f32}, "allowed is \"" + f32 + "\" once"},
           {{"--checkpoint=x", reference, f32}, "--checkpoint is instead of"},
           {{"--recipes=q8", reference, f32}, "--recipes is instead of"},
           {{"--recipes=q8,q8w,q4,q4 head=q8 gdn=q8", reference, f32},
            "--recipes is instead of"},
           {{reference, Model("t_draft")}, "a draft; only targets"},
           {{"--reference=" + Model("t_draft"), f32}, "a draft; only targets"},
           {{reference, "--target=" + Model("t")}, "of another checkpoint"}}) {
    testing::Launch launch;
    launch.path = testing::Runfile("tools/eval/eval");
    launch.args = args;
    ExpectRefused(launch, message);
  }
}

// Alone in a folder: what is wrong with what the user said comes first.
TEST(EvalTest, TheDictionaryIsMissedOnlyWhereItIsNeeded) {
  const testing::TempFolder folder;
  testing::Launch launch;
  launch.path = folder / "eval";
  std::filesystem::copy_file(testing::Runfile("tools/eval/eval"), launch.path);
  launch.environment = {"RUNFILES_DIR", "RUNFILES_MANIFEST_FILE",
                        "TEST_SRCDIR"};
  ExpectRefused(launch, "say --checkpoint");
  launch.args = {"--context=1"};
  ExpectRefused(launch, "--context is \"1\"");
  launch.args = {"--reference=/nonexistent", Model("quant_q4")};
  ExpectRefused(launch, "/nonexistent");
  launch.args = {"--reference=" + Model("quant_f32")};
  ExpectRefused(launch, "--reference needs --target");
  launch.args = {"--reference=" + Model("quant_f32"), Model("quant_q4")};
  ExpectRefused(launch, "say --text");
}

}  // namespace
}  // namespace deltaedge
