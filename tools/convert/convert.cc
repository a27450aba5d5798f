// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/convert.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/status_macros.h"
#include "engine/model/config.h"
#include "engine/model/fingerprint.h"
#include "engine/model/model_contents.h"
#include "engine/model/model_file.h"
#include "engine/model/model_writer.h"
#include "engine/model/tensor_list.h"
#include "engine/model/tokenizer_tables.h"
#include "engine/model/weights.h"
#include "engine/text/bpe_tokenizer.h"
#include "engine/types.h"
#include "tools/cli/paths.h"
#include "tools/convert/chat_template.h"
#include "tools/convert/gguf.h"
#include "tools/convert/gguf_config.h"
#include "tools/convert/gguf_tokenizer.h"
#include "tools/convert/hf_config.h"
#include "tools/convert/printable_name.h"
#include "tools/convert/random_access_file.h"
#include "tools/convert/safetensors.h"
#include "tools/convert/tensor_map.h"
#include "tools/convert/tensor_source.h"
#include "tools/convert/tokenizer_json.h"
#include "tools/convert/weight_recipe.h"
#include "tools/convert/weight_writer.h"

namespace deltaedge {
namespace {

constexpr char kConverter[] = "deltaedge convert 1";

// Numbers that are read, changed and written at a time.
constexpr int64_t kPieceElements = 1 << 20;

absl::Status Invalid(absl::string_view where, const absl::Status& status) {
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": ", status.message()));
}

bool FileExists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

// Replacing one of the files that are read would lose it.
absl::Status CheckOutput(const ConvertOptions& options,
                         const TensorSource& checkpoint) {
  std::vector<std::string> inputs = {options.target};
  for (const RandomAccessFile& file : checkpoint.files()) {
    inputs.push_back(file.path());
  }
  return CheckNotRead(options.output, inputs);
}

std::string ModelName(const ConvertOptions& options) {
  if (!options.name.empty()) return options.name;
  std::filesystem::path path(options.input);
  if (!path.has_filename()) path = path.parent_path();  // "folder/"
  if (path.extension() == ".gguf") path.replace_extension();
  const std::string name = path.filename().string();
  return name == "." || name == ".." ? "" : name;
}

// Rows of what has `columns` columns, to be changed as MappedTensor says.
void MoveColumns(absl::Span<const int32_t> columns,
                 std::vector<float>* values) {
  std::vector<float> row(columns.size());
  for (size_t first = 0; first < values->size(); first += row.size()) {
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = (*values)[first + columns[i]];
    }
    std::copy(row.begin(), row.end(), values->begin() + first);
  }
}

// Changes a piece of a tensor, whole rows, in place. Taps need the whole
// tensor, which is small.
void Change(const MappedTensor& tensor, std::vector<float>* values) {
  if (!tensor.columns.empty()) MoveColumns(tensor.columns, values);
  switch (tensor.change) {
    case TensorChange::kNone:
    case TensorChange::kNegative:
      return;
    case TensorChange::kAddOne:
      for (float& value : *values) value = 1.0f + value;
      return;
    case TensorChange::kNegExp:
      for (float& value : *values) {
        value = static_cast<float>(-std::exp(static_cast<double>(value)));
      }
      return;
    case TensorChange::kConvTaps: {
      const size_t taps = tensor.spec.shape[0];
      const size_t channels = tensor.spec.shape[1];
      std::vector<float> turned(values->size());
      for (size_t channel = 0; channel < channels; ++channel) {
        for (size_t tap = 0; tap < taps; ++tap) {
          turned[tap * channels + channel] = (*values)[channel * taps + tap];
        }
      }
      *values = std::move(turned);
      return;
    }
  }
}

absl::Status CheckFinite(absl::Span<const float> values, int64_t first,
                         absl::string_view tensor, absl::string_view path) {
  // Without a way out of the loop, which then runs at the speed of memory. The
  // bits of magnitudes are in their order, infinity behind the finite ones.
  int32_t most = 0;
  for (const float value : values) {
    int32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    most = std::max(most, bits & 0x7FFFFFFF);
  }
  if (most < 0x7F800000) return absl::OkStatus();
  const auto bad = std::find_if(values.begin(), values.end(), [](float value) {
    return !std::isfinite(value);
  });
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": tensor ", PrintableName(tensor), " gives ", *bad, " at element ",
      first + (bad - values.begin()), "; weights are finite"));
}

// Rows [first, first + rows) of a matrix of the checkpoint.
absl::StatusOr<std::vector<float>> ReadRows(const TensorSource& checkpoint,
                                            const SourceTensor& matrix,
                                            int64_t first, int64_t rows) {
  const int64_t cols = matrix.elements / matrix.shape[0];
  std::vector<float> values(rows * cols);
  DELTAEDGE_RETURN_IF_ERROR(
      checkpoint.ReadFloats(matrix, first * cols, absl::MakeSpan(values)));
  return values;
}

const MappedTensor& Mapped(const TensorMap& map, absl::string_view ours) {
  return *std::find_if(
      map.tensors.begin(), map.tensors.end(),
      [&](const MappedTensor& tensor) { return tensor.spec.name == ours; });
}

// Of a tensor that is one of the checkpoint's too.
const SourceTensor& SourceOf(const TensorMap& map, absl::string_view ours) {
  return *Mapped(map, ours).parts[0].source;
}

// What a fingerprint takes in: some norms, and the first and last rows of a
// matrix, all as they are in the checkpoint.
struct SourceSample {
  std::vector<std::vector<float>> norms;
  std::vector<float> first_rows, last_rows;
};

absl::StatusOr<SourceSample> ReadSample(
    const TensorSource& checkpoint, const TensorMap& map,
    absl::Span<const absl::string_view> norms, absl::string_view matrix_name) {
  SourceSample sample;
  for (const absl::string_view name : norms) {
    const SourceTensor& norm = SourceOf(map, name);
    std::vector<float> values(norm.elements);
    DELTAEDGE_RETURN_IF_ERROR(
        checkpoint.ReadFloats(norm, 0, absl::MakeSpan(values)));
    sample.norms.push_back(std::move(values));
  }
  const SourceTensor& matrix = SourceOf(map, matrix_name);
  const int64_t rows = std::min<int64_t>(matrix.shape[0], kFingerprintRows);
  DELTAEDGE_ASSIGN_OR_RETURN(sample.first_rows,
                             ReadRows(checkpoint, matrix, 0, rows));
  DELTAEDGE_ASSIGN_OR_RETURN(
      sample.last_rows,
      ReadRows(checkpoint, matrix, matrix.shape[0] - rows, rows));
  return sample;
}

// InvalidArgument unless both hold the same numbers.
absl::Status CheckTiedHead(const TensorSource& checkpoint,
                           const SourceTensor& head,
                           const SourceTensor& embedding) {
  const std::string& path = checkpoint.PathOf(head);
  if (head.shape != embedding.shape || !head.is_float) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": tie_word_embeddings is true, but lm_head.weight is ",
        head.dtype, " ", ShapeText(head.shape), " and the embedding table is ",
        embedding.dtype, " ", ShapeText(embedding.shape)));
  }
  std::vector<float> ours, theirs;
  for (int64_t first = 0; first < head.elements; first += kPieceElements) {
    ours.resize(std::min(kPieceElements, head.elements - first));
    theirs.resize(ours.size());
    DELTAEDGE_RETURN_IF_ERROR(
        checkpoint.ReadFloats(head, first, absl::MakeSpan(ours)));
    DELTAEDGE_RETURN_IF_ERROR(
        checkpoint.ReadFloats(embedding, first, absl::MakeSpan(theirs)));
    const auto differ =
        std::mismatch(ours.begin(), ours.end(), theirs.begin()).first;
    if (differ != ours.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          path,
          ": tie_word_embeddings is true, but lm_head.weight differs "
          "from the embedding table at element ",
          first + (differ - ours.begin())));
    }
  }
  return absl::OkStatus();
}

// One conversion. The steps of Run() in order.
class Conversion {
 public:
  Conversion(const ConvertOptions& options, const ConvertProgress& progress)
      : options_(options), progress_(progress) {}

  absl::StatusOr<ConvertSummary> Run() {
    HfConfigOptions config_options;
    config_options.ignore_unknown_keys = options_.ignore_unknown_keys;
    config_options.sliding_mask = options_.sliding_mask;
    std::error_code error;
    HfConfig config;
    if (std::filesystem::is_regular_file(options_.input, error)) {
      DELTAEDGE_ASSIGN_OR_RETURN(gguf_, Gguf::Open(options_.input));
      DELTAEDGE_ASSIGN_OR_RETURN(config,
                                 ReadGgufConfig(*gguf_, config_options));
    } else {
      DELTAEDGE_ASSIGN_OR_RETURN(config,
                                 ReadHfConfig(options_.input, config_options));
      DELTAEDGE_ASSIGN_OR_RETURN(folder_,
                                 Safetensors::OpenFolder(options_.input));
    }
    for (const std::string& key : config.ignored_keys) {
      Note(gguf_.has_value() ? "" : "config.json's ", key,
           " is not known and was ignored");
    }
    DELTAEDGE_RETURN_IF_ERROR(CheckOutput(options_, checkpoint()));

    contents_.converter = kConverter;
    summary_.name = ModelName(options_);
    DELTAEDGE_RETURN_IF_ERROR(CheckRecipe(
        options_.recipe, std::holds_alternative<HfTarget>(config.model)
                             ? ModelKind::kTarget
                             : ModelKind::kDraft));
    if (auto* const target = std::get_if<HfTarget>(&config.model)) {
      DELTAEDGE_RETURN_IF_ERROR(PrepareTarget(*target));
    } else {
      DELTAEDGE_RETURN_IF_ERROR(PrepareDraft(std::get<HfDraft>(config.model)));
    }
    DELTAEDGE_RETURN_IF_ERROR(Write());
    return std::move(summary_);
  }

 private:
  template <class... Parts>
  void Note(const Parts&... parts) {
    summary_.notes.push_back(absl::StrCat(parts...));
  }

  const TensorSource& checkpoint() const {
    if (gguf_.has_value()) return *gguf_;
    return *folder_;
  }

  absl::Status PrepareTarget(const HfTarget& target) {
    if (!options_.target.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(options_.input, ": is a target; a target of its own (",
                       options_.target, ") is for drafts only"));
    }
    if (options_.sliding_mask.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          options_.input, ": is a target; sliding_mask is for drafts only"));
    }
    if (options_.recipe.experts.has_value() && target.config.moe.experts == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          options_.input, ": has no experts, whose type could be chosen"));
    }
    summary_.kind = contents_.kind = ModelKind::kTarget;
    contents_.target = target.config;
    contents_.target.name = summary_.name;
    if (gguf_.has_value()) {
      const bool tiled =
          gguf_->metadata()["general.architecture"] != "qwen3next";
      DELTAEDGE_ASSIGN_OR_RETURN(
          map_, MapGgufTarget(*gguf_, tiled, target.predicting_layers,
                              target.config));
    } else {
      DELTAEDGE_ASSIGN_OR_RETURN(
          map_, MapTarget(*folder_, target.tied, &contents_.target));
    }
    if (map_.redundant_head != nullptr) {
      DELTAEDGE_RETURN_IF_ERROR(CheckTiedHead(
          checkpoint(), *map_.redundant_head, SourceOf(map_, "embedding")));
      Note("lm_head.weight equals the tied embedding table and is not stored");
    }
    for (const TokenId id : target.eos_tokens) {
      auto& ids = contents_.stop_tokens;
      if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
    }
    if (contents_.stop_tokens.empty()) {
      Note("no eos_token_id: generation ends at limits only");
    }
    DELTAEDGE_RETURN_IF_ERROR(ReadTexts());
    constexpr absl::string_view kNorms[] = {"final_norm"};
    DELTAEDGE_ASSIGN_OR_RETURN(
        SourceSample sample,
        ReadSample(checkpoint(), map_, kNorms, "embedding"));
    if (Mapped(map_, "final_norm").change == TensorChange::kNone) {
      for (float& gain : sample.norms[0]) gain -= 1.0f;
    }
    summary_.fingerprint =
        TargetFingerprint(contents_.target, contents_.tokenizer,
                          sample.norms[0], sample.first_rows, sample.last_rows);
    return absl::OkStatus();
  }

  // The checkpoint's tokenizer, if it has one.
  absl::StatusOr<std::optional<TokenizerTables>> ReadTokenizer() {
    if (gguf_.has_value()) return ReadGgufTokenizer(*gguf_);
    const std::string path = absl::StrCat(options_.input, "/tokenizer.json");
    if (!FileExists(path)) return std::nullopt;
    return ReadTokenizerJson(path);
  }

  absl::Status ReadTexts() {
    const std::string path = absl::StrCat(
        options_.input, gguf_.has_value() ? "" : "/tokenizer.json");
    DELTAEDGE_ASSIGN_OR_RETURN(std::optional<TokenizerTables> tables,
                               ReadTokenizer());
    if (!tables.has_value()) {
      Note("no ", gguf_.has_value() ? "tokenizer" : "tokenizer.json",
           ": the model takes and gives ids only");
      return absl::OkStatus();
    }
    if (tables->vocab_size > contents_.target.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": has ", tables->vocab_size, " ids, but ",
                       checkpoint().config_name(), "'s vocab_size is ",
                       contents_.target.vocab_size));
    }
    tables->vocab_size = contents_.target.vocab_size;
    if (const auto tokenizer = MakeBpeTokenizer(*tables); !tokenizer.ok()) {
      return Invalid(path, tokenizer.status());
    }
    if (options_.chat) {
      auto chat = gguf_.has_value() ? ReadGgufChatTable(*gguf_, *tables,
                                                        contents_.stop_tokens)
                                    : ReadChatTable(options_.input, *tables);
      if (!chat.ok()) {
        return absl::Status(chat.status().code(),
                            absl::StrCat(chat.status().message(),
                                         "; no_chat converts without it"));
      }
      contents_.chat = *std::move(chat);
      if (!contents_.chat.has_value()) {
        Note("no chat template: the model has no chat format");
      }
    }
    contents_.tokenizer = std::move(tables);
    return absl::OkStatus();
  }

  absl::Status PrepareDraft(const HfDraft& draft) {
    if (options_.target.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(options_.input,
                       ": is a draft; its target's model file is needed too"));
    }
    DELTAEDGE_ASSIGN_OR_RETURN(const std::unique_ptr<ModelFile> target,
                               ModelFile::Open(options_.target));
    if (target->kind() != ModelKind::kTarget) {
      return absl::InvalidArgumentError(absl::StrCat(
          options_.target, ": is a ", ModelKindName(target->kind()),
          "; a draft's target is needed"));
    }
    const std::string mask_embedding =
        absl::StrCat(options_.input, "/mask_embedding.pt");
    if (FileExists(mask_embedding)) {
      return absl::InvalidArgumentError(absl::StrCat(
          mask_embedding,
          ": drafts with an embedding of their own for the mask token are not "
          "supported"));
    }
    summary_.kind = contents_.kind = ModelKind::kDraft;
    contents_.draft = draft.config;
    contents_.draft.name = summary_.name;
    if (contents_.draft.target_layer_count == 0) {
      contents_.draft.target_layer_count =
          static_cast<int32_t>(target->target_config().layers.size());
    }
    const std::string config_path =
        absl::StrCat(options_.input, gguf_.has_value() ? "" : "/config.json");
    if (absl::Status s = Validate(contents_.draft); !s.ok()) {
      return Invalid(config_path, s);
    }
    if (absl::Status s = ValidatePair(target->target_config(), contents_.draft);
        !s.ok()) {
      return Invalid(absl::StrCat(config_path, " with ", options_.target), s);
    }
    contents_.target_fingerprint = target->fingerprint();
    summary_.target_fingerprint = target->fingerprint();
    DELTAEDGE_ASSIGN_OR_RETURN(map_, gguf_.has_value()
                                         ? MapGgufDraft(*gguf_, contents_.draft)
                                         : MapDraft(*folder_, contents_.draft));
    constexpr absl::string_view kNorms[] = {"hidden_norm", "final_norm"};
    DELTAEDGE_ASSIGN_OR_RETURN(const SourceSample sample,
                               ReadSample(checkpoint(), map_, kNorms, "fc"));
    summary_.fingerprint = DraftFingerprint(
        contents_.draft, contents_.target_fingerprint, sample.norms[0],
        sample.norms[1], sample.first_rows, sample.last_rows);
    return absl::OkStatus();
  }

  absl::Status Write() {
    std::vector<TensorSpec> specs;
    int64_t fallbacks = 0;
    // Tensors by the type they were quantised to.
    absl::btree_map<std::string, int64_t> quantised;
    for (MappedTensor& tensor : map_.tensors) {
      fallbacks += FallsBack(options_.recipe, tensor.spec);
      tensor.spec.type = TypeFor(options_.recipe, tensor.spec);
      specs.push_back(tensor.spec);
      const SourceTensor& first_source = *tensor.parts[0].source;
      if (first_source.is_quantised) ++quantised[first_source.dtype];
      for (const SourcePart& part : tensor.parts) {
        const SourceTensor& source = *part.source;
        summary_.parameters += part.elements;
        summary_.source_bytes +=
            static_cast<int64_t>(static_cast<double>(source.bytes) *
                                 static_cast<double>(part.elements) /
                                 static_cast<double>(source.elements));
      }
      total_bytes_ +=
          TensorBytes(tensor.spec.type, tensor.spec.shape).value_or(0);
    }
    summary_.tensors = static_cast<int64_t>(specs.size());
    summary_.stored = CountWeights(specs);
    summary_.skipped = std::move(map_.skipped);
    if (fallbacks > 0) {
      Note(fallbacks,
           " matrices are q8 instead of q4, which needs multiples "
           "of ",
           kQ4Block, " for columns");
    }
    for (const auto& [type, tensors] : quantised) {
      Note(tensors, " tensors are ", type,
           " in the checkpoint: what that rounding lost stays lost, and those "
           "that are not stored as f32 are rounded a second time");
    }
    DELTAEDGE_ASSIGN_OR_RETURN(
        const std::unique_ptr<ModelWriter> writer,
        ModelWriter::Create(options_.output, std::move(contents_),
                            std::move(specs)));
    WeightWriter weights(writer.get());
    for (const MappedTensor& tensor : map_.tensors) {
      DELTAEDGE_RETURN_IF_ERROR(WriteTensor(tensor, &weights));
    }
    DELTAEDGE_RETURN_IF_ERROR(writer->Finish(summary_.fingerprint));
    summary_.file_bytes = writer->file_bytes();
    return absl::OkStatus();
  }

  // That values from element `first` of `part` on are finite.
  absl::Status Check(const SourcePart& part, int64_t first,
                     absl::Span<const float> values) const {
    return CheckFinite(values, part.first + first, part.name,
                       checkpoint().PathOf(*part.source));
  }

  // Adds `count` elements of `part`, from `first` on, to `values_`. `change` is
  // what will happen to them.
  absl::Status Read(const SourcePart& part, TensorChange change, int64_t first,
                    int64_t count) {
    values_.resize(values_.size() + count);
    const absl::Span<float> values =
        absl::MakeSpan(values_).subspan(values_.size() - count);
    DELTAEDGE_RETURN_IF_ERROR(
        checkpoint().ReadFloats(*part.source, part.first + first, values));
    DELTAEDGE_RETURN_IF_ERROR(Check(part, first, values));
    if (change != TensorChange::kNegative) return absl::OkStatus();
    const auto bad = std::find_if(values.begin(), values.end(),
                                  [](float value) { return value >= 0; });
    if (bad == values.end()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        checkpoint().PathOf(*part.source), ": tensor ",
        PrintableName(part.name), " holds ", *bad, " at element ",
        part.first + first + (bad - values.begin()),
        "; numbers below zero are expected, which are -exp(A_log)"));
  }

  absl::Status WriteTensor(const MappedTensor& tensor, WeightWriter* writer) {
    int64_t elements = 0;
    for (const SourcePart& part : tensor.parts) elements += part.elements;
    const int64_t bytes =
        TensorBytes(tensor.spec.type, tensor.spec.shape).value_or(0);
    DELTAEDGE_RETURN_IF_ERROR(writer->Begin(tensor.spec));
    // What is written comes in whole rows.
    const bool whole = tensor.change == TensorChange::kConvTaps ||
                       tensor.spec.shape.size() == 1;
    int64_t written = 0;
    values_.clear();
    for (const SourcePart& part : tensor.parts) {
      const int64_t piece =
          whole ? part.elements
                : WeightWriter::PieceOf(tensor.spec, kPieceElements);
      for (int64_t done = 0; done < part.elements; done += piece) {
        DELTAEDGE_RETURN_IF_ERROR(Read(part, tensor.change, done,
                                       std::min(piece, part.elements - done)));
        if (whole && static_cast<int64_t>(values_.size()) < elements) continue;
        Change(tensor, &values_);
        if (tensor.change == TensorChange::kNegExp) {
          DELTAEDGE_RETURN_IF_ERROR(Check(part, done, values_));
        }
        DELTAEDGE_RETURN_IF_ERROR(writer->Append(values_));
        written += static_cast<int64_t>(values_.size());
        values_.clear();
        const double share =
            static_cast<double>(written) / static_cast<double>(elements);
        if (progress_ != nullptr &&
            !progress_(tensor.spec.name,
                       done_bytes_ + static_cast<int64_t>(
                                         share * static_cast<double>(bytes)),
                       total_bytes_)) {
          return absl::CancelledError(absl::StrCat(
              options_.output, ": stopped at tensor ", tensor.spec.name));
        }
      }
    }
    done_bytes_ += bytes;
    return absl::OkStatus();
  }

  const ConvertOptions& options_;
  const ConvertProgress& progress_;
  // The checkpoint: one of the two.
  std::optional<Safetensors> folder_;
  std::optional<Gguf> gguf_;
  ModelContents contents_;
  TensorMap map_;
  ConvertSummary summary_;
  std::vector<float> values_;
  int64_t done_bytes_ = 0;  // Of whole tensors.
  int64_t total_bytes_ = 0;
};

}  // namespace

absl::StatusOr<ConvertSummary> ConvertCheckpoint(
    const ConvertOptions& options, const ConvertProgress& progress) {
  return Conversion(options, progress).Run();
}

}  // namespace deltaedge
