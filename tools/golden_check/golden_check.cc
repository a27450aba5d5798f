// SPDX-License-Identifier: Apache-2.0

#include "tools/golden_check/golden_check.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <system_error>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/base/thread_pool.h"
#include "nlohmann/json.hpp"
#include "tools/convert/json.h"
#include "tools/golden_check/conversation_golden.h"
#include "tools/golden_check/draft_golden.h"
#include "tools/golden_check/draft_runner.h"
#include "tools/golden_check/golden_tensors.h"
#include "tools/golden_check/model_pair.h"
#include "tools/golden_check/operator_golden.h"
#include "tools/golden_check/target_golden.h"
#include "tools/golden_check/tokenizer_golden.h"

namespace deltaedge {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxJsonBytes = int64_t{1} << 28;
constexpr size_t kListedNames = 20;
// A float run of another implementation, kept in goldens to compare tools; the
// truth is beside it.
constexpr absl::string_view kNotTruth = "_torch_f32";

// `name` beside `golden` as JSON; null if there is no such file.
absl::StatusOr<nlohmann::json> ReadBeside(const std::string& golden,
                                          absl::string_view name) {
  const std::string path =
      (fs::path(golden).parent_path() / std::string(name)).string();
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return nlohmann::json();
  return ReadJsonFile(path, kMaxJsonBytes);
}

absl::StatusOr<WindowMode> ReadWindowMode(const std::string& golden) {
  DELTAEDGE_ASSIGN_OR_RETURN(const nlohmann::json meta,
                             ReadBeside(golden, "golden_meta.json"));
  if (!meta.is_object() || !meta.contains("window_mode")) {
    return WindowMode::kAsConfigured;
  }
  const nlohmann::json& mode = meta["window_mode"];
  if (mode.is_null() || mode == "full") return WindowMode::kFull;
  if (mode == "causal") return WindowMode::kCausal;
  if (mode == "symmetric") return WindowMode::kSymmetric;
  return absl::InvalidArgumentError(
      absl::StrCat("golden_meta.json: window_mode is ", ShortJson(mode),
                   "; it may be causal, symmetric, full or null"));
}

absl::Status NeedOption(const std::string& golden, absl::string_view what,
                        absl::string_view option) {
  return absl::InvalidArgumentError(absl::StrCat(golden, " is a golden of ",
                                                 what, ", for which ", option,
                                                 " must be given"));
}

// Notes the options that a golden has no use for.
void NoteUnused(const std::string& value, absl::string_view option,
                Report* report) {
  if (!value.empty()) {
    report->Note(absl::StrCat(option, " is not used by this golden"));
  }
}

void NoteNames(const std::vector<std::string>& names, absl::string_view what,
               Report* report) {
  if (names.empty()) return;
  const auto end = names.begin() + std::min<size_t>(names.size(), kListedNames);
  report->Note(absl::StrCat(names.size(), " ", what, ": ",
                            absl::StrJoin(names.begin(), end, ", "),
                            end == names.end() ? "" : ", ..."));
}

absl::Status CheckTensors(const GoldenCheckOptions& options, Report* report) {
  DELTAEDGE_ASSIGN_OR_RETURN(GoldenTensors golden,
                             GoldenTensors::Open(options.golden));
  bool has_target = false, has_rigged = false, has_draft = false;
  std::vector<std::string> not_truth;
  for (const std::string& section : golden.Sections()) {
    for (const std::string& name : golden.Names(section)) {
      if (!absl::EndsWith(name, kNotTruth)) continue;
      golden.Skip(section, name);
      not_truth.push_back(absl::StrCat(section, ".", name));
    }
    has_target = has_target || IsTargetPrompt(golden, section);
    has_rigged = has_rigged || IsRiggedPrompt(golden, section);
    has_draft = has_draft || IsDraftPrompt(golden, section);
  }
  NoteUnused(options.tokenizer, "--tokenizer", report);

  if (IsOperatorGolden(golden)) {
    DELTAEDGE_ASSIGN_OR_RETURN(const nlohmann::json meta,
                               ReadBeside(options.golden, "ops_meta.json"));
    CheckOperators(&golden, meta, report);
  }
  if (has_target || has_rigged || has_draft) {
    if (options.model.empty()) {
      return NeedOption(options.golden, "a model", "--model");
    }
    if (has_draft && options.draft.empty()) {
      return NeedOption(options.golden, "a draft", "--draft");
    }
    if (!has_target && !has_draft) {
      NoteUnused(options.draft, "--draft", report);
    }
    DELTAEDGE_ASSIGN_OR_RETURN(const std::unique_ptr<ModelPair> pair,
                               ModelPair::Load(options.model, options.draft));
    DELTAEDGE_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool,
                               ThreadPool::Create(options.threads));
    if (has_target) CheckTargetPrompts(*pair, pool->get(), &golden, report);
    if (has_rigged) CheckRiggedPrompts(*pair, pool->get(), &golden, report);
    if (has_draft) {
      DELTAEDGE_ASSIGN_OR_RETURN(const WindowMode window,
                                 ReadWindowMode(options.golden));
      CheckDraftPrompts(*pair, window, pool->get(), &golden, report);
    }
  } else {
    NoteUnused(options.model, "--model", report);
    NoteUnused(options.draft, "--draft", report);
  }
  NoteNames(not_truth, "tensors are not the truth, skipped", report);
  NoteNames(golden.Unknown(), "tensors are not understood", report);
  return absl::OkStatus();
}

absl::Status CheckJson(const GoldenCheckOptions& options, Report* report) {
  DELTAEDGE_ASSIGN_OR_RETURN(const nlohmann::json golden,
                             ReadJsonFile(options.golden, kMaxJsonBytes));
  NoteUnused(options.tokenizer, "--tokenizer", report);
  if (!IsConversationGolden(golden)) return absl::OkStatus();
  if (options.model.empty()) {
    return NeedOption(options.golden, "conversations", "--model");
  }
  DELTAEDGE_ASSIGN_OR_RETURN(const std::unique_ptr<ModelPair> pair,
                             ModelPair::Load(options.model, options.draft));
  DELTAEDGE_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool,
                             ThreadPool::Create(options.threads));
  CheckConversations(*pair, pool->get(), golden, report);
  return absl::OkStatus();
}

}  // namespace

absl::Status RunGoldenCheck(const GoldenCheckOptions& options, Report* report) {
  std::error_code error;
  if (options.golden.empty()) {
    return absl::InvalidArgumentError("--golden is missing");
  }
  if (fs::is_directory(options.golden, error)) {
    NoteUnused(options.model, "--model", report);
    NoteUnused(options.draft, "--draft", report);
    if (IsTokenizerGolden(options.golden)) {
      CheckTokenizer(options.golden, options.tokenizer, report);
    }
  } else if (absl::EndsWith(options.golden, ".json")) {
    DELTAEDGE_RETURN_IF_ERROR(CheckJson(options, report));
  } else {
    DELTAEDGE_RETURN_IF_ERROR(CheckTensors(options, report));
  }
  if (report->passed() + report->failed() == 0) {
    report->Fail(options.golden,
                 report->not_run() > 0
                     ? "nothing in it could be checked"
                     : "nothing in it is a golden of a known format");
  }
  return absl::OkStatus();
}

}  // namespace deltaedge
