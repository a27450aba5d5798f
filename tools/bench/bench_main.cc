// SPDX-License-Identifier: Apache-2.0
//
// Measures the engine through its public interface:
//
//   bench [--target=FILE.gdn [--draft=FILE.gdn]]
//         [--shape=0.8b --weights=q8 [--head=..] [--gdn=..] [--layers=N]
//          [--model_folder=FOLDER]]
//         [--threads=1,2] [--decode=64] [--rows=1,2,4,8,16]
//         [--prefill=128,512] [--spec] [--sessions=4] [--max_new_tokens=64]
//         [--draft_tokens=max,auto,7] [--synthetic_acceptance=4]
//         [--serving] [--prompts=FILE] [--rollback=journal,slots]
//         [--packed_weights=memory|file] [--format=table|json]

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/base/status_macros.h"
#include "engine/base/thread_pool.h"
#include "engine/engine.h"
#include "engine/model/config.h"
#include "engine/model/model_contents.h"
#include "engine/model/model_file.h"
#include "engine/ops/linear.h"
#include "engine/options.h"
#include "nlohmann/json.hpp"
#include "tools/bench/machine.h"
#include "tools/bench/measure.h"
#include "tools/bench/model_facts.h"
#include "tools/bench/prompts.h"
#include "tools/bench/report.h"
#include "tools/bench/serving_bench.h"
#include "tools/bench/session_bench.h"
#include "tools/bench/shape_models.h"
#include "tools/bench/step_bench.h"
#include "tools/bench/synthetic_acceptance.h"
#include "tools/cli/flags.h"
#include "tools/cli/interrupts.h"
#include "tools/cli/paths.h"
#include "tools/cli/program.h"
#include "tools/convert/recipe_flags.h"
#include "tools/convert/temporary_folder.h"

// --weights, --head, --gdn and --experts, for --shape, are of
// tools/convert:recipe_flags.
ABSL_FLAG(std::string, target, "",
          "a model file; its prompts are random tokens. Default: the "
          "dictionary of //examples/chat with its draft, which is asked "
          "questions");
ABSL_FLAG(std::string, draft, "", "the model file of a draft of --target");
ABSL_FLAG(std::string, shape, "",
          "in place of --target: random weights in the sizes of a published "
          "model, 0.8b, 2b, 4b, 9b, 27b or 35b-a3b, and its draft if drafts "
          "are measured. --weights, --head, --gdn and --experts are their "
          "types");
ABSL_FLAG(int32_t, layers, 0, "of --shape: this many layers only. 0: all");
ABSL_FLAG(std::string, model_folder, "",
          "where the models of --shape are kept and looked for. Default: a "
          "temporary folder, removed at the end");
ABSL_FLAG(std::vector<std::string>, threads, {"0"},
          "threads of a step; everything is measured for each. 0: as many as "
          "there are cores, or big cores");
ABSL_FLAG(bool, big_cores, false,
          "keep the threads on the big cores (EngineOptions::placement)");
ABSL_FLAG(deltaedge::FlagValue<int32_t>, decode, 64,
          "new tokens of plain decoding. 0: not measured");
ABSL_FLAG(deltaedge::FlagValue<std::vector<std::string>>, rows,
          std::vector<std::string>({"1", "2", "4", "8", "16"}),
          "rows of whole steps of the target. 0: not measured");
ABSL_FLAG(deltaedge::FlagValue<std::vector<std::string>>, prefill,
          std::vector<std::string>({"128", "512"}),
          "rows of prompts. 0: not measured. Defaults, of other flags too, "
          "shrink to a model's context");
ABSL_FLAG(bool, spec, true,
          "whether drafts are measured against plain decoding, if there is a "
          "draft");
ABSL_FLAG(int32_t, sessions, 4,
          "sessions that are stepped together against one after another. 0: "
          "not measured");
ABSL_FLAG(deltaedge::FlagValue<int32_t>, max_new_tokens, 64,
          "new tokens of an answer of --spec, --sessions and --serving");
ABSL_FLAG(deltaedge::FlagValue<std::vector<std::string>>, draft_tokens,
          std::vector<std::string>({"max"}),
          "tokens drafted in a step of --spec, --sessions and --serving: a "
          "number; max: all that the draft's block has; auto: the engine "
          "chooses");
ABSL_FLAG(double, synthetic_acceptance, 0.0,
          "let drafts of --spec, --sessions and --serving be right by a fixed "
          "pattern, so that a step brings this many tokens in the mean: what "
          "drafts would bring if they were as good as that. 0: they are as "
          "good as they are");
ABSL_FLAG(bool, serving, true,
          "whether answers to --prompts are measured as benchmarks of servers "
          "do, with drafts and without");
ABSL_FLAG(
    std::string, prompts, "",
    "of --serving: a file with a prompt on each line, as text or as "
    "{\"prompt\": \"...\"}; a question where the model has a chat format. "
    "Default: the dictionary's questions, none for other models");
ABSL_FLAG(deltaedge::FlagValue<int32_t>, prompt, 64,
          "tokens of a random prompt");
ABSL_FLAG(std::vector<std::string>, rollback,
          std::vector<std::string>({"journal", "slots"}),
          "ways of rolling back");
ABSL_FLAG(int32_t, repetitions, 11,
          "of everything; candidates that are compared alternate");
ABSL_FLAG(std::string, packed_weights, "memory",
          "memory: packed at every start; file: mapped from a file beside the "
          "model, if it is there (EngineOptions::packed_weights)");
ABSL_FLAG(std::string, format, "table", "table or json (one object a line)");

namespace deltaedge {
namespace {

// More than anybody waits for, or has memory for.
constexpr int32_t kMaxSessions = 64;
constexpr int32_t kMaxRepetitions = 10'000;
constexpr int32_t kMaxTokens = 32'768;

bool IsDictionary() {
  return absl::GetFlag(FLAGS_target).empty() &&
         absl::GetFlag(FLAGS_shape).empty();
}

// Those that the dictionary is asked.
std::vector<Prompt> Questions() {
  std::vector<Prompt> questions;
  for (const char* word : {"dog", "house", "river", "teacher", "apple", "ship",
                           "music", "winter"}) {
    const std::string question = absl::StrCat("What is a ", word, "?");
    questions.push_back({question, question});
  }
  return questions;
}

// What is to be measured.
struct Plan {
  Format format = Format::kTable;
  std::vector<int32_t> threads, rows, prefill;
  // -1: all of the draft's block. Unset: the engine's choice.
  std::vector<std::optional<int32_t>> draft_tokens;
  std::vector<Rollback> rollbacks;
  int32_t decode = 0, sessions = 0, new_tokens = 0, prompt = 0;
  int32_t repetitions = 0;
  bool spec = false, serving = false;
  std::vector<Prompt> prompts;
  double synthetic_acceptance = 0.0;  // 0: none.
  EngineOptions::PackedWeights packed_weights =
      EngineOptions::PackedWeights::kMemory;

  bool drafts() const { return spec || sessions > 0 || serving; }
};

absl::StatusOr<Plan> PlanFromFlags() {
  Plan plan;
  DELTAEDGE_ASSIGN_OR_RETURN(
      const int format,
      Word("format", absl::GetFlag(FLAGS_format), {"table", "json"}));
  plan.format = format == 0 ? Format::kTable : Format::kJson;
  DELTAEDGE_ASSIGN_OR_RETURN(
      const int packed,
      Word("packed_weights", absl::GetFlag(FLAGS_packed_weights),
           {"memory", "file"}));
  plan.packed_weights = packed == 0 ? EngineOptions::PackedWeights::kMemory
                                    : EngineOptions::PackedWeights::kFile;
  plan.decode = absl::GetFlag(FLAGS_decode).value;
  plan.spec = absl::GetFlag(FLAGS_spec);
  plan.serving = absl::GetFlag(FLAGS_serving);
  plan.sessions = absl::GetFlag(FLAGS_sessions);
  plan.new_tokens = absl::GetFlag(FLAGS_max_new_tokens).value;
  plan.prompt = absl::GetFlag(FLAGS_prompt).value;
  plan.repetitions = absl::GetFlag(FLAGS_repetitions);
  // FitPlan() knows how many tokens a model has room for.
  DELTAEDGE_RETURN_IF_ERROR(CheckRange("decode", plan.decode, 0, kMaxTokens));
  DELTAEDGE_RETURN_IF_ERROR(
      CheckRange("max_new_tokens", plan.new_tokens, 1, kMaxTokens));
  DELTAEDGE_RETURN_IF_ERROR(CheckRange("prompt", plan.prompt, 1, kMaxTokens));
  DELTAEDGE_RETURN_IF_ERROR(
      CheckRange("sessions", plan.sessions, 0, kMaxSessions));
  DELTAEDGE_RETURN_IF_ERROR(
      CheckRange("repetitions", plan.repetitions, 1, kMaxRepetitions));
  plan.synthetic_acceptance = absl::GetFlag(FLAGS_synthetic_acceptance);
  if (plan.synthetic_acceptance != 0.0 &&
      !(plan.synthetic_acceptance >= 1.0 &&
        plan.synthetic_acceptance <= kMaxBlockRows)) {
    return BadFlag("synthetic_acceptance",
                   absl::StrCat(plan.synthetic_acceptance),
                   absl::StrCat("1 to ", kMaxBlockRows, ", or 0 for none"));
  }
  if (const std::string path = UserPath(absl::GetFlag(FLAGS_prompts));
      !path.empty()) {
    if (!plan.serving) {
      return UsageError("--prompts needs --serving");
    }
    DELTAEDGE_ASSIGN_OR_RETURN(plan.prompts, ReadPrompts(path));
  } else if (IsDictionary()) {
    plan.prompts = Questions();
  } else {
    plan.serving = false;
  }
  DELTAEDGE_ASSIGN_OR_RETURN(plan.threads,
                             Numbers("threads", absl::GetFlag(FLAGS_threads), 0,
                                     ThreadPool::kMaxThreads));
  DELTAEDGE_ASSIGN_OR_RETURN(
      plan.rows,
      NumbersOrNone("rows", absl::GetFlag(FLAGS_rows).value, 1, kMaxBlockRows));
  DELTAEDGE_ASSIGN_OR_RETURN(
      plan.prefill, NumbersOrNone("prefill", absl::GetFlag(FLAGS_prefill).value,
                                  1, kMaxTokens));
  const std::vector<std::string> rollbacks = absl::GetFlag(FLAGS_rollback);
  DELTAEDGE_RETURN_IF_ERROR(CheckList("rollback", rollbacks));
  for (const std::string& name : rollbacks) {
    DELTAEDGE_ASSIGN_OR_RETURN(const int which,
                               Word("rollback", name, {"journal", "slots"}));
    plan.rollbacks.push_back(which == 0 ? Rollback::kJournal
                                        : Rollback::kSlots);
  }
  const std::vector<std::string> draft_tokens =
      absl::GetFlag(FLAGS_draft_tokens).value;
  DELTAEDGE_RETURN_IF_ERROR(CheckList("draft_tokens", draft_tokens));
  for (const std::string& text : draft_tokens) {
    int32_t number = -1;
    if (text == "auto") {
      plan.draft_tokens.push_back(std::nullopt);
    } else if (text == "max" || (absl::SimpleAtoi(text, &number) &&
                                 number >= 1 && number < kMaxBlockRows)) {
      plan.draft_tokens.push_back(number);
    } else {
      return BadFlag("draft_tokens", text,
                     absl::StrCat("1 to ", kMaxBlockRows - 1, ", max or auto"));
    }
  }
  return plan;
}

absl::StatusOr<ModelFiles> Dictionary(const char* program) {
  const std::string folder = "examples/chat/model/";
  const auto find = [&](const char* name) {
    return RunfilePath(program, folder + name, "the dictionary",
                       "name a model with --target or --shape");
  };
  ModelFiles files;
  DELTAEDGE_ASSIGN_OR_RETURN(files.target, find("target.gdn"));
  DELTAEDGE_ASSIGN_OR_RETURN(files.draft, find("draft.gdn"));
  return files;
}

// The models that the flags name.
struct Models {
  ModelFiles files;  // Of a shape: not yet.
  std::optional<ShapeModelOptions> shape;
  int32_t max_context = 0;
  int32_t draft_block = 0;  // 0: no draft.
};

// Finds them, and what they have room for, before the work of making or loading
// them begins.
absl::StatusOr<Models> ModelsFromFlags(const char* program, bool drafts) {
  Models models;
  models.files = {UserPath(absl::GetFlag(FLAGS_target)),
                  UserPath(absl::GetFlag(FLAGS_draft))};
  const std::string shape = absl::GetFlag(FLAGS_shape);
  if (models.files.target.empty() && !models.files.draft.empty()) {
    return UsageError("--draft needs --target; --shape has a draft of its own");
  }
  if (!shape.empty()) {
    if (!models.files.target.empty()) {
      return UsageError("--target and --shape exclude each other");
    }
    ShapeModelOptions options;
    options.shape = shape;
    options.layers = absl::GetFlag(FLAGS_layers);
    options.draft = drafts;
    options.folder = UserPath(absl::GetFlag(FLAGS_model_folder));
    options.stop = &Interrupted();
    DELTAEDGE_ASSIGN_OR_RETURN(options.recipe, RecipeFromFlags());
    DELTAEDGE_ASSIGN_OR_RETURN(const ShapeSizes sizes, SizesOfShape(options));
    models.max_context = sizes.target.max_context;
    if (drafts) models.draft_block = sizes.draft->block_size;
    models.shape = std::move(options);
    return models;
  }
  absl::string_view flag = GivenRecipeFlag();
  if (absl::GetFlag(FLAGS_layers) != 0) flag = "layers";
  if (!absl::GetFlag(FLAGS_model_folder).empty()) flag = "model_folder";
  if (!flag.empty()) {
    return UsageError(
        absl::StrCat("--", flag, " is for --shape, which is not given"));
  }
  if (models.files.target.empty()) {
    DELTAEDGE_ASSIGN_OR_RETURN(models.files, Dictionary(program));
  }
  DELTAEDGE_ASSIGN_OR_RETURN(const auto target,
                             ModelFile::Open(models.files.target));
  if (target->kind() != ModelKind::kTarget) {
    return absl::InvalidArgumentError(absl::StrCat(
        models.files.target, ": a draft; --target wants a target"));
  }
  models.max_context = target->target_config().max_context;
  if (models.files.draft.empty()) return models;
  DELTAEDGE_ASSIGN_OR_RETURN(const auto draft,
                             ModelFile::Open(models.files.draft));
  if (draft->kind() != ModelKind::kDraft) {
    return absl::InvalidArgumentError(
        absl::StrCat(models.files.draft, ": a target; --draft wants a draft"));
  }
  models.draft_block = draft->draft_config().block_size;
  return models;
}

// `*temporary` gets the folder of those that are made for this run only.
absl::Status MakeModels(Models* models, TemporaryFolder* temporary) {
  if (!models->shape.has_value()) return absl::OkStatus();
  if (models->shape->folder.empty()) {
    const absl::Status made = temporary->Make("deltaedge");
    if (!made.ok()) {
      return absl::Status(
          made.code(),
          absl::StrCat(made.message(), "; --model_folder names another"));
    }
    models->shape->folder = temporary->path();
  }
  DELTAEDGE_ASSIGN_OR_RETURN(models->files, ShapeModels(*models->shape));
  return absl::OkStatus();
}

// That answers behind prompts of `prompt` tokens fit into the model's context,
// their last step too.
absl::Status CheckRoom(const Plan& plan, int64_t prompt, int64_t max_context) {
  const int64_t most = max_context - prompt - kMaxBlockRows;
  for (const auto& [name, tokens] :
       {std::pair("decode", plan.decode),
        std::pair("max_new_tokens", plan.drafts() ? plan.new_tokens : 0)}) {
    if (tokens <= most) continue;
    return BadFlag(
        name, absl::StrCat(tokens),
        absl::StrCat("at most ", most, " behind a prompt of ", prompt,
                     " tokens in the model's context of ", max_context));
  }
  return absl::OkStatus();
}

// Makes what the flags do not say fit the model's context.
void ShrinkDefaults(int32_t max_context, Plan* plan) {
  const auto fit = [](const auto& flag, int32_t most, int32_t* value) {
    if (!flag.is_given) *value = std::clamp(*value, 1, std::max(1, most));
  };
  const int32_t room = max_context - kMaxBlockRows;
  fit(absl::GetFlag(FLAGS_prompt), room / 2, &plan->prompt);
  fit(absl::GetFlag(FLAGS_decode), room - plan->prompt, &plan->decode);
  fit(absl::GetFlag(FLAGS_max_new_tokens), room - plan->prompt,
      &plan->new_tokens);
  for (int32_t& rows : plan->prefill) {
    fit(absl::GetFlag(FLAGS_prefill), max_context - 1, &rows);
  }
  plan->prefill.erase(std::unique(plan->prefill.begin(), plan->prefill.end()),
                      plan->prefill.end());
  if (!absl::GetFlag(FLAGS_rows).is_given && max_context < kRowsLeastContext) {
    plan->rows.clear();
  }
}

// Resolves what depends on the models, and refuses what does not fit them.
absl::Status FitPlan(const Models& models, Plan* plan) {
  if (!IsDictionary()) {
    ShrinkDefaults(models.max_context, plan);
    DELTAEDGE_RETURN_IF_ERROR(CheckRange(
        "prompt", plan->prompt, 1, models.max_context - 1 - kMaxBlockRows));
    DELTAEDGE_RETURN_IF_ERROR(
        CheckRoom(*plan, plan->prompt, models.max_context));
  } else if (absl::GetFlag(FLAGS_prompt).is_given) {
    return UsageError(
        "--prompt is not for the dictionary, which is asked "
        "questions");
  }
  if (!plan->rows.empty() && models.max_context < kRowsLeastContext) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rows needs a model with room for ", kRowsLeastContext,
                     " tokens; this one has room for ", models.max_context));
  }
  for (const int32_t rows : plan->prefill) {
    DELTAEDGE_RETURN_IF_ERROR(
        CheckRange("prefill", rows, 1, models.max_context - 1));
  }
  if (models.draft_block <= 1 || !plan->drafts()) {
    for (const auto& [flag, is_given] :
         {std::pair("draft_tokens", absl::GetFlag(FLAGS_draft_tokens).is_given),
          std::pair("synthetic_acceptance",
                    plan->synthetic_acceptance > 0.0)}) {
      if (!is_given) continue;
      return UsageError(absl::StrCat(
          "--", flag,
          " needs a draft, and --spec, --sessions or --serving to measure it"));
    }
    plan->draft_tokens.clear();
  }
  for (std::optional<int32_t>& draft_tokens : plan->draft_tokens) {
    const int32_t most = models.draft_block - 1;
    if (draft_tokens.value_or(0) > most) {
      return BadFlag("draft_tokens", absl::StrCat(*draft_tokens),
                     absl::StrCat("1 to ", most, " with this draft"));
    }
    if (draft_tokens == -1) draft_tokens = most;
    const int32_t rows = 1 + draft_tokens.value_or(most);
    if (plan->synthetic_acceptance > rows) {
      return BadFlag(
          "synthetic_acceptance", absl::StrCat(plan->synthetic_acceptance),
          absl::StrCat("at most ", rows, " with steps of so many rows"));
    }
  }
  return absl::OkStatus();
}

// Chat messages where the model has a format for them.
absl::StatusOr<std::vector<std::vector<TokenId>>> Encode(
    const Engine& engine, bool chat, const std::vector<Prompt>& prompts) {
  std::vector<std::vector<TokenId>> encoded;
  for (const Prompt& prompt : prompts) {
    absl::StatusOr<std::vector<TokenId>> tokens =
        chat ? engine.chat().Render({{Role::kUser, prompt.text}})
             : engine.tokenizer().Encode(prompt.text,
                                         Tokenizer::Special::kAsText);
    if (!tokens.ok()) {
      return absl::Status(
          tokens.status().code(),
          absl::StrCat(prompt.from, ": ", tokens.status().message()));
    }
    encoded.push_back(*std::move(tokens));
  }
  return encoded;
}

// What is the same for all tests with one engine.
absl::StatusOr<nlohmann::ordered_json> Facts(
    const Engine& engine, const ModelFiles& files, absl::string_view weights,
    const TokenBytes& bytes, ReadStream* stream, int32_t repetitions) {
  const ModelInfo& info = engine.info();
  LetOthersRest();
  std::vector<double> rates;
  for (int32_t i = 0; i < 3 * repetitions; ++i) {
    rates.push_back(ReadStream::kBytes / absl::ToDoubleSeconds(stream->Read()) /
                    1e9);
  }
  nlohmann::ordered_json facts = {
      {"test", "setup"},
      {"model", info.name.empty() ? files.target : info.name},
      {"weights", weights},
      {"threads", info.threads},
      {"thread_placement", info.thread_placement},
      {"cpu", CpuName()},
      {"kernels", info.cpu_target},
      {"products", PackingIdentity()},
      {"packed_weights", info.packed_weights},
      {"draft_block", info.draft_block},
      {"weight_bytes_per_token", bytes.weights},
      {"state_bytes_per_token", bytes.states},
      {"kv_bytes_per_position", bytes.kv_of_position},
  };
  AddSpread("read_gb_per_second", SpreadOf(rates), &facts);
  return facts;
}

absl::Status Measure(const ModelFiles& files, const Plan& plan, int threads) {
  DELTAEDGE_ASSIGN_OR_RETURN(const auto target, ModelFile::Open(files.target));
  const std::string weights = WeightsText(*target);
  const TokenBytes bytes = TokenBytesOf(*target);
  EngineOptions options;
  options.num_threads = threads;
  options.packed_weights = plan.packed_weights;
  if (absl::GetFlag(FLAGS_big_cores)) {
    options.placement = EngineOptions::Placement::kBigCores;
  }
  DELTAEDGE_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                             Engine::Open(files, options));
  const ModelInfo& info = engine->info();
  DELTAEDGE_ASSIGN_OR_RETURN(const std::unique_ptr<ReadStream> stream,
                             ReadStream::Create(info.threads));
  SessionBench bench;
  bench.engine = engine.get();
  bench.rollbacks = plan.rollbacks;
  bench.repetitions = plan.repetitions;
  bench.stop = &Interrupted();
  bench.draft_tokens = plan.draft_tokens;
  bench.stop_tokens = IsDictionary();
  if (bench.stop_tokens) {
    DELTAEDGE_ASSIGN_OR_RETURN(bench.prompts,
                               Encode(*engine, /*chat=*/true, Questions()));
    for (const std::vector<TokenId>& prompt : bench.prompts) {
      DELTAEDGE_RETURN_IF_ERROR(CheckRoom(
          plan, static_cast<int64_t>(prompt.size()), info.max_context));
    }
  } else {
    const int32_t count = std::clamp(plan.sessions, 1, 8);
    for (int32_t seed = 1; seed <= count; ++seed) {
      bench.prompts.push_back(RandomTokens(info.vocab_size, plan.prompt, seed));
    }
  }
  DELTAEDGE_ASSIGN_OR_RETURN(
      const std::vector<std::vector<TokenId>> served,
      Encode(*engine, target->chat().has_value(), plan.prompts));
  for (size_t i = 0; i < served.size(); ++i) {
    const auto prompt = static_cast<int64_t>(served[i].size());
    if (prompt + plan.new_tokens <= info.max_context) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        plan.prompts[i].from, ": has ", prompt,
        " tokens, behind which the model's context of ", info.max_context,
        " has no room for --max_new_tokens=", plan.new_tokens));
  }

  DELTAEDGE_ASSIGN_OR_RETURN(
      nlohmann::ordered_json facts,
      Facts(*engine, files, weights, bytes, stream.get(), plan.repetitions));
  if (plan.synthetic_acceptance > 0.0) {
    facts["synthetic_acceptance"] = plan.synthetic_acceptance;
  }
  absl::PrintF("%s%s", Setup(facts, plan.format), Heading(plan.format));
  std::fflush(stdout);
  const auto print = [&](absl::StatusOr<std::vector<Result>> results) {
    if (!results.ok()) return results.status();
    for (Result& result : *results) {
      result.weights = weights;
      absl::PrintF("%s", Line(result, plan.format));
    }
    return std::fflush(stdout) == 0
               ? absl::OkStatus()
               : absl::DataLossError("standard output cannot be written");
  };
  if (plan.decode > 0) {
    bench.new_tokens = plan.decode;
    DELTAEDGE_RETURN_IF_ERROR(print(BenchDecode(bench, bytes, stream.get())));
  }
  if (!plan.rows.empty()) {
    DELTAEDGE_RETURN_IF_ERROR(print(BenchRows(bench, plan.rows)));
  }
  if (!plan.prefill.empty()) {
    DELTAEDGE_RETURN_IF_ERROR(
        print(BenchPrefill(bench, plan.prefill, *target)));
  }

  bench.new_tokens = plan.new_tokens;
  SyntheticAcceptance synthetic(plan.synthetic_acceptance);
  if (plan.synthetic_acceptance > 0.0) bench.synthetic = &synthetic;
  const auto learn = [&] {
    return bench.synthetic == nullptr
               ? absl::OkStatus()
               : synthetic.Learn(*engine, bench.prompts,
                                 bench.new_tokens + 2 * kMaxBlockRows,
                                 bench.stop_tokens);
  };
  if (plan.drafts()) DELTAEDGE_RETURN_IF_ERROR(learn());
  if (plan.spec && !bench.draft_tokens.empty()) {
    DELTAEDGE_RETURN_IF_ERROR(print(BenchSpec(bench)));
  }
  if (plan.sessions > 0) {
    DELTAEDGE_RETURN_IF_ERROR(print(BenchSessions(bench, plan.sessions)));
  }
  if (plan.serving) {
    bench.prompts = served;
    bench.stop_tokens = true;
    DELTAEDGE_RETURN_IF_ERROR(learn());
    DELTAEDGE_RETURN_IF_ERROR(print(BenchServing(bench)));
  }
  return absl::OkStatus();
}

absl::Status Run(const std::vector<char*>& arguments) {
  DELTAEDGE_RETURN_IF_ERROR(CheckNoArguments(arguments));
  DELTAEDGE_ASSIGN_OR_RETURN(Plan plan, PlanFromFlags());
  DELTAEDGE_ASSIGN_OR_RETURN(Models models,
                             ModelsFromFlags(arguments[0], plan.drafts()));
  DELTAEDGE_RETURN_IF_ERROR(FitPlan(models, &plan));
  TemporaryFolder temporary;
  DELTAEDGE_RETURN_IF_ERROR(MakeModels(&models, &temporary));
  for (const int32_t threads : plan.threads) {
    DELTAEDGE_RETURN_IF_ERROR(Measure(models.files, plan, threads));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace deltaedge

int main(int argc, char** argv) {
  const std::vector<char*> arguments = deltaedge::StartProgram(
      argc, argv,
      "measures the engine:\n"
      "  bench [--target=FILE.gdn [--draft=FILE.gdn]]\n"
      "  bench --shape=0.8b --weights=q8 --threads=1,2\n"
      "Candidates of a test take turns in one run; \"ratio\" is the median of "
      "tokens per second over the\nfirst candidate's in the same turn.");
  const deltaedge::ScopedInterrupts interrupts;
  return deltaedge::EndProgram(deltaedge::Run(arguments));
}
