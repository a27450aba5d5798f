// SPDX-License-Identifier: Apache-2.0
//
// Measures the engine through its public interface:
//
//   bench [--target=FILE.gdn [--draft=FILE.gdn]] [--threads=1,2]
//         [--decode=64] [--spec] [--sessions=4] [--rollback=journal,slots]
//         [--format=table|json]

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/engine.h"
#include "engine/model/model_file.h"
#include "engine/model/tensor_list.h"
#include "engine/options.h"
#include "tools/bench/report.h"
#include "tools/bench/session_bench.h"
#include "tools/cpp/runfiles/runfiles.h"

ABSL_FLAG(std::string, target, "",
          "a model file; its prompts are random tokens. Default: the "
          "dictionary of //examples/chat with its draft, which is asked "
          "questions");
ABSL_FLAG(std::string, draft, "", "the model file of a draft of --target");
ABSL_FLAG(std::vector<std::string>, threads, {"0"},
          "threads of a step; everything is measured for each. 0: as many as "
          "there are cores");
ABSL_FLAG(int32_t, decode, 64, "new tokens of an answer, at most");
ABSL_FLAG(bool, spec, true,
          "whether drafts are measured against plain decoding, if there is a "
          "draft");
ABSL_FLAG(int32_t, sessions, 4,
          "sessions that are stepped together against one after another. 0: "
          "not measured");
ABSL_FLAG(int32_t, prompt, 64, "tokens of a random prompt");
ABSL_FLAG(std::vector<std::string>, rollback,
          std::vector<std::string>({"journal", "slots"}),
          "ways of rolling back");
ABSL_FLAG(int32_t, repetitions, 11,
          "of everything; candidates that are compared alternate");
ABSL_FLAG(std::string, format, "table", "table or json (one object a line)");

namespace deltaedge {
namespace {

absl::Status BadFlag(absl::string_view name, absl::string_view value,
                     absl::string_view allowed) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, " is \"", value, "\"; allowed is ", allowed));
}

absl::Status CheckAtLeast(absl::string_view name, int32_t value,
                          int32_t least) {
  if (value >= least) return absl::OkStatus();
  return BadFlag(name, absl::StrCat(value), absl::StrCat(least, " or more"));
}

// `bazel run` starts programs in a folder of its own and says where it was
// called; paths are meant from there.
std::string UserPath(const std::string& path) {
  const char* folder = getenv("BUILD_WORKING_DIRECTORY");
  if (folder == nullptr || path.empty() || path[0] == '/') return path;
  return absl::StrCat(folder, "/", path);
}

absl::StatusOr<ModelFiles> Files(const char* program) {
  ModelFiles files = {UserPath(absl::GetFlag(FLAGS_target)),
                      UserPath(absl::GetFlag(FLAGS_draft))};
  if (!files.target.empty()) return files;
  if (!files.draft.empty()) {
    return absl::InvalidArgumentError("--draft needs --target");
  }
  std::string error;
  const auto runfiles = absl::WrapUnique(
      bazel::tools::cpp::runfiles::Runfiles::Create(program, &error));
  if (runfiles == nullptr) {
    return absl::NotFoundError(
        "the dictionary is not beside this program; start it with `bazel "
        "run`, or name a model with --target");
  }
  const std::string folder = "deltaedge/examples/chat/model/";
  files.target = runfiles->Rlocation(folder + "target.gdn");
  files.draft = runfiles->Rlocation(folder + "draft.gdn");
  return files;
}

// Those of the dictionary.
absl::StatusOr<std::vector<std::vector<TokenId>>> Questions(
    const Engine& engine) {
  std::vector<std::vector<TokenId>> prompts;
  for (const char* word : {"dog", "house", "river", "teacher", "apple", "ship",
                           "music", "winter"}) {
    DELTAEDGE_ASSIGN_OR_RETURN(
        std::vector<TokenId> prompt,
        engine.chat().Render(
            {{Role::kUser, absl::StrCat("What is a ", word, "?")}}));
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

std::vector<std::vector<TokenId>> RandomPrompts(const Engine& engine,
                                                int32_t tokens) {
  uint64_t state = 1;
  std::vector<std::vector<TokenId>> prompts(8);
  for (std::vector<TokenId>& prompt : prompts) {
    for (int32_t i = 0; i < tokens; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      prompt.push_back(
          static_cast<TokenId>((state >> 33) % engine.info().vocab_size));
    }
  }
  return prompts;
}

absl::StatusOr<std::string> WeightsOf(const std::string& path) {
  DELTAEDGE_ASSIGN_OR_RETURN(const auto file, ModelFile::Open(path));
  return std::string(
      WeightTypeName(file->target_weights().layers[0].mlp.gate.type));
}

absl::Status Run(const char* program) {
  Format format = Format::kTable;
  if (absl::GetFlag(FLAGS_format) == "json") {
    format = Format::kJson;
  } else if (absl::GetFlag(FLAGS_format) != "table") {
    return BadFlag("format", absl::GetFlag(FLAGS_format), "table or json");
  }
  SessionBench bench;
  bench.new_tokens = absl::GetFlag(FLAGS_decode);
  bench.repetitions = absl::GetFlag(FLAGS_repetitions);
  const int32_t sessions = absl::GetFlag(FLAGS_sessions);
  const int32_t prompt = absl::GetFlag(FLAGS_prompt);
  DELTAEDGE_RETURN_IF_ERROR(CheckAtLeast("decode", bench.new_tokens, 1));
  DELTAEDGE_RETURN_IF_ERROR(CheckAtLeast("repetitions", bench.repetitions, 1));
  DELTAEDGE_RETURN_IF_ERROR(CheckAtLeast("sessions", sessions, 0));
  DELTAEDGE_RETURN_IF_ERROR(CheckAtLeast("prompt", prompt, 1));
  for (const std::string& name : absl::GetFlag(FLAGS_rollback)) {
    if (name != "journal" && name != "slots") {
      return BadFlag("rollback", name, "journal, slots, or both");
    }
    bench.rollbacks.push_back(name == "slots" ? Rollback::kSlots
                                              : Rollback::kJournal);
  }
  if (bench.rollbacks.empty()) return BadFlag("rollback", "", "journal, slots");
  std::vector<int32_t> threads;
  for (const std::string& text : absl::GetFlag(FLAGS_threads)) {
    int32_t count;
    if (!absl::SimpleAtoi(text, &count) || count < 0) {
      return BadFlag("threads", text, "0 or more");
    }
    threads.push_back(count);
  }

  DELTAEDGE_ASSIGN_OR_RETURN(const ModelFiles files, Files(program));
  DELTAEDGE_ASSIGN_OR_RETURN(const std::string weights,
                             WeightsOf(files.target));
  for (const int32_t count : threads) {
    EngineOptions options;
    options.num_threads = count;
    DELTAEDGE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                               Engine::Open(files, options));
    bench.engine = engine.get();
    bench.stop_tokens = absl::GetFlag(FLAGS_target).empty();
    if (bench.stop_tokens) {
      DELTAEDGE_ASSIGN_OR_RETURN(bench.prompts, Questions(*engine));
    } else {
      bench.prompts = RandomPrompts(*engine, prompt);
    }
    if (format == Format::kTable) {
      absl::PrintF(
          "%s: %.1f MB of weights, %s, %d threads\n",
          engine->info().name.empty() ? files.target : engine->info().name,
          engine->info().weight_bytes / 1e6, engine->info().cpu_target,
          engine->info().threads);
    }
    absl::PrintF("%s", Heading(format));
    const auto print = [&](absl::StatusOr<std::vector<Result>> results) {
      if (!results.ok()) return results.status();
      for (Result& result : *results) {
        result.weights = weights;
        absl::PrintF("%s", Line(result, format));
      }
      std::fflush(stdout);
      return absl::OkStatus();
    };
    DELTAEDGE_RETURN_IF_ERROR(print(BenchDecode(bench)));
    if (absl::GetFlag(FLAGS_spec) && engine->info().draft_block > 1) {
      DELTAEDGE_RETURN_IF_ERROR(print(BenchSpec(bench)));
    }
    if (sessions > 0) {
      DELTAEDGE_RETURN_IF_ERROR(print(BenchSessions(bench, sessions)));
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace deltaedge

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "measures the engine:\n"
      "  bench [--target=FILE.gdn [--draft=FILE.gdn]] [--threads=1,2]\n"
      "        [--decode=64] [--spec] [--sessions=4] "
      "[--rollback=journal,slots]\n"
      "        [--format=table|json]\n"
      "Candidates of a test take turns in one run; \"ratio\" is the median of "
      "tokens per second over the\nfirst candidate's in the same turn.");
  const std::vector<char*> arguments = absl::ParseCommandLine(argc, argv);
  absl::Status status;
  if (arguments.size() > 1) {
    status = absl::InvalidArgumentError(
        absl::StrCat("\"", arguments[1],
                     "\" is not expected: all is said by flags (--help)"));
  } else {
    status = deltaedge::Run(argv[0]);
  }
  if (status.ok()) return EXIT_SUCCESS;
  absl::FPrintF(stderr, "error: %s\n", status.message());
  return EXIT_FAILURE;
}
