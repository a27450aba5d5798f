// SPDX-License-Identifier: Apache-2.0

// That the benchmark runs and what its output looks like; never how fast.

#include <sys/stat.h>

#include <chrono>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/demo_pair.h"
#include "tests/testing/emulated.h"
#include "tests/testing/program.h"
#include "tests/tools/convert/temp_folder.h"

namespace deltaedge {
namespace {

using ::testing::HasSubstr;
using testing::Outcome;
using testing::TempFolder;
using ::testing::UnorderedElementsAre;

Outcome Bench(const std::string& flags) {
  testing::Launch launch;
  launch.path = testing::Runfile("tools/bench/bench");
  launch.args = absl::StrSplit(flags, ' ', absl::SkipEmpty());
  launch.patience = std::chrono::minutes(4);
  return testing::RunToEnd(launch);
}

std::string Model(const std::string& name) {
  return testing::Runfile("tests/testdata/models/" + name + ".gdn");
}

const char kQuick[] =
    "--threads=1 --decode=3 --max_new_tokens=4 --repetitions=2 --sessions=2 "
    "--rows=1,3 --prefill=5,300 --prompt=5 ";

// The lines of a run with --format=json, each an object.
std::vector<nlohmann::json> Lines(const Outcome& outcome) {
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  std::vector<nlohmann::json> lines;
  for (const auto& text :
       absl::StrSplit(outcome.out, '\n', absl::SkipEmpty())) {
    auto line = nlohmann::json::parse(text.begin(), text.end(),
                                      /*cb=*/nullptr,
                                      /*allow_exceptions=*/false);
    EXPECT_TRUE(line.is_object()) << text;
    if (line.is_object()) lines.push_back(std::move(line));
  }
  return lines;
}

std::set<std::string> Names(const nlohmann::json& line) {
  std::set<std::string> names;
  for (const auto& member : line.items()) names.insert(member.key());
  return names;
}

// What lines of a test have beside what all have.
std::set<std::string> Extras(const nlohmann::json& line) {
  std::set<std::string> names = Names(line);
  for (const char* name :
       {"test", "way", "rollback", "weights", "threads", "draft_tokens", "n",
        "ms_median", "ms_min", "ms_max", "tokens_per_second", "tokens_per_step",
        "ratio", "ratio_min", "ratio_max"}) {
    EXPECT_EQ(names.erase(name), 1u) << name << " in " << line;
  }
  return names;
}

// Of all lines but the first: [test, way, rollback, n, draft_tokens]
using Key = std::vector<std::string>;

std::vector<Key> CheckedKeys(const std::vector<nlohmann::json>& lines,
                             const std::string& weights) {
  std::vector<Key> keys;
  for (size_t i = 1; i < lines.size(); ++i) {
    const nlohmann::json& line = lines[i];
    EXPECT_EQ(line["weights"], weights);
    EXPECT_EQ(line["threads"], 1);
    EXPECT_LE(line["ms_min"], line["ms_median"]);
    EXPECT_LE(line["ms_median"], line["ms_max"]);
    EXPECT_GT(line["tokens_per_second"], 0.0);
    EXPECT_LE(line["ratio_min"], line["ratio_max"]);
    keys.push_back({line["test"], line["way"], line["rollback"],
                    line["n"].dump(), line["draft_tokens"].dump()});
  }
  return keys;
}

TEST(BenchTest, JsonLines) {
  const std::vector<nlohmann::json> lines = Lines(Bench(
      std::string(kQuick) + "--format=json --draft_tokens=max,auto --target=" +
      Model("t") + " --draft=" + Model("t_draft")));
  ASSERT_FALSE(lines.empty());
  EXPECT_THAT(
      Names(lines[0]),
      UnorderedElementsAre("test", "model", "weights", "threads", "cpu",
                           "kernels", "products", "packed_weights",
                           "draft_block", "weight_bytes_per_token",
                           "state_bytes_per_token", "kv_bytes_per_position",
                           "thread_placement", "read_gb_per_second",
                           "read_gb_per_second_min", "read_gb_per_second_max"));
  EXPECT_EQ(lines[0]["test"], "setup");
  const std::string k = std::to_string(lines[0]["draft_block"].get<int>() - 1);
  EXPECT_THAT(CheckedKeys(lines, "f32"),
              ::testing::ElementsAre(
                  Key{"decode", "plain", "journal", "3", "0"},
                  Key{"decode", "plain", "slots", "3", "0"},
                  Key{"rows", "step", "journal", "1", "0"},
                  Key{"rows", "step", "journal", "3", "2"},
                  Key{"rows", "step", "slots", "1", "0"},
                  Key{"rows", "step", "slots", "3", "2"},
                  Key{"prefill", "plain", "journal", "5", "0"},
                  Key{"prefill", "plain", "journal", "300", "0"},
                  Key{"spec", "plain", "journal", "4", "0"},
                  Key{"spec", "drafts", "journal", "4", k},
                  Key{"spec", "drafts", "slots", "4", k},
                  Key{"spec", "drafts", "journal", "4", "\"auto\""},
                  Key{"spec", "drafts", "slots", "4", "\"auto\""},
                  Key{"sessions", "apart", "journal", "2", "0"},
                  Key{"sessions", "together", "journal", "2", "0"},
                  Key{"sessions", "apart", "journal", "2", k},
                  Key{"sessions", "together", "journal", "2", k},
                  Key{"sessions", "apart", "journal", "2", "\"auto\""},
                  Key{"sessions", "together", "journal", "2", "\"auto\""}));
  for (size_t i = 1; i < lines.size(); ++i) {
    const nlohmann::json& line = lines[i];
    const std::set<std::string> extras = Extras(line);
    if (line["test"] == "decode") {
      EXPECT_THAT(extras,
                  UnorderedElementsAre(
                      "share_of_roofline", "share_of_roofline_min",
                      "share_of_roofline_max", "read_gb_per_second",
                      "read_gb_per_second_min", "read_gb_per_second_max",
                      "bookkeeping_percent", "bookkeeping_percent_min",
                      "bookkeeping_percent_max"));
      EXPECT_GT(line["share_of_roofline"], 0.0);
      EXPECT_LT(line["bookkeeping_percent"], 100.0) << "no launch was seen";
    } else if (line["test"] == "rows") {
      EXPECT_THAT(extras,
                  UnorderedElementsAre("position", "r", "r_min", "r_max"));
      EXPECT_EQ(line["position"], 256);
      EXPECT_EQ(line["tokens_per_step"], line["n"]);
      EXPECT_EQ(line["r"] == 1.0, line["n"] == 1);
    } else if (line["test"] == "prefill") {
      EXPECT_THAT(extras, UnorderedElementsAre("share_of_product_rate",
                                               "share_of_product_rate_min",
                                               "share_of_product_rate_max"));
      EXPECT_GT(line["share_of_product_rate"], 0.0);
    } else {
      EXPECT_EQ(extras.count("bookkeeping_percent"), line["test"] == "spec");
      EXPECT_EQ(extras.size(), line["test"] == "spec" ? 3u : 0u);
      EXPECT_GE(line["tokens_per_step"], 1.0);
    }
  }
}

// Answers are what they are without drafts, or the tool fails.
TEST(BenchTest, SyntheticAcceptanceIsExactAndSaysSo) {
  for (const double wanted : {1.0, 2.5, 4.0}) {
    const std::vector<nlohmann::json> lines = Lines(
        Bench("--format=json --threads=1 --decode=0 --rows=0 --prefill=0 "
              "--sessions=2 "
              "--max_new_tokens=9 --repetitions=2 --prompt=5 --draft_tokens=3 "
              "--synthetic_acceptance=" +
              std::to_string(wanted) + " --target=" + Model("t") +
              " --draft=" + Model("t_draft")));
    ASSERT_FALSE(lines.empty());
    EXPECT_EQ(lines[0]["synthetic_acceptance"], wanted);
    int synthetic = 0;
    for (size_t i = 1; i < lines.size(); ++i) {
      if (lines[i]["draft_tokens"] == 0) {
        EXPECT_EQ(Extras(lines[i]).count("synthetic_acceptance"), 0u);
        EXPECT_EQ(lines[i]["tokens_per_step"], 1.0);
      } else {
        ++synthetic;
        EXPECT_EQ(lines[i]["synthetic_acceptance"], wanted);
        EXPECT_EQ(lines[i]["tokens_per_step"], wanted);
      }
    }
    EXPECT_EQ(synthetic, 4) << "spec with both rollbacks, sessions both ways";
  }
}

TEST(BenchTest, ServingAnswersThePromptsOfAFile) {
  const TempFolder folder;
  const std::string prompts = folder.Write(
      "prompts", "Tell me.\n\n{\"prompt\": \"And\\nwhy?\", \"id\": 3}\n");
  const std::string flags =
      "--format=json --threads=1 --decode=0 --rows=0 --prefill=0 --sessions=0 "
      "--nospec --max_new_tokens=6 --repetitions=" +
      testing::FewerIfEmulated<std::string>("repetitions", "2", "1") +
      " --prompts=" + prompts + " --target=" + testing::DemoPair().target;
  const auto plain_extras = UnorderedElementsAre(
      "max_new_tokens", "output_tokens", "time_to_first_token_ms",
      "time_to_first_token_ms_min", "time_to_first_token_ms_max",
      "time_per_output_token_ms", "time_per_output_token_ms_min",
      "time_per_output_token_ms_max");
  const auto without = Lines(Bench(flags));
  ASSERT_EQ(CheckedKeys(without, "f32"),
            std::vector<Key>({{"serving", "plain", "journal", "2", "0"}}));
  EXPECT_THAT(Extras(without[1]), plain_extras);

  const auto lines =
      Lines(Bench(flags + " --draft=" + testing::DemoPair().draft +
                  " --draft_tokens=2 --synthetic_acceptance=2"));
  ASSERT_EQ(CheckedKeys(lines, "f32"),
            std::vector<Key>({{"serving", "plain", "journal", "2", "0"},
                              {"serving", "drafts", "journal", "2", "2"}}));
  EXPECT_THAT(Extras(lines[1]), plain_extras);
  std::set<std::string> extras = Extras(lines[2]);
  for (const char* name :
       {"synthetic_acceptance", "acceptance_rate", "acceptance_at"}) {
    EXPECT_EQ(extras.erase(name), 1u) << name;
  }
  EXPECT_THAT(extras, plain_extras);
  for (const size_t i : {1, 2}) {
    EXPECT_EQ(lines[i]["max_new_tokens"], 6);
    EXPECT_EQ(lines[i]["output_tokens"], without[1]["output_tokens"]);
    EXPECT_GT(lines[i]["time_to_first_token_ms"], 0.0);
  }
  // Of every two drafts the first is right; a third step has room for one.
  EXPECT_EQ(lines[2]["acceptance_at"], nlohmann::json({1.0, 0.0}));
  EXPECT_EQ(lines[2]["acceptance_rate"], 0.6);
}

TEST(BenchTest, ModelsWithExperts) {
  const std::vector<nlohmann::json> lines = Lines(
      Bench(std::string(kQuick) + "--format=json --target=" + Model("moe")));
  std::set<std::string> tests;
  for (const nlohmann::json& line : lines) {
    tests.insert(line["test"]);
    if (line["test"] == "prefill") {
      EXPECT_THAT(Extras(line), ::testing::IsEmpty());
    }
  }
  EXPECT_THAT(tests, UnorderedElementsAre("setup", "decode", "rows", "prefill",
                                          "sessions"));
}

// Little else: the vocabulary of published models makes one layer large.
TEST(BenchTest, ModelsOfAShapeAreKeptAndFoundAgain) {
  if (testing::Emulated()) {
    GTEST_SKIP() << "emulated: no published shape, whose vocabulary alone "
                    "takes minutes";
  }
  const TempFolder folder;
  const std::string flags =
      "--shape=0.8b --layers=1 --weights=q8 --gdn=q4 --threads=1 --decode=0 "
      "--rows=0 --sessions=0 --repetitions=1 --rollback=journal "
      "--max_new_tokens=1 --model_folder=" +
      folder.path();
  const std::string base = folder / "qwen3.5-0.8b-1_layers-";
  const Outcome target = Bench(flags + " --prefill=3 --nospec");
  ASSERT_EQ(target.status, 0) << target.err;
  EXPECT_THAT(target.err, HasSubstr(base + "q8-gdn_q4.gdn: made\n"));
  EXPECT_THAT(target.out, HasSubstr("weights: q8,gdn=q4\n"));
  const Outcome draft = Bench(flags + " --prefill=0 --spec");
  ASSERT_EQ(draft.status, 0) << draft.err;
  EXPECT_THAT(draft.err, HasSubstr(base + "q8-gdn_q4.gdn: used again\n"));
  EXPECT_THAT(draft.err, HasSubstr(base + "draft-q8.gdn: made\n"));
  EXPECT_THAT(draft.out, HasSubstr("draft_block: 16\n"));
}

TEST(BenchTest, TableOfTheDefaultPair) {
  const TempFolder folder;
  std::string flags =
      "--threads=1 --decode=2 --repetitions=1 --sessions=0 --rows=0 "
      "--prefill=0 --max_new_tokens=2 --rollback=slots";
  if (testing::FewerIfEmulated<std::string>("questions", "all", "one") ==
      "one") {
    flags += " --prompts=" + folder.Write("one", "What is a dog?\n");
  }
  const Outcome outcome = Bench(flags);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  std::vector<std::string> lines =
      absl::StrSplit(outcome.out, '\n', absl::SkipEmpty());
  while (!lines.empty() && lines[0].find("tokens/s") == std::string::npos) {
    EXPECT_THAT(lines[0], HasSubstr(": "));
    lines.erase(lines.begin());
  }
  ASSERT_EQ(lines.size(), 6u) << outcome.out;
  EXPECT_THAT(lines[5], HasSubstr("acceptance_at "));
  EXPECT_THAT(lines[1], HasSubstr("share_of_roofline "));
  for (size_t i = 1; i < lines.size(); ++i) {
    EXPECT_THAT(lines[i], HasSubstr("slots"));
    EXPECT_GE(lines[i].size() + 6, lines[0].size());
  }
}

void ExpectRefused(const std::string& flags, const std::string& message) {
  const Outcome outcome = Bench(flags);
  EXPECT_EQ(outcome.status, 1) << flags;
  EXPECT_EQ(outcome.out, "") << flags << ": nothing was measured";
  EXPECT_THAT(outcome.err, ::testing::StartsWith("error: ")) << flags;
  EXPECT_THAT(outcome.err, HasSubstr(message)) << flags;
}

TEST(BenchTest, BadFlagsAreNamed) {
  const std::string pair =
      " --target=" + Model("t") + " --draft=" + Model("t_draft");
  for (const auto& [flags, message] :
       std::vector<std::pair<std::string, std::string>>{
           {"--format=xml", "--format is \"xml\""},
           {"--draft_tokens=most",
            "--draft_tokens is \"most\"; allowed is 1 to 15, max or auto"},
           {"--draft_tokens=15",
            "--draft_tokens is \"15\"; allowed is 1 to 7 with this draft"},
           {"--draft_tokens=2 --target=" + Model("t"),
            "--draft_tokens needs a draft"},
           {"--draft_tokens=max --target=" + Model("t"),
            "--draft_tokens needs a draft"},
           {"--draft_tokens=2 --nospec --sessions=0 --noserving",
            "--draft_tokens needs a draft, and --spec"},
           {"--synthetic_acceptance=2 --target=" + Model("t"),
            "--synthetic_acceptance needs a draft"},
           {"--synthetic_acceptance=4 --draft_tokens=2",
            "--synthetic_acceptance is \"4\"; allowed is at most 3"},
           {"--noserving --prompts=x", "--prompts needs --serving"},
           {"--prompt=5", "--prompt is not for the dictionary"},
           {"--prompt=64", "--prompt is not for the dictionary"},
           {"--packed_weights=disk", "--packed_weights is \"disk\""},
           {"--weights=q8", "--weights is for --shape"},
           {"--weights=f32", "--weights is for --shape"},
           {"--experts=q8", "--experts is for --shape"},
           {"--shape=1b", "\"qwen3.5-1b\" is no known shape"},
           {"--shape=0.8b --weights=q2", "--weights"},
           {"--shape=35b-a3b --experts=q2", "--experts"},
           {"--shape=0.8b --target=x.gdn", "exclude each other"},
           {"--shape=0.8b --draft=x.gdn", "--draft needs --target"},
           {"--shape=0.8b --layers=1 --model_folder=/nonexistent",
            "/nonexistent/"},
           {"--draft=x.gdn", "--draft needs --target"},
           {"--target=/nonexistent.gdn", "nonexistent.gdn"},
           {"--target=/dev/zero", "not a regular file"},
           {"--target=" + testing::DemoPair().draft, "--target wants a target"},
           {"--target=" + Model("t") + " --draft=" + Model("t"),
            "--draft wants a draft"},
           {"fast", "\"fast\" is not expected"}}) {
    ExpectRefused(flags, message);
  }
}

// Before anything is allocated, made or loaded for it.
TEST(BenchTest, CountsHaveBounds) {
  const std::string target = " --target=" + Model("t");
  for (const auto& [flag, allowed] :
       std::vector<std::pair<std::string, std::string>>{
           {"threads", "0 to 256"},
           {"decode", "0 to"},
           {"rows", "1 to 16"},
           {"prefill", "1 to"},
           {"sessions", "0 to 64"},
           {"max_new_tokens", "1 to"},
           {"prompt", "1 to"},
           {"repetitions", "1 to 10000"}}) {
    ExpectRefused("--" + flag + "=-1" + target,
                  "--" + flag + " is \"-1\"; allowed is " + allowed);
    for (const std::string& models :
         {target, std::string(" --shape=27b"),
          std::string(" --shape=35b-a3b --layers=2")}) {
      ExpectRefused("--" + flag + "=1000000000" + models,
                    "--" + flag + " is \"1000000000\"; allowed is ");
    }
    for (const char* junk : {"1e9", "x", "nan", "99999999999"}) {
      const Outcome outcome = Bench("--" + flag + "=" + junk + target);
      EXPECT_EQ(outcome.status, 1) << flag;
      EXPECT_THAT(outcome.err, HasSubstr(flag));
      EXPECT_THAT(outcome.err, HasSubstr(junk));
    }
  }
  for (const char* layers : {"-1", "25", "1000000000"}) {
    ExpectRefused(std::string("--shape=0.8b --layers=") + layers,
                  std::string("--layers is \"") + layers +
                      "\"; allowed is 1 to 24, or 0 for all");
  }
  for (const char* mean : {"0.5", "-1", "nan", "inf", "16.5", "1e9"}) {
    ExpectRefused(std::string("--synthetic_acceptance=") + mean,
                  "; allowed is 1 to 16, or 0 for none");
  }
  ExpectRefused("--decode=32769 --shape=27b", "allowed is 0 to 32768");
  // What the prompt and a model have room for: 2048 tokens.
  const std::string demo = " --target=" + testing::DemoPair().target;
  ExpectRefused("--prompt=1000 --decode=1033" + demo,
                "allowed is at most 1032 behind a prompt of 1000 tokens");
  ExpectRefused("--prompt=2032" + demo, "allowed is 1 to 2031");
  ExpectRefused("--prefill=5,2048" + demo,
                "--prefill is \"2048\"; allowed is 1 to 2047");
  ExpectRefused("--max_new_tokens=2030", "--max_new_tokens is \"2030\"");
}

TEST(BenchTest, DefaultsShrinkToAShortContext) {
  const std::string flags = " --target=" + Model("short");
  EXPECT_THAT(
      CheckedKeys(Lines(Bench("--format=json --threads=1 "
                              "--repetitions=1 --rollback=journal" +
                              flags)),
                  "f32"),
      ::testing::ElementsAre(Key{"decode", "plain", "journal", "22", "0"},
                             Key{"prefill", "plain", "journal", "59", "0"},
                             Key{"sessions", "apart", "journal", "4", "0"},
                             Key{"sessions", "together", "journal", "4", "0"}));
  ExpectRefused("--prefill=60" + flags, "allowed is 1 to 59");
  ExpectRefused("--prompt=44" + flags, "allowed is 1 to 43");
  ExpectRefused("--decode=23" + flags, "allowed is at most 22 behind");
  ExpectRefused("--rows=2" + flags, "--rows needs a model with room for 66");
  // Given by hand, the defaults are like any other values.
  ExpectRefused("--prefill=128,512" + flags, "allowed is 1 to 59");
  ExpectRefused("--prompt=64" + flags, "allowed is 1 to 43");
  ExpectRefused("--decode=64" + flags, "--decode is \"64\"; allowed is");
  ExpectRefused("--max_new_tokens=64" + flags,
                "--max_new_tokens is \"64\"; allowed is");
  ExpectRefused("--rows=1,2,4,8,16" + flags, "--rows needs a model");
}

TEST(BenchTest, ListsHaveElementsAndNoneTwice) {
  for (const char* flag :
       {"threads", "rows", "prefill", "draft_tokens", "rollback"}) {
    const std::string name = std::string("--") + flag;
    ExpectRefused(name + "=", name + " is \"\"; allowed is at least one");
    ExpectRefused(name + "=1,", name + " is \"");
    ExpectRefused(name + "=1,1", name + " is \"1,1\"; allowed is \"1\" once");
  }
}

TEST(BenchTest, FilesOfPromptsAreRegularAndSound) {
  const TempFolder folder;
  const std::string fifo = folder / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const std::string longer(3000, 'a');
  for (const auto& [file, message] :
       std::vector<std::pair<std::string, std::string>>{
           {"/nonexistent", "/nonexistent: cannot be opened"},
           {fifo, "fifo: is not a regular file"},
           {"/dev/zero", "/dev/zero: is not a regular file"},
           {folder.path(), "is not a regular file"},
           {folder.Write("empty", ""), "empty: no prompt in it"},
           {folder.Write("bytes", "fine\nbroken \xff\n"),
            "bytes: line 2 is not UTF-8"}}) {
    ExpectRefused("--prompts=" + file, message);
  }
  const Outcome outcome = Bench(
      "--threads=1 --decode=0 --rows=0 --prefill=0 --sessions=0 --nospec "
      "--prompts=" +
      folder.Write("long", "fine\n\n" + longer + "\n"));
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("long: line 3: has "));
  EXPECT_THAT(outcome.err, HasSubstr("no room for --max_new_tokens=64"));
}

}  // namespace
}  // namespace deltaedge
