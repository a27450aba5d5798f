// SPDX-License-Identifier: Apache-2.0
//
// How much of a model's packed weights, mapped from their file, decoding makes
// resident: all of a dense model, but only chosen experts of a mixture; and how
// long it took since the start.
//
//   expert_memory --target=FILE.gdn [--tokens=1,8,64]

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/base/status_macros.h"
#include "engine/engine.h"
#include "engine/model/config.h"
#include "engine/model/model_file.h"
#include "engine/model/model_index.h"
#include "engine/options.h"
#include "engine/session.h"
#include "tests/testing/resident_bytes.h"

ABSL_FLAG(std::string, target, "", "a model file. Required");
ABSL_FLAG(std::vector<std::string>, tokens,
          std::vector<std::string>({"1", "8", "64"}),
          "after how many tokens in all to look");

namespace deltaedge {
namespace {

double Mebibytes(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

// Bytes of experts, and of all that every token reads.
struct WeightBytes {
  int64_t experts = 0, others = 0;
};

WeightBytes CountWeights(const ModelFile& file) {
  WeightBytes bytes;
  for (const TensorEntry& tensor : file.tensors()) {
    // A few rows are read of the embedding table, unless it is the head too.
    if (tensor.name == "embedding" && !file.target_config().tied_head) continue;
    const bool expert = tensor.name.find("moe.gate_up") != std::string::npos ||
                        tensor.name.find("moe.down") != std::string::npos;
    (expert ? bytes.experts : bytes.others) += tensor.size_bytes;
  }
  return bytes;
}

absl::Status Run() {
  const std::string target = absl::GetFlag(FLAGS_target);
  WeightBytes weights;
  double share = 0;
  {
    DELTAEDGE_ASSIGN_OR_RETURN(const auto file, ModelFile::Open(target));
    weights = CountWeights(*file);
    const MoeConfig& moe = file->target_config().moe;
    if (moe.experts > 0) share = 1.0 * moe.experts_per_token / moe.experts;
  }
  absl::PrintF("weights          %9.1f MiB of experts, %.1f MiB of others\n",
               Mebibytes(weights.experts), Mebibytes(weights.others));
  absl::PrintF("one token reads  %9.1f MiB\n",
               Mebibytes(weights.others) + share * Mebibytes(weights.experts));

  EngineOptions options;
  const absl::Time start = absl::Now();
  // The first may write the file, whose pages it then has.
  DELTAEDGE_RETURN_IF_ERROR(Engine::Open({target, ""}, options).status());
  DELTAEDGE_ASSIGN_OR_RETURN(const auto engine,
                             Engine::Open({target, ""}, options));
  const auto print = [&](int32_t tokens) {
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
    absl::PrintF(
        "%4d tokens       %9.1f MiB resident of the packed file, after %.2f "
        "s\n",
        tokens, Mebibytes(testing::ResidentBytesOfFile(target + ".packed")),
        seconds);
  };
  print(0);
  SessionOptions plain;
  plain.draft_tokens = 0;
  DELTAEDGE_ASSIGN_OR_RETURN(const auto session, engine->NewSession(plain));
  DELTAEDGE_RETURN_IF_ERROR(session->Prefill({1}));
  GenerateOptions generate;
  generate.ignore_model_stop_tokens = true;
  generate.sampling.temperature = 1;
  generate.sampling.seed = 1;
  int32_t done = 0;
  for (const std::string& text : absl::GetFlag(FLAGS_tokens)) {
    int32_t tokens = 0;
    if (!absl::SimpleAtoi(text, &tokens) || tokens <= done) {
      return absl::InvalidArgumentError(
          absl::StrCat("--tokens: \"", text, "\" is no larger number"));
    }
    generate.max_new_tokens = tokens - done;
    DELTAEDGE_RETURN_IF_ERROR(
        session->Generate(generate, [](const TokenEvent&) { return true; })
            .status());
    done = tokens;
    print(done);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace deltaedge

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = deltaedge::Run();
  if (status.ok()) return EXIT_SUCCESS;
  absl::FPrintF(stderr, "error: %s\n", status.message());
  return EXIT_FAILURE;
}
