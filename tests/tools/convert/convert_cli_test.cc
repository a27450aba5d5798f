// SPDX-License-Identifier: Apache-2.0

// What convert and make_random say and answer to a shell: their messages go to
// standard error, their status is 0 only if the model file was written.

#include <signal.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/model/model_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/demo_pair.h"
#include "tests/testing/program.h"
#include "tests/tools/convert/temp_folder.h"

namespace deltaedge {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Launch;
using testing::Outcome;
using testing::Program;
using testing::Runfile;
using testing::TempFolder;

using Args = std::vector<std::string>;
using Cases = std::vector<std::pair<Args, std::string>>;

Launch Tool(const std::string& name, const Args& args) {
  Launch launch;
  launch.path = Runfile("tools/" + name + "/" + name);
  launch.args = args;
  return launch;
}

std::string Checkpoint(const std::string& name) {
  return "--input=" + Runfile("tests/testdata/golden/" + name);
}

std::string Config(const std::string& name) {
  return "--config=" + Runfile("tests/testdata/configs/" + name + ".json");
}

template <class Words>
void ExpectMade(const std::string& tool, const Args& args, Words words) {
  const Outcome outcome = testing::RunToEnd(Tool(tool, args));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, words);
}

class ConvertCliTest : public ::testing::Test {
 protected:
  std::string Output(const std::string& name) const {
    return "--output=" + (folder_ / name);
  }
  std::string Target(const std::string& name) const {
    return "--target=" + (folder_ / name);
  }

  // Each with an output that is not to be made.
  void ExpectRefused(const std::string& tool, const Cases& cases) const {
    const size_t files = folder_.FileCount();
    for (auto [args, words] : cases) {
      args.insert(args.begin(), Output("none.gdn"));
      const Outcome outcome = testing::RunToEnd(Tool(tool, args));
      EXPECT_EQ(outcome.status, 1) << words;
      EXPECT_EQ(outcome.out, "") << words;
      EXPECT_THAT(outcome.err, HasSubstr(words));
      EXPECT_EQ(folder_.FileCount(), files) << words;
    }
  }

  const TempFolder folder_;
};

TEST_F(ConvertCliTest, Converts) {
  const std::string target = Checkpoint("tiny-qwen35");
  ExpectMade("convert", {target, Output("t.gdn"), "--weights=f32"},
             HasSubstr("parameters"));
  ExpectMade("convert", {Checkpoint("tiny-qwen35-published/"), Output("p.gdn")},
             HasSubstr("vision"));
  ExpectMade(
      "convert",
      {Checkpoint("tiny-qwen35-dflash"), Output("d.gdn"), Target("t.gdn")},
      HasSubstr("for target"));
  ExpectMade("convert",
             {Checkpoint("tiny-qwen35-dflash-swa"), "--quiet", Output("s.gdn"),
              Target("t.gdn"), "--sliding_mask=symmetric"},
             ::testing::IsEmpty());
  // Types by part: the summary tells each.
  ExpectMade(
      "convert",
      {target, Output("q.gdn"), "--weights=q4", "--head=q8", "--gdn=q8w"},
      AllOf(HasSubstr("embedding, head q8 "), HasSubstr("attention, MLP  q4 "),
            HasSubstr("delta layers    q8w "),
            HasSubstr("small           f32 ")));
  ExpectMade("convert",
             {Checkpoint("tiny-qwen35-dflash"), Output("qd.gdn"),
              Target("q.gdn"), "--weights=q8"},
             HasSubstr("for target"));
}

TEST_F(ConvertCliTest, RefusesToConvert) {
  const std::string target = Checkpoint("tiny-qwen35");
  const std::string draft = Checkpoint("tiny-qwen35-dflash");
  ExpectMade("convert", {target, Output("t.gdn")}, HasSubstr("parameters"));
  ExpectRefused("convert",
                {{{}, "--input is missing"},
                 {{target, "--output="}, "--output is missing"},
                 {{"--inptu=x"}, "'inptu'"},
                 {{target, "more"}, "\"more\""},
                 {{target, "--weights=q5"}, "--weights: \"q5\" is no type"},
                 {{target, "--weights="}, "--weights: \"\" is no type"},
                 {{target, "--head=8"}, "--head: \"8\" is no type"},
                 {{draft, Target("t.gdn"), "--gdn=q8"}, "neither a head"},
                 {{target, "--sliding_mask=both"},
                  "--sliding_mask is \"both\"; allowed is causal or symmetric"},
                 {{target, "--sliding_mask=causal"}, "is for drafts only"},
                 {{target, "--experts=q8"}, "has no experts"},
                 {{draft}, "is a draft"},
                 {{target, Target("t.gdn")}, "is a target"},
                 {{"--input=/nowhere"}, "/nowhere/config.json"},
                 {{target, "--output=/nowhere/x.gdn"}, "/nowhere/x.gdn"},
                 {{target, "--output=" + folder_.path()}, folder_.path()},
                 {{target, "--output=/dev/full"}, "/dev/full"}});
}

TEST_F(ConvertCliTest, MakesRandomModels) {
  ExpectMade("make_random", {Config("t"), "--seed=7", Output("r.gdn")},
             HasSubstr("random target"));
  ExpectMade("make_random",
             {Config("t_draft"), Output("rd.gdn"), Target("r.gdn")},
             HasSubstr("random draft"));
  ExpectMade("make_random",
             {Config("odd"), "--weights=q4", "--head=f32", "--layers=2",
              Output("rq.gdn")},
             HasSubstr("random target"));
}

// A folder for other engines, which gives the same model.
TEST_F(ConvertCliTest, MakesRandomCheckpoints) {
  ExpectMade("make_random",
             {Config("next"), "--bf16", "--seed=7", Output("r.gdn")},
             HasSubstr("random target"));
  ExpectMade("make_random",
             {Config("next"), "--bf16", "--seed=7", "--safetensors",
              "--shard_mib=1", Output("folder")},
             ::testing::IsEmpty());
  ExpectMade("convert", {"--input=" + (folder_ / "folder"), Output("c.gdn")},
             HasSubstr("experts"));
  const auto made = ModelFile::Open(folder_ / "r.gdn");
  const auto converted = ModelFile::Open(folder_ / "c.gdn");
  ASSERT_TRUE(made.ok() && converted.ok());
  EXPECT_EQ((*made)->fingerprint(), (*converted)->fingerprint());
  ExpectMade(
      "make_random",
      {Config("next_draft"), "--safetensors", Output("draft"), Target("r.gdn")},
      ::testing::IsEmpty());
  ExpectMade(
      "convert",
      {"--input=" + (folder_ / "draft"), Output("d.gdn"), Target("r.gdn")},
      HasSubstr("for target"));
  ExpectRefused("make_random",
                {{{Config("next"), "--safetensors", "--weights=q8"},
                  "weights are f32 or bf16"},
                 {{Config("next"), "--safetensors", "--shard_mib=0"},
                  "--shard_mib must be at least 1"}});
}

TEST_F(ConvertCliTest, RefusesToMakeRandomModels) {
  const std::string t = Config("t");
  const std::string draft = Config("t_draft");
  ExpectMade("make_random", {t, Output("r.gdn")}, HasSubstr("random target"));
  ExpectRefused(
      "make_random",
      {{{}, "exactly one of --shape and --config"},
       {{t, "--shape=qwen3.5-4b"}, "exactly one of --shape and --config"},
       {{"--shape=qwen4-1b"}, "known are qwen3.5-0.8b"},
       {{"--shape=qwen3.5-4b", "--draft"}, "--draft needs --target"},
       {{draft, "--draft", Target("r.gdn")}, "--draft is for --shape"},
       {{"--shape=qwen3.5-4b", "--draft", Target("r.gdn")}, "vocab_size"},
       {{t, "--layers=3"},
        "--layers is \"3\"; allowed is 1 to 2, or 0 for all"},
       {{t, "--layers=-1"}, "--layers is \"-1\""},
       {{t, "--layers=1000000000"}, "--layers is \"1000000000\""},
       {{t, "--weights=int8"}, "no type of weights"},
       {{t, "--output="}, "--output is missing"},
       {{draft}, "--target is missing"},
       {{t, Target("r.gdn")}, "for drafts only"},
       {{t, "--seed=-1"}, "seed"},
       {{t, "more"}, "\"more\""}});
}

// A model that takes a while, ended in the middle: nothing is left.
TEST_F(ConvertCliTest, SignalsEndTheWork) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Program program(Tool("make_random", {"--shape=qwen3.5-0.8b", "--weights=q8",
                                         Output("none.gdn")}));
    while (folder_.FileCount() == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    program.Signal(signal);
    EXPECT_EQ(program.Wait(), 1);
    EXPECT_THAT(program.err(), HasSubstr("stopped at tensor"));
    EXPECT_EQ(folder_.FileCount(), 0u);
  }
}

TEST_F(ConvertCliTest, FilesMayBeLimited) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer's runtime dies of a limit";
#endif
  for (const auto& [tool, source] :
       {std::pair("convert", Checkpoint("tiny-qwen35")),
        std::pair("make_random", Config("t"))}) {
    Launch launch = Tool(tool, {source, Output("none.gdn")});
    launch.max_file_bytes = 16 << 10;
    const Outcome outcome = testing::RunToEnd(launch);
    EXPECT_EQ(outcome.status, 1) << tool;
    EXPECT_THAT(outcome.err, HasSubstr("File too large")) << tool;
    EXPECT_EQ(folder_.FileCount(), 0u) << tool;
  }
}

}  // namespace
}  // namespace deltaedge
