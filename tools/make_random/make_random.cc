// SPDX-License-Identifier: Apache-2.0

#include "tools/make_random/make_random.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/model/chat_table.h"
#include "engine/model/config.h"
#include "engine/model/fingerprint.h"
#include "engine/model/model_contents.h"
#include "engine/model/model_file.h"
#include "engine/model/model_writer.h"
#include "engine/model/tensor_list.h"
#include "engine/model/tokenizer_tables.h"
#include "engine/types.h"
#include "tools/convert/weight_recipe.h"
#include "tools/convert/weight_writer.h"

namespace deltaedge {
namespace {

constexpr char kMaker[] = "deltaedge make_random 1";
constexpr int64_t kPieceElements = 1 << 18;

// SplitMix64, whose n-th number is a function of n.
class Numbers {
 public:
  Numbers(uint64_t seed, absl::string_view tensor) : key_(seed) {
    for (const char c : tensor) {
      key_ = Mix(key_ ^ static_cast<unsigned char>(c));
    }
  }

  // Even in [0, 1).
  double Uniform(int64_t i) const {
    return static_cast<double>(At(i) >> 11) * 0x1p-53;
  }

  // Mean 0, deviation 1: twelve even numbers of 16 bits, added. No function of
  // the C library, whose last bits differ between machines.
  double Normal(int64_t i) const {
    int64_t sum = 0;
    for (int64_t j = 0; j < 3; ++j) {
      const uint64_t bits = At(3 * i + j);
      for (int shift = 0; shift < 64; shift += 16) {
        sum += static_cast<int64_t>(bits >> shift & 0xFFFF);
      }
    }
    return static_cast<double>(2 * sum - 12 * 0xFFFF) * 0x1p-17;
  }

 private:
  static uint64_t Mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  uint64_t At(int64_t i) const {
    return Mix(key_ + (static_cast<uint64_t>(i) + 1) * 0x9E3779B97F4A7C15u);
  }

  uint64_t key_;
};

// How a tensor's numbers are drawn.
enum class Draw {
  kMatrix,   // Deviation 1/sqrt(columns): keeps the size of its input.
  kHead,     // Twice that: logits of deviation 2.
  kGain,     // 1 + 0.1 * normal.
  kTaps,     // Deviation 1/2: four of them keep the size of their input.
  kNegExpA,  // -16 .. -1.
  kDtBias,   // -6.9 .. -2.25: steps of 0.001 to 0.1 after softplus.
};

Draw DrawOf(absl::string_view tensor) {
  if (tensor == "embedding" || tensor == "head") return Draw::kHead;
  if (absl::EndsWith(tensor, "norm")) return Draw::kGain;
  if (absl::EndsWith(tensor, "gdn.conv")) return Draw::kTaps;
  if (absl::EndsWith(tensor, "gdn.neg_exp_a")) return Draw::kNegExpA;
  if (absl::EndsWith(tensor, "gdn.dt_bias")) return Draw::kDtBias;
  return Draw::kMatrix;
}

// Any part of one random tensor.
class RandomTensor {
 public:
  RandomTensor(const TensorSpec& spec, uint64_t seed)
      : draw_(DrawOf(spec.name)),
        numbers_(seed, spec.name),
        elements_(1),
        columns_(spec.shape.back()) {
    for (const int32_t extent : spec.shape) elements_ *= extent;
  }

  int64_t elements() const { return elements_; }
  int64_t columns() const { return columns_; }

  // Elements [first, first + count).
  std::vector<float> Values(int64_t first, int64_t count) const {
    std::vector<float> values(count);
    for (int64_t i = 0; i < count; ++i) {
      values[i] = static_cast<float>(Value(first + i));
    }
    return values;
  }

  // What a gain of 1 + w has for w: the value that a checkpoint would hold.
  std::vector<float> ZeroCentred() const {
    std::vector<float> values = Values(0, elements_);
    for (float& value : values) value -= 1.0f;
    return values;
  }

 private:
  double Value(int64_t i) const {
    switch (draw_) {
      case Draw::kMatrix:
        return numbers_.Normal(i) / std::sqrt(static_cast<double>(columns_));
      case Draw::kHead:
        return 2 * numbers_.Normal(i) /
               std::sqrt(static_cast<double>(columns_));
      case Draw::kGain:
        return 1 + 0.1 * numbers_.Normal(i);
      case Draw::kTaps:
        return 0.5 * numbers_.Normal(i);
      case Draw::kNegExpA:
        return -16 + 15 * numbers_.Uniform(i);
      case Draw::kDtBias:
        return -6.9 + 4.65 * numbers_.Uniform(i);
    }
    return 0;
  }

  const Draw draw_;
  const Numbers numbers_;
  int64_t elements_;
  const int64_t columns_;
};

const TensorSpec& Find(const std::vector<TensorSpec>& specs,
                       absl::string_view name) {
  return *std::find_if(specs.begin(), specs.end(), [&](const TensorSpec& spec) {
    return spec.name == name;
  });
}

// The first or last rows that a fingerprint takes in.
std::vector<float> EndRows(const TensorSpec& spec, uint64_t seed, bool last) {
  const RandomTensor tensor(spec, seed);
  const int64_t rows = std::min<int64_t>(spec.shape[0], kFingerprintRows);
  const int64_t first = last ? spec.shape[0] - rows : 0;
  return tensor.Values(first * tensor.columns(), rows * tensor.columns());
}

absl::Status Write(const std::string& output, ModelContents contents,
                   std::vector<TensorSpec> specs, uint64_t fingerprint,
                   const RandomModelOptions& options) {
  DELTAEDGE_RETURN_IF_ERROR(CheckRecipe(options.recipe, contents.kind));
  for (TensorSpec& spec : specs) spec.type = TypeFor(options.recipe, spec);
  contents.converter = kMaker;
  DELTAEDGE_ASSIGN_OR_RETURN(
      const std::unique_ptr<ModelWriter> writer,
      ModelWriter::Create(output, std::move(contents), specs));
  WeightWriter weights(writer.get());
  for (const TensorSpec& spec : specs) {
    const RandomTensor tensor(spec, options.seed);
    const int64_t piece = WeightWriter::PieceOf(spec, kPieceElements);
    DELTAEDGE_RETURN_IF_ERROR(weights.Begin(spec));
    for (int64_t first = 0; first < tensor.elements(); first += piece) {
      if (options.stop != nullptr && options.stop->load()) {
        return absl::CancelledError(
            absl::StrCat(output, ": stopped at tensor ", spec.name));
      }
      DELTAEDGE_RETURN_IF_ERROR(weights.Append(
          tensor.Values(first, std::min(piece, tensor.elements() - first))));
    }
  }
  return writer->Finish(fingerprint);
}

}  // namespace

absl::Status MakeRandomTarget(const TargetConfig& config,
                              const std::string& output,
                              const RandomModelOptions& options) {
  DELTAEDGE_RETURN_IF_ERROR(Validate(config));
  ModelContents contents;
  contents.kind = ModelKind::kTarget;
  contents.target = config;
  contents.stop_tokens = options.stop_tokens;
  if (options.byte_tokenizer && config.vocab_size >= kByteTokens) {
    contents.tokenizer = ByteTokenizer(config.vocab_size);
    contents.chat = ByteChat();
  }
  const std::vector<TensorSpec> specs = TensorSpecs(config);
  const TensorSpec& embedding = Find(specs, "embedding");
  const uint64_t seed = options.seed;
  const uint64_t fingerprint = TargetFingerprint(
      config, contents.tokenizer,
      RandomTensor(Find(specs, "final_norm"), seed).ZeroCentred(),
      EndRows(embedding, seed, /*last=*/false),
      EndRows(embedding, seed, /*last=*/true));
  return Write(output, std::move(contents), specs, fingerprint, options);
}

absl::Status MakeRandomDraft(DraftConfig config, const std::string& target_path,
                             const std::string& output,
                             const RandomModelOptions& options) {
  DELTAEDGE_ASSIGN_OR_RETURN(const std::unique_ptr<ModelFile> target,
                             ModelFile::Open(target_path));
  if (target->kind() != ModelKind::kTarget) {
    return absl::InvalidArgumentError(
        absl::StrCat(target_path, ": is a ", ModelKindName(target->kind()),
                     "; a draft's target is needed"));
  }
  if (config.target_layer_count == 0) {
    config.target_layer_count =
        static_cast<int32_t>(target->target_config().layers.size());
  }
  DELTAEDGE_RETURN_IF_ERROR(Validate(config));
  DELTAEDGE_RETURN_IF_ERROR(ValidatePair(target->target_config(), config));
  ModelContents contents;
  contents.kind = ModelKind::kDraft;
  contents.draft = config;
  contents.target_fingerprint = target->fingerprint();
  const std::vector<TensorSpec> specs = TensorSpecs(config);
  const TensorSpec& fc = Find(specs, "fc");
  const auto whole = [&](absl::string_view name) {
    const RandomTensor tensor(Find(specs, name), options.seed);
    return tensor.Values(0, tensor.elements());
  };
  const uint64_t fingerprint = DraftFingerprint(
      config, target->fingerprint(), whole("hidden_norm"), whole("final_norm"),
      EndRows(fc, options.seed, /*last=*/false),
      EndRows(fc, options.seed, /*last=*/true));
  return Write(output, std::move(contents), specs, fingerprint, options);
}

TokenizerTables ByteTokenizer(int32_t vocab_size) {
  TokenizerTables tables;
  for (int byte = 0; byte < 256; ++byte) {
    tables.token_bytes.emplace_back(1, static_cast<char>(byte));
  }
  const auto add = [&](TokenId id, const char* text, bool special) {
    AddedToken token;
    token.id = id;
    token.text = text;
    token.special = special;
    tables.token_bytes.push_back(text);
    tables.added.push_back(std::move(token));
  };
  add(kByteEndOfText, "<|endoftext|>", true);
  add(kByteTurnStart, "<|im_start|>", true);
  add(kByteTurnEnd, "<|im_end|>", true);
  add(kByteThink, "<think>", false);
  add(kByteEndThink, "</think>", false);
  add(kByteMask, "<|mask|>", true);
  tables.pretokenizer = "\\s+|\\S+";
  tables.vocab_size = vocab_size;
  return tables;
}

ChatTable ByteChat() {
  ChatTable chat;
  chat.turn_start = "<|im_start|>";
  chat.name_end = "\n";
  chat.turn_end = "<|im_end|>\n";
  chat.reply_open_off = "<think>\n\n</think>\n\n";
  chat.reply_open_on = "<think>\n";
  chat.control_tokens = {{kByteTurnStart, "<|im_start|>"},
                         {kByteTurnEnd, "<|im_end|>"},
                         {kByteThink, "<think>"},
                         {kByteEndThink, "</think>"}};
  chat.stop_tokens = {kByteTurnEnd, kByteEndOfText};
  return chat;
}

}  // namespace deltaedge
