// SPDX-License-Identifier: Apache-2.0

// Drives the chat program as its users do: by flags, pipes and a terminal.

#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <chrono>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/cpu_count.h"
#include "gtest/gtest.h"
#include "tests/testing/demo_pair.h"
#include "tests/testing/emulated.h"
#include "tests/testing/program.h"

namespace deltaedge {
namespace {

using testing::Launch;
using testing::Outcome;
using testing::Program;
using testing::Runfile;

using Args = std::vector<std::string>;

const char kHello[] =
    "Hello! I am a small dictionary assistant. Which word shall I explain?\n";
const char kDog[] =
    "A dog is a member of the genus Canis that has been domesticated by man "
    "since prehistoric times.\n";
const char kCat[] =
    "A cat is a feline mammal usually having thick soft fur and no ability to "
    "roar.\n";

Launch Chat(const Args& args) {
  Launch launch;
  launch.path = Runfile("examples/chat/chat");
  launch.args = {"--threads=1"};
  launch.args.insert(launch.args.end(), args.begin(), args.end());
  return launch;
}

Launch Endless(const Args& args) {
  Launch launch = Chat(args);
  launch.args.push_back("--target=" + Runfile("tests/examples/endless.gdn"));
  return launch;
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string Folder(const std::string& name) {
  const std::string path = ::testing::TempDir() + "/" + name;
  mkdir(path.c_str(), 0755);
  return path;
}

std::string WriteFile(const std::string& name, const std::string& bytes) {
  const std::string path = ::testing::TempDir() + "/" + name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void Link(const std::string& from, const std::string& to) {
  unlink(from.c_str());
  ASSERT_EQ(symlink(to.c_str(), from.c_str()), 0) << from;
}

// The number in front of `unit` in a line that begins with `title`; -1: none.
double Figure(const std::string& stats, const std::string& title,
              const std::string& unit) {
  std::istringstream lines(stats);
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, title.size(), title) != 0) continue;
    const size_t end = line.find(unit);
    if (end == std::string::npos || end == 0) return -1;
    size_t begin = line.find_last_not_of(' ', end - 1) + 1;
    while (begin > 0 && (isdigit(static_cast<unsigned char>(line[begin - 1])) ||
                         line[begin - 1] == '.')) {
      --begin;
    }
    return atof(line.c_str() + begin);
  }
  return -1;
}

// --- One question
// --------------------------------------------------------------

TEST(Prompt, OnlyTheReplyIsOnStandardOutput) {
  const Outcome outcome = RunToEnd(Chat({"--prompt", "Hello!"}));
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.out, kHello);
  EXPECT_EQ(outcome.err, "");
}

TEST(Prompt, StandardInputIsNotRead) {
  Launch launch = Chat({"--prompt=Hello!"});
  launch.input_file = "closed";
  EXPECT_EQ(RunToEnd(launch).out, kHello);
}

TEST(Prompt, StatsTellSpeedAcceptanceAndTime) {
  const Outcome outcome = RunToEnd(
      Chat({"--prompt=What is a dog?", "--stats", "--draft_tokens=7"}));
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.out, kDog);
  EXPECT_EQ(Figure(outcome.err, "prompt", "tokens,"), 13) << outcome.err;
  EXPECT_GT(Figure(outcome.err, "prompt", "tokens/s"), 0) << outcome.err;
  EXPECT_EQ(Figure(outcome.err, "decoding", "tokens,"), 27) << outcome.err;
  EXPECT_GT(Figure(outcome.err, "decoding", "tokens/s"), 0) << outcome.err;
  EXPECT_GT(Figure(outcome.err, "drafts", "tokens per step"), 2) << outcome.err;
  EXPECT_GT(Figure(outcome.err, "drafts", "%)"), 0) << outcome.err;
  for (const char* part : {"prompt ", "draft ", "verify ", "accept "}) {
    EXPECT_TRUE(Has(outcome.err, part)) << outcome.err;
  }
  EXPECT_GT(Figure(outcome.err, "time", "ms:"), 0) << outcome.err;
  EXPECT_FALSE(Has(outcome.err, "seed")) << "nothing is drawn";
}

// Who drafted, how much and why, whatever was asked for.
TEST(Prompt, StatsTellWhatWasDraftedAndWhy) {
  struct Case {
    Args args;
    std::vector<std::string> parts;
  };
  std::vector<Case> cases = {
      {{"--draft_tokens=0"}, {"0 of 0 accepted", "          none, as asked"}},
      {{"--draft_tokens=3"},
       {"          always 3 by the draft model, as asked for\n",
        "last step: 3 drafts by the draft model, as asked for\n"}},
      {{"--draft_tokens=3", "--lookup"},
       {"          always 3 by looking up the text, as asked for\n",
        "last step: 3 drafts by looking up the text, as asked for\n"}},
      {{"--lookup"}, {"          by looking up the text, as many as pay\n"}},
      {{},
       {"          by the draft model or by looking up the text, as many as "
        "pay\n",
        "last step: "}},
      {{"--target=" + testing::DemoPair().target},
       {"          none: there is no draft model, and no --lookup"}}};
  cases.resize(testing::FewerIfEmulated("choices told", 6, 4));
  for (const Case& test : cases) {
    // Twice, so that there is something to look up.
    const Outcome outcome =
        RunToEnd(Chat(test.args), "What is a dog?\nWhat is a dog?\n/stats\n");
    EXPECT_EQ(outcome.status, 0);
    for (const std::string& part : test.parts) {
      EXPECT_TRUE(Has(outcome.err, part)) << part << "\n" << outcome.err;
    }
  }
}

// An answer that hardly anything but its seed decides.
Outcome Warm(const Args& more) {
  Args args = {"--prompt=What is a dog?",
               "--temperature=4",
               "--top_k=40",
               "--top_p=0.98",
               "--min_p=0.0001",
               "--repetition_penalty=1.1",
               "--presence_penalty=0.2",
               "--frequency_penalty=0.1",
               "--max_new_tokens=" +
                   testing::FewerIfEmulated<std::string>("tokens", "40", "12"),
               "--stats"};
  args.insert(args.end(), more.begin(), more.end());
  Outcome outcome = RunToEnd(Chat(args));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return outcome;
}

TEST(Prompt, TheSameSeedGivesTheSameAnswerWhateverIsDrafted) {
  const Outcome outcome = Warm({"--seed=18446744073709551615"});
  EXPECT_NE(outcome.out, kDog);
  EXPECT_TRUE(Has(outcome.err, "seed 18446744073709551615\n")) << outcome.err;
  EXPECT_NE(Warm({"--seed=1"}).out, outcome.out);
  for (const Args& same : {Args{}, Args{"--draft_tokens=0"},
                           Args{"--draft_tokens=3", "--rollback=slots"}}) {
    Args args = same;
    args.push_back("--seed=18446744073709551615");
    EXPECT_EQ(Warm(args).out, outcome.out);
  }
}

TEST(Prompt, ASeedThatWasDrawnIsToldAndGivesTheAnswerAgain) {
  const Outcome outcome = Warm({});
  const size_t begin = outcome.err.find("seed ");
  ASSERT_NE(begin, std::string::npos) << outcome.err;
  const std::string seed =
      outcome.err.substr(begin + 5, outcome.err.find('\n', begin) - begin - 5);
  EXPECT_EQ(Warm({"--seed=" + seed}).out, outcome.out);
}

// Each flag leads a hot answer back to the greedy one, or away from it.
TEST(Prompt, SamplingFlagsTakeEffect) {
  for (const char* flag : {"--top_k=1", "--top_p=0.000001", "--min_p=1"}) {
    const Outcome outcome = RunToEnd(
        Chat({"--prompt=What is a dog?", "--temperature=5", "--seed=3", flag}));
    EXPECT_EQ(outcome.out, kDog) << flag;
  }
  for (const char* flag :
       {"--temperature=5", "--repetition_penalty=5", "--presence_penalty=-90",
        "--frequency_penalty=-90"}) {
    const Outcome outcome = RunToEnd(Chat(
        {"--prompt=What is a dog?", "--seed=3", flag, "--max_new_tokens=30"}));
    EXPECT_EQ(outcome.status, 0);
    EXPECT_NE(outcome.out, kDog) << flag;
  }
}

TEST(Prompt, StopTextsEndTheAnswerBeforeThem) {
  for (const char* stop : {"--stop= that has", "--stop=never, that has,man"}) {
    for (const char* drafts : {"--draft_tokens=auto", "--draft_tokens=0"}) {
      const Outcome outcome =
          RunToEnd(Chat({"--prompt=What is a dog?", stop, drafts}));
      EXPECT_EQ(outcome.status, 0);
      EXPECT_EQ(outcome.out, "A dog is a member of the genus Canis\n");
      EXPECT_EQ(outcome.err, "");
    }
  }
  // Held back to the end.
  EXPECT_EQ(RunToEnd(Chat({"--prompt=What is a dog?", "--stop=times.x"})).out,
            kDog);
}

TEST(Prompt, SystemMessageIsPartOfThePrompt) {
  const Args question = {"--prompt=What is a dog?", "--stats"};
  Args with_system = question;
  with_system.push_back("--system=You are a dictionary.");
  const double plain =
      Figure(RunToEnd(Chat(question)).err, "prompt", "tokens,");
  const Outcome outcome = RunToEnd(Chat(with_system));
  EXPECT_EQ(outcome.status, 0);
  EXPECT_GT(Figure(outcome.err, "prompt", "tokens,"), plain) << outcome.err;
}

TEST(Prompt, LimitsAreTold) {
  Outcome outcome =
      RunToEnd(Chat({"--prompt=What is a dog?", "--max_new_tokens=3"}));
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.out, "A dog is\n");
  EXPECT_EQ(outcome.err, "(cut at --max_new_tokens)\n");

  outcome = RunToEnd(Chat({"--prompt=What is a dog?", "--max_context=15"}));
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.out, "A dog\n");
  EXPECT_EQ(outcome.err, "(cut: the context is full)\n");
}

TEST(Prompt, ReasoningIsNotPartOfTheReply) {
  const Outcome outcome = RunToEnd(Chat({"--prompt=Hello!", "--thinking=on"}));
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.out, kHello);
  EXPECT_FALSE(Has(outcome.err, "think>")) << outcome.err;
}

TEST(Prompt, ControlTokensAreNotPrinted) {
  Launch launch = Chat({"--prompt=Hello!", "--max_new_tokens=100", "--stats",
                        "--target=" + Runfile("tests/examples/mute.gdn")});
  const Outcome outcome = RunToEnd(launch);
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(Figure(outcome.err, "decoding", "tokens,"), 100) << outcome.err;
  EXPECT_FALSE(Has(outcome.out, "<|")) << outcome.out;
  EXPECT_LT(outcome.out.size(), 50u) << outcome.out;
}

TEST(Prompt, TypedControlTokensAreText) {
  const Outcome typed =
      RunToEnd(Chat({"--prompt=Hello!<|im_end|>", "--stats"}));
  EXPECT_EQ(typed.status, 0);
  const Outcome plain = RunToEnd(Chat({"--prompt=Hello!", "--stats"}));
  EXPECT_GE(Figure(typed.err, "prompt", "tokens,"),
            Figure(plain.err, "prompt", "tokens,") + 3)
      << typed.err;
}

TEST(Prompt, InterruptEndsTheProgram) {
  Program chat(Endless({"--prompt=Hello!", "--max_new_tokens=1000000"}));
  chat.WaitForOut("\xEF\xBF\xBD");
  chat.Signal(SIGINT);
  EXPECT_EQ(chat.Wait(), -SIGINT);
}

TEST(Prompt, OutputThatCannotBeWrittenIsAnError) {
  Launch launch = Chat({"--prompt=Hello!"});
  for (const char* file : {"/dev/full", "closed"}) {
    launch.output_file = file;
    const Outcome outcome = RunToEnd(launch);
    EXPECT_EQ(outcome.status, 1) << file;
    EXPECT_TRUE(Has(outcome.err, "standard output")) << outcome.err;
  }
}

TEST(Prompt, OutputThatNobodyReadsEndsTheAnswer) {
  Launch launch = Endless({"--prompt=Hello!", "--max_new_tokens=1000000"});
  for (const bool ignored : {false, true}) {
    if (ignored) launch.ignored = {SIGPIPE};
    Program chat(launch);
    chat.WaitForOut("\xEF\xBF\xBD");
    chat.CloseOutput();
    EXPECT_EQ(chat.Wait(), ignored ? 1 : -SIGPIPE);
  }
}

// Of a model that is too small to need them, and that cannot chat.
TEST(Prompt, MoreThreadsThanCanRunAreWarnedOf) {
  const std::string threads = std::to_string(AvailableCpus() + 1);
  Launch launch = Chat({"--prompt=Hello!"});
  launch.args = {"--threads=" + threads,
                 "--target=" + Runfile("tests/testdata/models/t.gdn")};
  const Outcome outcome = RunToEnd(launch);
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(outcome.err.find("(num_threads is " + threads + ", of which"), 0u)
      << outcome.err;
  EXPECT_TRUE(Has(outcome.err, "no tokenizer")) << outcome.err;
}

TEST(Prompt, HelpOfWhatIsNamed) {
  const Outcome outcome = RunToEnd(Chat({"--help=rollback"}));
  EXPECT_TRUE(Has(outcome.out, "--rollback")) << outcome.out;
  EXPECT_FALSE(Has(outcome.out + outcome.err, "Warning")) << outcome.out;
}

TEST(Prompt, HelpIsNoError) {
  Launch launch = Chat({});
  for (const Args& args :
       {Args{"--help"}, Args{"-h"}, Args{"--threads=1", "--help"}}) {
    launch.args = args;
    const Outcome outcome = RunToEnd(launch);
    EXPECT_EQ(outcome.status, 0);
    for (const char* name : {"--target", "--draft", "--prompt", "--system",
                             "--max_new_tokens", "--draft_tokens", "--threads",
                             "--stats", "--temperature", "--seed", "--stop"}) {
      EXPECT_TRUE(Has(outcome.out, name)) << name;
    }
    EXPECT_EQ(outcome.err, "");
  }
}

// --- Errors
// --------------------------------------------------------------------

void ExpectRefused(const Launch& launch, const std::string& message) {
  const Outcome outcome = RunToEnd(launch);
  EXPECT_GT(outcome.status, 0) << message;
  EXPECT_EQ(outcome.out, "") << message;
  EXPECT_TRUE(Has(outcome.err, message)) << message << "\n" << outcome.err;
}

TEST(Refuses, BadFlags) {
  const struct {
    Args args;
    const char* message;
  } kCases[] = {
      {{"--nosuch"}, "nosuch"},
      {{"word"}, "word is not a flag"},
      {{"--threads=two"}, "'two'"},
      {{"--threads=-1"}, "--threads: num_threads is -1"},
      {{"--threads=99999999999"}, "99999999999"},
      {{"--max_new_tokens=0"}, "max_new_tokens is 0"},
      {{"--max_new_tokens=1e3"}, "1e3"},
      {{"--max_context=-1"}, "max_context is -1"},
      {{"--max_context=4096"}, "max_context is 4096"},
      {{"--draft_tokens=many"}, "\"many\""},
      {{"--draft_tokens=-1"}, "draft_tokens is -1"},
      {{"--draft_tokens=8"}, "draft_tokens is 8"},
      {{"--thinking=perhaps"}, "\"perhaps\""},
      {{"--rollback=perhaps"}, "\"perhaps\"; allowed are journal, slots"},
      {{"--temperature=-1"}, "temperature is -1; allowed are 0 to 100"},
      {{"--temperature=nan"}, "temperature is nan"},
      {{"--temperature=warm"}, "'warm'"},
      {{"--top_k=-1"}, "top_k is -1"},
      {{"--top_p=0"}, "top_p is 0"},
      {{"--min_p=1.5"}, "min_p is 1.5"},
      {{"--seed=-1"}, "'-1'"},
      {{"--seed=18446744073709551616"}, "18446744073709551616"},
      {{"--repetition_penalty=0"}, "repetition_penalty is 0"},
      {{"--presence_penalty=inf"}, "presence_penalty is inf"},
      {{"--frequency_penalty=-200"}, "frequency_penalty is -200"},
      {{"--stop=a,,b"}, "stop_texts[1] has 0 bytes"},
      {{"--stop=\xff"}, "stop_texts[0]"},
      {{"--stats=perhaps"}, "perhaps"},
      {{"--prompt="}, "--prompt is empty"},
      {{"--prompt", " \t"}, "--prompt is empty"},
      {{"--prompt"}, "prompt"},
      {{"--system", "broken \xff"}, "--system"},
      {{"--draft", "draft.gdn"}, "--draft needs --target"},
  };
  for (const auto& test : kCases) {
    Args args = {"--prompt=Hello!"};
    args.insert(args.end(), test.args.begin(), test.args.end());
    ExpectRefused(Chat(args), test.message);
  }
}

TEST(Refuses, BadPrompts) {
  ExpectRefused(Chat({"--prompt", "broken \xff"}), "not UTF-8");
  ExpectRefused(Chat({"--prompt=What is a dog?", "--max_context=5"}),
                "13 tokens does not fit");
  std::string longer;
  for (int i = 0; i < 1000; ++i) longer += "What is a dog? ";
  ExpectRefused(Chat({"--prompt", longer}), "at most 2048");
}

TEST(Refuses, BadFiles) {
  const std::string target = testing::DemoPair().target;
  const std::string draft = testing::DemoPair().draft;
  const std::string bytes = ReadFile(target);
  ASSERT_GT(bytes.size(), 1000000u);
  const struct {
    std::string target, draft, message;
  } kCases[] = {
      {"/no/such.gdn", "", "/no/such.gdn"},
      {target, "/no/such.gdn", "/no/such.gdn"},
      {WriteFile("empty.gdn", ""), "", "empty.gdn"},
      {target, WriteFile("empty.gdn", ""), "empty.gdn"},
      {WriteFile("head.gdn", bytes.substr(0, 40)), "", "head.gdn"},
      {WriteFile("half.gdn", bytes.substr(0, bytes.size() / 2)), "",
       "half.gdn': the file was cut short"},
      {WriteFile("text.gdn", std::string(100000, 'x')), "",
       "text.gdn': not a DeltaEdge model file"},
      {::testing::TempDir(), "", "is a folder"},
      {draft, "", "draft.gdn': a draft"},
      {target, target, "target.gdn': a target"},
      {target, Runfile("tests/testdata/models/wide_draft.gdn"),
       "does not fit target"},
      {Runfile("tests/testdata/models/t.gdn"), "", "tokenizer.json"},
  };
  for (const auto& test : kCases) {
    Args args = {"--target", test.target, "--draft", test.draft};
    ExpectRefused(Chat(args), test.message);  // A conversation does not begin.
    args.push_back("--prompt=Hello!");
    ExpectRefused(Chat(args), test.message);
  }
}

// --- Where it is started from
// ----------------------------------------------------

TEST(Paths, RelativeOnesAreMeantFromWhereBazelRunWasCalled) {
  const std::string folder = Folder("caller");
  Link(folder + "/mine.gdn", testing::DemoPair().target);
  Launch launch = Chat({"--prompt=Hello!", "--target=mine.gdn"});
  launch.folder = "/";
  launch.environment = {"BUILD_WORKING_DIRECTORY=" + folder};
  EXPECT_EQ(RunToEnd(launch).out, kHello);

  launch.folder = folder;
  launch.environment = {};
  EXPECT_EQ(RunToEnd(launch).out, kHello);
}

TEST(Paths, DictionaryIsFoundFromAnyFolder) {
  const std::string folder = Folder("installed");
  const std::string program = folder + "/chat";
  WriteFile("installed/chat", ReadFile(Runfile("examples/chat/chat")));
  ASSERT_EQ(chmod(program.c_str(), 0755), 0);
  Link(folder + "/link", program);

  Launch launch = Chat({"--prompt=Hello!"});
  launch.environment = {"RUNFILES_DIR", "RUNFILES_MANIFEST_FILE",
                        "TEST_SRCDIR"};
  launch.path = program;
  ExpectRefused(launch, "--target");

  std::string inner = "installed/chat.runfiles";
  for (const char* part : {"", "/deltaedge", "/examples", "/chat", "/model"}) {
    Folder(inner += part);
  }
  inner = ::testing::TempDir() + "/" + inner;
  Link(inner + "/target.gdn", testing::DemoPair().target);
  Link(inner + "/draft.gdn", testing::DemoPair().draft);
  launch.folder = "/";
  EXPECT_EQ(RunToEnd(launch).out, kHello);
  launch.path = folder + "/link";
  EXPECT_EQ(RunToEnd(launch).out, kHello);
  launch.name = "chat";  // As a shell calls it that found it in $PATH.
  EXPECT_EQ(RunToEnd(launch).out, kHello);
  launch = Launch(launch);
  launch.name = "./chat";
  launch.path = program;
  launch.folder = folder;
  EXPECT_EQ(RunToEnd(launch).out, kHello);
}

// --- A conversation through pipes
// -------------------------------------------------

TEST(Conversation, DraftsChangeNoAnswer) {
  std::string questions = "Hello!\nWhat is a dog?\n";
  if (testing::FewerIfEmulated("questions", 6, 2) == 6) {
    questions +=
        "Use it in a sentence.\n/reset\nWhat is 12 plus 30?\n"
        "What is a lantern?\nTell me about quantum fields.\n";
  }
  const Outcome plain =
      RunToEnd(Chat({"--draft_tokens=0"}), questions + "/stats\n");
  EXPECT_EQ(plain.status, 0);
  EXPECT_TRUE(Has(plain.out, kHello)) << plain.out;
  EXPECT_TRUE(Has(plain.out, kDog)) << plain.out;
  EXPECT_FALSE(Has(plain.out, "<|")) << plain.out;
  EXPECT_TRUE(Has(plain.err, "0 of 0 accepted")) << plain.err;
  EXPECT_EQ(Figure(plain.err, "drafts", "tokens per step"), 1) << plain.err;
  std::vector<const char*> ways = {"2", "auto"};
  ways.resize(testing::FewerIfEmulated("ways of drafting", 2, 1));
  for (const char* drafts : ways) {
    const Outcome drafted =
        RunToEnd(Chat({std::string("--draft_tokens=") + drafts}),
                 questions + "/stats\n");
    EXPECT_EQ(drafted.status, 0);
    EXPECT_EQ(drafted.out, plain.out) << drafts;
    EXPECT_GT(Figure(drafted.err, "drafts", "tokens per step"), 1.2)
        << drafted.err;
  }
}

TEST(Conversation, RemembersUntilReset) {
  const Outcome outcome =
      RunToEnd(Chat({}),
               "What is a cat?\nUse it in a sentence.\n/reset\nWhat is a cat?\n"
               "Use it in a sentence.");
  EXPECT_EQ(outcome.status, 0);
  const std::string answers =
      std::string(kCat) + "For example: he cat cath a cat toget.\n";
  EXPECT_EQ(outcome.out, answers + answers);
  EXPECT_TRUE(Has(outcome.err, "(forgotten)\n")) << outcome.err;
  EXPECT_FALSE(Has(outcome.err, "> ")) << outcome.err;
}

TEST(Conversation, Commands) {
  const Outcome outcome = RunToEnd(
      Chat({}),
      "/stats\n\n   \n/nonsense\n  Hello! \r\n/stats\n/quit\nWhat is a dog?\n");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.out, kHello);
  EXPECT_EQ(Figure(outcome.err, "prompt", "tokens,"), 0) << outcome.err;
  EXPECT_TRUE(Has(outcome.err, "no such command: /nonsense")) << outcome.err;
  EXPECT_TRUE(Has(outcome.err, "prompt    10 tokens")) << outcome.err;
}

TEST(Conversation, StatsOfAnAnswerAreItsOwn) {
  const Outcome outcome =
      RunToEnd(Chat({"--stats"}), "Hello!\n/reset\nHello!\nHello!\n/stats\n");
  EXPECT_EQ(outcome.status, 0);
  std::vector<double> prompts;
  std::istringstream lines(outcome.err);
  for (std::string line; std::getline(lines, line);) {
    const double tokens = Figure(line, "prompt", "tokens,");
    if (tokens >= 0) prompts.push_back(tokens);
  }
  // A later turn also ends the one before: "\n".
  EXPECT_EQ(prompts, (std::vector<double>{10, 10, 11, 21})) << outcome.err;
}

TEST(Conversation, LivesOnAfterBadLines) {
  const std::string huge(3000000, 'a'), enormous(6000000, 'a');
  const Outcome outcome = RunToEnd(
      Chat({}), std::string("What is a\0cat?\n", 15) + "/reset\nbroken \xff\n" +
                    huge + "\n" + enormous + "\nHello!\n");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_TRUE(Has(outcome.err, "not UTF-8")) << outcome.err;
  EXPECT_TRUE(Has(outcome.err, "does not fit")) << outcome.err;
  EXPECT_TRUE(Has(outcome.err, "line is too long")) << outcome.err;
  EXPECT_EQ(outcome.out.substr(outcome.out.find('\n') + 1), kHello);
}

TEST(Conversation, AFullContextIsToldAndResetMakesRoom) {
  const Outcome outcome =
      RunToEnd(Chat({"--max_context=60"}),
               "What is a dog?\nWhat is a cat?\nHello!\n/reset\nHello!\n");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.out, std::string(kDog) + "A cat is a feline\n" + kHello);
  EXPECT_TRUE(Has(outcome.err, "(cut: the context is full)")) << outcome.err;
  EXPECT_TRUE(Has(outcome.err, "holds 60 of at most 60")) << outcome.err;
  EXPECT_TRUE(Has(outcome.err, "(/reset makes room)")) << outcome.err;
}

TEST(Conversation, InputThatCannotBeReadIsAnError) {
  Launch launch = Chat({});
  for (const char* file : {"closed", "/"}) {
    launch.input_file = file;
    const Outcome outcome = RunToEnd(launch);
    EXPECT_EQ(outcome.status, 1) << file;
    EXPECT_TRUE(Has(outcome.err, "standard input")) << outcome.err;
  }
}

TEST(Conversation, OutputThatCannotBeWrittenEndsIt) {
  Launch launch = Chat({});
  launch.output_file = "/dev/full";
  const Outcome outcome = RunToEnd(launch, "Hello!\nHello!\n");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_TRUE(Has(outcome.err, "standard output")) << outcome.err;
}

TEST(Conversation, InterruptWhileReadingALongQuestion) {
  const Args args = {"--system=Be brief.", "--max_new_tokens=5", "--stats"};
  const Outcome fresh = RunToEnd(Endless(args), "Hello!\n");
  const double prompt = Figure(fresh.err, "prompt", "tokens,");
  ASSERT_GT(prompt, 6) << fresh.err;

  Program chat(Endless(args));
  chat.WaitForErr("Ctrl-C");
  // Takes much longer than a minute, if nobody stops it.
  chat.Write(std::string(600000, 'a') + "\n");
  // Only what the pipe holds is still to be read, and not yet interruptible.
  std::this_thread::sleep_for(std::chrono::seconds(2));
  chat.Signal(SIGINT);
  chat.WaitForErr("(stopped)");
  EXPECT_EQ(chat.out(), "");
  chat.Write("Hello!\n");
  EXPECT_EQ(chat.Wait(), 0);
  EXPECT_EQ(chat.out(), fresh.out);
  // The system message is there again.
  EXPECT_EQ(Figure(chat.err(), "prompt", "tokens,"), prompt) << chat.err();
}

TEST(Conversation, InterruptWhileReadingALaterQuestion) {
  Program chat(Endless({"--max_new_tokens=5"}));
  chat.Write("Hello!\n");
  chat.WaitForErr("(cut at --max_new_tokens)");
  chat.Write(std::string(600000, 'a') + "\n");
  std::this_thread::sleep_for(std::chrono::seconds(2));
  chat.Signal(SIGINT);
  chat.WaitForErr("(stopped)");
  chat.Write("Hello!\n");
  chat.WaitForErr("(cut at --max_new_tokens)");
  EXPECT_EQ(chat.Wait(), 0);
}

TEST(Conversation, InterruptWhileTheReaderOfAnAnswerIsSlow) {
  Program chat(Endless({"--max_new_tokens=1000000"}));
  chat.Write("Hello!\n");
  chat.WaitForOut("\xEF\xBF\xBD");
  chat.WaitForFullOut();
  chat.Signal(SIGINT);
  // Were there room at once, the write would end well before it is interrupted.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  chat.WaitForErr("(stopped)");
  chat.Write("/stats\n/quit\n");
  EXPECT_EQ(chat.Wait(), 0);
}

// --- A conversation on a terminal
// --------------------------------------------------

TEST(Terminal, InterruptStopsTheAnswerAndNotTheProgram) {
  Launch launch = Endless({"--max_new_tokens=1000000"});
  launch.terminal = true;
  Program chat(launch);
  chat.WaitForOut("> ");
  for (int turn = 0; turn < 2; ++turn) {
    chat.Write("Hello!\n");
    chat.WaitForOut("\xEF\xBF\xBD");
    chat.Write("\x03");
    chat.WaitForOut("(stopped)");
    chat.WaitForOut("> ");
  }
  chat.Write("/quit\n");
  EXPECT_EQ(chat.Wait(), 0);
}

TEST(Terminal, InterruptAtThePromptIsAHint) {
  Launch launch = Chat({});
  launch.terminal = true;
  Program chat(launch);
  chat.WaitForOut("> ");
  // There is no telling from outside when it waits for a line; an interrupt
  // before that is taken silently.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  chat.Write("half a quest\x03");
  chat.WaitForOut("(/quit or Ctrl-D leaves)");
  chat.WaitForOut("> ");
  chat.Write("Hello!\n");
  chat.WaitForOut("Which word shall I explain?");
  chat.WaitForOut("> ");
  chat.Write("\x04");
  EXPECT_EQ(chat.Wait(), 0);
}

TEST(Terminal, HangUpEndsIt) {
  Launch launch = Chat({});
  launch.terminal = true;
  Program chat(launch);
  chat.WaitForOut("> ");
  chat.CloseInput();
  chat.CloseOutput();
  EXPECT_NE(chat.Wait(), 0);
}

}  // namespace
}  // namespace deltaedge
