// SPDX-License-Identifier: Apache-2.0

// What all tools have in common.

#include "tools/cli/program.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/cpu_count.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/demo_pair.h"
#include "tests/testing/program.h"
#include "tests/tools/convert/temp_folder.h"

namespace deltaedge {
namespace {

using testing::DemoPair;
using ::testing::HasSubstr;
using testing::Launch;
using testing::Outcome;
using testing::Program;
using testing::Runfile;
using testing::RunToEnd;
using ::testing::StartsWith;
using testing::TempFolder;

// Each with one of its own flags, and one of another file's if it has any.
const std::vector<std::pair<std::string, std::vector<std::string>>> kTools = {
    {"bench", {"synthetic_acceptance=0", "experts", "draft_tokens=max"}},
    {"convert", {"ignore_unknown_keys=false", "weights=f32"}},
    {"eval", {"recipes=q8,q8w,q4,q4 head=q8 gdn=q8", "text"}},
    {"golden_check", {"golden", "threads=1"}},
    {"inspect", {"tensor", "verify=false"}},
    {"make_random", {"seed=1", "weights=f32"}},
};

Launch Tool(const std::string& name, std::vector<std::string> args) {
  Launch launch;
  launch.path = Runfile("tools/" + name + "/" + name);
  launch.args = std::move(args);
  return launch;
}

TEST(ProgramTest, HelpListsTheToolsFlags) {
  for (const auto& [tool, flags] : kTools) {
    for (const std::vector<std::string>& args :
         std::vector<std::vector<std::string>>{
             {"--help"}, {"-h"}, {"--nosuch", "--help", "word"}}) {
      const Outcome outcome = RunToEnd(Tool(tool, args));
      EXPECT_EQ(outcome.status, 0) << tool;
      EXPECT_EQ(outcome.err, "") << tool;
      EXPECT_THAT(outcome.out, HasSubstr("\n  " + tool + " ")) << "usage";
      for (const std::string& flag : flags) {
        EXPECT_THAT(outcome.out, HasSubstr("\n  --" + flag + "\n")) << tool;
      }
      EXPECT_THAT(outcome.out, ::testing::Not(HasSubstr("--flagfile")));
    }
    EXPECT_THAT(RunToEnd(Tool(tool, {"--helpshort"})).out,
                HasSubstr("Flags from tools/" + tool + "/"));
  }
}

TEST(ProgramTest, WrongFlagsAreErrors) {
  for (const auto& [tool, flags] : kTools) {
    Outcome outcome = RunToEnd(Tool(tool, {"--nosuch=1"}));
    EXPECT_EQ(outcome.status, 1) << tool;
    EXPECT_THAT(outcome.err, HasSubstr("nosuch")) << tool;
    outcome = RunToEnd(Tool(tool, {"one", "two", "three"}));
    EXPECT_EQ(outcome.status, 1) << tool;
    EXPECT_THAT(outcome.err, StartsWith("error: ")) << tool;
  }
}

// Of a kind that no tool can read, named by each flag that names files.
TEST(ProgramTest, FilesThatAreNone) {
  const std::string folder = ::testing::TempDir();
  const std::string fifo = folder + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const std::string cut = folder + "/cut.gdn";
  std::ofstream(cut) << std::ifstream(DemoPair().target).rdbuf();
  ASSERT_EQ(truncate(cut.c_str(), 1 << 20), 0);
  const std::string text = folder + "/text.gdn";
  std::ofstream(text) << std::string(100000, 'x');
  const std::string target = DemoPair().target;
  const std::string out = "--output=" + folder + "/none.gdn";
  for (const std::string& file : {folder + "/missing", folder, fifo,
                                  std::string("/dev/zero"), cut, text}) {
    for (const auto& [tool, args] :
         std::vector<std::pair<std::string, std::vector<std::string>>>{
             {"bench", {"--target=" + file}},
             {"bench", {"--target=" + target, "--draft=" + file}},
             {"convert", {"--input=" + file, out}},
             {"eval", {"--checkpoint=" + file}},
             {"eval", {"--reference=" + file, target}},
             {"eval", {"--reference=" + target, file}},
             {"golden_check", {"--golden=" + file}},
             {"inspect", {file}},
             {"inspect", {file, "--verify"}},
             {"make_random", {"--config=" + file, out}},
             {"make_random",
              {"--shape=qwen3.5-4b", "--draft", "--target=" + file, out}}}) {
      const Outcome outcome = RunToEnd(Tool(tool, args));
      EXPECT_EQ(outcome.status, 1) << tool << " " << args[0];
      EXPECT_THAT(outcome.out + outcome.err, HasSubstr(file))
          << tool << " " << args[0];
    }
  }
  EXPECT_NE(access((folder + "/none.gdn").c_str(), F_OK), 0);
}

TEST(ProgramTest, OutputThatCannotBeWrittenIsAnError) {
  const std::string target = DemoPair().target;
  const std::string text = ::testing::TempDir() + "/text";
  std::ofstream(text) << "some words";
  for (Launch launch :
       {Tool("bench",
             {"--threads=1", "--decode=1", "--rows=0", "--prefill=0",
              "--sessions=0", "--nospec", "--noserving", "--repetitions=1"}),
        Tool("eval", {"--threads=1", "--text=" + text, "--reference=" + target,
                      target}),
        Tool("inspect", {target}), Tool("inspect", {"--help"})}) {
    EXPECT_EQ(RunToEnd(launch).status, 0);
    launch.output_file = "/dev/full";
    EXPECT_EQ(RunToEnd(launch).status, 1) << launch.path;
  }
}

// Models that were made for the run are removed, however it ends.
TEST(ProgramTest, InterruptsLeaveNothingBehind) {
  const TempFolder folder;
  Launch launch = Tool("bench", {"--shape=4b", "--weights=q4", "--threads=1"});
  launch.environment = {"TMPDIR=" + folder.path()};
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    Program bench(launch);
    while (folder.FileCount() == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    bench.Signal(signal);
    EXPECT_EQ(bench.Wait(), 1);
    EXPECT_THAT(bench.err(), StartsWith("error: "));
    EXPECT_EQ(folder.FileCount(), 0u);
  }
}

// By another name neither.
TEST(ProgramTest, MakeRandomReplacesNothingThatItReads) {
  const TempFolder folder;
  const std::string file = folder.Write("file", "precious");
  const std::string link = folder / "link";
  ASSERT_EQ(symlink(file.c_str(), link.c_str()), 0);
  for (const std::string flag : {"--config=", "--target="}) {
    for (const std::string& output : {file, folder.path() + "/./file", link}) {
      std::vector<std::string> args = {flag + file, "--output=" + output};
      if (flag == "--target=") {
        args.insert(args.end(), {"--draft", "--shape=qwen3.5-0.8b"});
      }
      const Outcome outcome = RunToEnd(Tool("make_random", args));
      EXPECT_EQ(outcome.status, 1);
      EXPECT_EQ(outcome.err, "error: " + output +
                                 ": is to be written, but is read as " + file +
                                 "\n");
    }
    std::string text;
    std::ifstream(file) >> text;
    EXPECT_EQ(text, "precious");
  }
}

TEST(ProgramTest, APipeThatNobodyReadsIsAnError) {
  Program bench(Tool(
      "bench", {"--threads=1", "--decode=1", "--rows=0", "--prefill=0",
                "--sessions=0", "--nospec", "--noserving", "--repetitions=1"}));
  bench.CloseOutput();
  EXPECT_EQ(bench.Wait(), 1);
  EXPECT_THAT(bench.err(), HasSubstr("standard output cannot be written"));
}

TEST(ProgramTest, WarnsOfMoreThreadsThanCanRun) {
  const std::string model = Runfile("tests/testdata/models/quant_f32.gdn");
  const std::string text = ::testing::TempDir() + "/text";
  std::ofstream(text) << "two";
  const int cpus = AvailableCpus();
  for (const int threads : {cpus, cpus + 1}) {
    const std::string flag = "--threads=" + std::to_string(threads);
    for (const Launch& launch :
         {Tool("bench",
               {flag, "--target=" + model, "--decode=0", "--rows=0",
                "--prefill=0", "--sessions=0", "--nospec", "--repetitions=1"}),
          Tool("eval", {flag, "--text=" + text, "--context=2",
                        "--reference=" + model, model})}) {
      const Outcome outcome = RunToEnd(launch);
      EXPECT_EQ(outcome.status, 0) << outcome.err;
      if (threads == cpus) {
        EXPECT_EQ(outcome.err, "");
      } else {
        EXPECT_THAT(outcome.err,
                    StartsWith("warning: num_threads is " +
                               std::to_string(threads) + ", of which"));
        EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << "once";
      }
    }
  }
}

TEST(ProgramTest, RelativePathsAreMeantFromWhereBazelRunWasCalled) {
  Launch launch = Tool("inspect", {"target.gdn"});
  EXPECT_EQ(RunToEnd(launch).status, 1);
  const std::string target = DemoPair().target;
  launch.environment = {"BUILD_WORKING_DIRECTORY=" +
                        target.substr(0, target.rfind('/'))};
  const Outcome outcome = RunToEnd(launch);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
}

}  // namespace
}  // namespace deltaedge
