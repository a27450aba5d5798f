// SPDX-License-Identifier: Apache-2.0

#include "engine/options.h"

#include <cfloat>
#include <cmath>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/text/utf8.h"

namespace deltaedge {

namespace {

constexpr size_t kMaxStopTexts = 64;
constexpr size_t kMaxStopTextBytes = 1024;

// A NaN is in no range.
absl::Status CheckRange(const char* name, float value, float low, float high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, "; allowed are ", low, " to ", high));
}

// Above 0, and not by less than the smallest normal number, which may count as
// 0 or not, as the caller's floating-point mode has it.
absl::Status CheckAboveZero(const char* name, float value, float high) {
  if (value >= FLT_MIN && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, " is ", value, "; allowed are ", FLT_MIN, " to ", high));
}

}  // namespace

absl::Status Validate(const EngineOptions& options) {
  if (options.num_threads < 0 || options.num_threads > 256) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_threads is ", options.num_threads,
                     "; allowed are 0 (all that are there) to 256"));
  }
  if (options.placement != EngineOptions::Placement::kAnywhere &&
      options.placement != EngineOptions::Placement::kBigCores) {
    return absl::InvalidArgumentError(
        absl::StrCat("placement is ", static_cast<int>(options.placement),
                     "; allowed are kAnywhere and kBigCores"));
  }
  if (options.verify != EngineOptions::Verify::kStructure &&
      options.verify != EngineOptions::Verify::kChecksums) {
    return absl::InvalidArgumentError(
        absl::StrCat("verify is ", static_cast<int>(options.verify),
                     "; allowed are kStructure and kChecksums"));
  }
  if (options.packed_weights != EngineOptions::PackedWeights::kFile &&
      options.packed_weights != EngineOptions::PackedWeights::kMemory) {
    return absl::InvalidArgumentError(absl::StrCat(
        "packed_weights is ", static_cast<int>(options.packed_weights),
        "; allowed are kFile and kMemory"));
  }
  return absl::OkStatus();
}

absl::Status Validate(const SessionOptions& options) {
  if (options.max_context < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_context is ", options.max_context,
        "; allowed are 0 (the model's limit) or a number of tokens"));
  }
  if (options.draft_tokens.has_value() &&
      (*options.draft_tokens < 0 || *options.draft_tokens > 15)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "draft_tokens is ", *options.draft_tokens, "; allowed are 0 to 15"));
  }
  if (options.lookup && options.drafter != nullptr) {
    return absl::InvalidArgumentError(
        "lookup is true and drafter is set; only one of them can draft");
  }
  if (options.rollback != Rollback::kJournal &&
      options.rollback != Rollback::kSlots) {
    return absl::InvalidArgumentError(
        absl::StrCat("rollback is ", static_cast<int>(options.rollback),
                     "; allowed are kJournal and kSlots"));
  }
  if (options.memory_limit_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory_limit_bytes is ", options.memory_limit_bytes,
                     "; allowed are 0 (no limit) or a number of bytes"));
  }
  return absl::OkStatus();
}

absl::Status Validate(const SamplingOptions& options) {
  DELTAEDGE_RETURN_IF_ERROR(
      CheckRange("temperature", options.temperature, 0.0f, 100.0f));
  if (options.top_k < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("top_k is ", options.top_k,
                     "; allowed are 0 (all) or a number of tokens"));
  }
  DELTAEDGE_RETURN_IF_ERROR(CheckAboveZero("top_p", options.top_p, 1.0f));
  DELTAEDGE_RETURN_IF_ERROR(CheckRange("min_p", options.min_p, 0.0f, 1.0f));
  DELTAEDGE_RETURN_IF_ERROR(
      CheckAboveZero("repetition_penalty", options.repetition_penalty, 100.0f));
  DELTAEDGE_RETURN_IF_ERROR(CheckRange(
      "presence_penalty", options.presence_penalty, -100.0f, 100.0f));
  DELTAEDGE_RETURN_IF_ERROR(CheckRange(
      "frequency_penalty", options.frequency_penalty, -100.0f, 100.0f));
  absl::flat_hash_set<TokenId> biased;
  for (size_t i = 0; i < options.logit_bias.size(); ++i) {
    const LogitBias& bias = options.logit_bias[i];
    if (!std::isfinite(bias.bias)) {
      return absl::InvalidArgumentError(
          absl::StrCat("logit_bias[", i, "] adds ", bias.bias, " to token ",
                       bias.token, "; allowed are finite numbers"));
    }
    if (!biased.insert(bias.token).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("logit_bias[", i, "] is for token ", bias.token,
                       ", which has one already"));
    }
  }
  return absl::OkStatus();
}

absl::Status Validate(const GenerateOptions& options) {
  if (options.max_new_tokens < 1) {
    return absl::InvalidArgumentError(absl::StrCat("max_new_tokens is ",
                                                   options.max_new_tokens,
                                                   "; at least 1 is needed"));
  }
  if (options.stop_texts.size() > kMaxStopTexts) {
    return absl::InvalidArgumentError(
        absl::StrCat("stop_texts has ", options.stop_texts.size(),
                     " entries; allowed are at most ", kMaxStopTexts));
  }
  for (size_t i = 0; i < options.stop_texts.size(); ++i) {
    const std::string& text = options.stop_texts[i];
    if (text.empty() || text.size() > kMaxStopTextBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("stop_texts[", i, "] has ", text.size(),
                       " bytes; allowed are 1 to ", kMaxStopTextBytes));
    }
    DELTAEDGE_RETURN_IF_ERROR(
        CheckUtf8(text, absl::StrCat("stop_texts[", i, "]")));
  }
  return Validate(options.sampling);
}

}  // namespace deltaedge
