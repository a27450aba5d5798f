// SPDX-License-Identifier: Apache-2.0
//
// One step of a model with one thread, in a function of its own that a profiler
// can be told to look at (instructions.sh):
//
//   one_step [--target=TARGET.gdn] [--rows=8]
//
// Rows are the last token and random drafts. The step comes after one of the
// same kind, so that it also folds what a step leaves to the next.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "engine/base/status_macros.h"
#include "engine/drafter.h"
#include "engine/engine.h"
#include "engine/model/config.h"
#include "engine/options.h"
#include "engine/session.h"
#include "engine/types.h"
#include "tools/bench/step_bench.h"
#include "tools/cli/paths.h"

ABSL_FLAG(std::string, target, "",
          "a model file. Default: the dictionary of //examples/chat");
ABSL_FLAG(int32_t, rows, 1, "of the step, 1 to 16; 1: plain decoding");
ABSL_FLAG(int32_t, prompt, 64, "tokens before it, random ones");

namespace deltaedge {

// Not inlined, and of a name that does not change.
absl::Status __attribute__((noinline)) CountedStep(Session& session) {
  return session.Next().status();
}

namespace {

class RandomDrafter : public Drafter {
 public:
  explicit RandomDrafter(int32_t vocab_size) : vocab_size_(vocab_size) {}

  void Propose(absl::Span<const TokenId> sequence, int32_t max_drafts,
               std::vector<TokenId>* drafts) override {
    *drafts = RandomTokens(vocab_size_, max_drafts, /*seed=*/sequence.size());
  }

 private:
  const int32_t vocab_size_;
};

absl::Status Run(const char* program) {
  const int32_t rows = absl::GetFlag(FLAGS_rows);
  const int32_t prompt = absl::GetFlag(FLAGS_prompt);
  if (rows < 1 || rows > kMaxBlockRows || prompt < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rows is ", rows, " and --prompt ", prompt,
                     "; allowed are 1 to ", kMaxBlockRows, " and at least 1"));
  }
  std::string target = UserPath(absl::GetFlag(FLAGS_target));
  if (target.empty()) {
    DELTAEDGE_ASSIGN_OR_RETURN(
        target, RunfilePath(program, "examples/chat/model/target.gdn",
                            "the dictionary", "name a model with --target"));
  }
  EngineOptions engine_options;
  engine_options.num_threads = 1;
  engine_options.packed_weights = EngineOptions::PackedWeights::kMemory;
  DELTAEDGE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                             Engine::Open({target, ""}, engine_options));
  const int32_t vocab_size = engine->info().vocab_size;
  SessionOptions options;
  options.draft_tokens = rows - 1;
  if (rows > 1) options.drafter = std::make_shared<RandomDrafter>(vocab_size);
  DELTAEDGE_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                             engine->NewSession(options));
  DELTAEDGE_RETURN_IF_ERROR(
      session->Prefill(RandomTokens(vocab_size, prompt, /*seed=*/1)));
  GenerateOptions rules;
  rules.max_new_tokens = 4 * kMaxBlockRows;
  rules.ignore_model_stop_tokens = true;
  DELTAEDGE_RETURN_IF_ERROR(session->Start(rules));
  do {
    DELTAEDGE_RETURN_IF_ERROR(session->Next().status());
  } while (session->waiting() > 0);
  DELTAEDGE_RETURN_IF_ERROR(CountedStep(*session));
  std::printf("%s, rows: %d\n", engine->info().cpu_target.c_str(), rows);
  return absl::OkStatus();
}

}  // namespace
}  // namespace deltaedge

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = deltaedge::Run(argv[0]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}
