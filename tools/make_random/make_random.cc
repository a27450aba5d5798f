// SPDX-License-Identifier: Apache-2.0

#include "tools/make_random/make_random.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
#include "tools/make_random/random_tensor.h"

namespace deltaedge {
namespace {

constexpr char kMaker[] = "deltaedge make_random 1";
constexpr int64_t kPieceElements = 1 << 18;

const TensorSpec& Find(const std::vector<TensorSpec>& specs,
                       absl::string_view name) {
  return *std::find_if(specs.begin(), specs.end(), [&](const TensorSpec& spec) {
    return spec.name == name;
  });
}

// The first or last rows that a fingerprint takes in.
std::vector<float> EndRows(const RandomTensor& tensor, int32_t all, bool last) {
  const int64_t rows = std::min(all, kFingerprintRows);
  const int64_t first = last ? all - rows : 0;
  return tensor.Source(first * tensor.columns(), rows * tensor.columns());
}

std::vector<float> Whole(const RandomTensor& tensor) {
  return tensor.Source(0, tensor.elements());
}

absl::Status Write(const std::string& output, ModelContents contents,
                   std::vector<TensorSpec> specs, uint64_t fingerprint,
                   const RandomModelOptions& options) {
  const ModelKind kind = contents.kind;
  DELTAEDGE_RETURN_IF_ERROR(CheckRecipe(options.recipe, kind));
  for (TensorSpec& spec : specs) spec.type = TypeFor(options.recipe, spec);
  contents.converter = kMaker;
  DELTAEDGE_ASSIGN_OR_RETURN(
      const std::unique_ptr<ModelWriter> writer,
      ModelWriter::Create(output, std::move(contents), specs));
  WeightWriter weights(writer.get());
  for (const TensorSpec& spec : specs) {
    const RandomTensor tensor(spec, kind, options.numbers);
    const int64_t piece = WeightWriter::PieceOf(spec, kPieceElements);
    DELTAEDGE_RETURN_IF_ERROR(weights.Begin(spec));
    for (int64_t first = 0; first < tensor.elements(); first += piece) {
      if (options.stop != nullptr && options.stop->load()) {
        return absl::CancelledError(
            absl::StrCat(output, ": stopped at tensor ", spec.name));
      }
      DELTAEDGE_RETURN_IF_ERROR(weights.Append(
          tensor.Stored(first, std::min(piece, tensor.elements() - first))));
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
  const auto tensor = [&](absl::string_view name) {
    return RandomTensor(Find(specs, name), contents.kind, options.numbers);
  };
  const uint64_t fingerprint = TargetFingerprint(
      config, contents.tokenizer, Whole(tensor("final_norm")),
      EndRows(tensor("embedding"), config.vocab_size, /*last=*/false),
      EndRows(tensor("embedding"), config.vocab_size, /*last=*/true));
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
  const auto tensor = [&](absl::string_view name) {
    return RandomTensor(Find(specs, name), contents.kind, options.numbers);
  };
  const uint64_t fingerprint = DraftFingerprint(
      config, target->fingerprint(), Whole(tensor("hidden_norm")),
      Whole(tensor("final_norm")),
      EndRows(tensor("fc"), config.hidden_size, /*last=*/false),
      EndRows(tensor("fc"), config.hidden_size, /*last=*/true));
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
