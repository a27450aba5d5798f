// SPDX-License-Identifier: Apache-2.0

#include "engine/model/model_index.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/checked_math.h"
#include "engine/base/status_macros.h"
#include "engine/model/chat_table.h"
#include "engine/model/config.h"
#include "engine/model/model_contents.h"
#include "engine/model/tensor_list.h"
#include "engine/model/tokenizer_tables.h"
#include "engine/model/weights.h"
#include "engine/types.h"
#include "flatbuffers/flatbuffers.h"
#include "schema/header.h"
#include "schema/model_generated.h"

namespace deltaedge {
namespace {

constexpr size_t kMaxTensorNameBytes = 256;
constexpr size_t kMaxAddedTokenBytes = 1024;
constexpr size_t kMaxPretokenizerBytes = 4096;
constexpr size_t kMaxChatTextBytes = 4096;
constexpr size_t kMaxStopTokens = 4096;
constexpr size_t kMaxConverterBytes = 256;

// Deep enough for the schema, which is three tables deep, and for what may
// come.
constexpr flatbuffers::uoffset_t kMaxTableDepth = 16;
// Tensors, added tokens and layers: published models have about 2,000.
constexpr flatbuffers::uoffset_t kMaxTables = 1 << 18;

// File text in a message: short and printable.
std::string Quoted(absl::string_view text) {
  constexpr size_t kShown = 80;
  return absl::StrCat("'", absl::CHexEscape(text.substr(0, kShown)),
                      text.size() > kShown ? "...'" : "'");
}

// --- Checks ------------------------------------------------------------------

absl::Status CheckLength(absl::string_view what, size_t bytes, size_t most) {
  if (bytes <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " has ", bytes, " bytes, allowed are ", most));
}

absl::Status CheckId(absl::string_view what, TokenId id, int64_t ids) {
  if (id >= 0 && id < ids) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " is ", id, ", allowed are 0 to ", ids - 1));
}

absl::Status CheckStopTokens(absl::string_view what,
                             const std::vector<TokenId>& stop_tokens,
                             int64_t ids) {
  if (stop_tokens.size() > kMaxStopTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " has ", stop_tokens.size(), " ids, allowed are ",
                     kMaxStopTokens));
  }
  for (size_t i = 0; i < stop_tokens.size(); ++i) {
    DELTAEDGE_RETURN_IF_ERROR(
        CheckId(absl::StrCat(what, "[", i, "]"), stop_tokens[i], ids));
  }
  return absl::OkStatus();
}

bool IsJoined(absl::string_view whole, absl::string_view left,
              absl::string_view right) {
  return whole.size() == left.size() + right.size() &&
         whole.substr(0, left.size()) == left &&
         whole.substr(left.size()) == right;
}

absl::Status CheckTokenizer(const TokenizerTables& tables, int32_t vocab_size) {
  const auto tokens = static_cast<int64_t>(tables.token_bytes.size());
  if (tokens < 1 || tokens > vocab_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tokenizer has ", tokens, " tokens, allowed are 1 to ",
                     vocab_size, ", the model's vocabulary"));
  }
  if (tables.vocab_size != vocab_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tokenizer's vocab_size is ", tables.vocab_size,
                     ", the model's is ", vocab_size));
  }
  for (size_t i = 0; i < tables.merges.size(); ++i) {
    const TokenizerTables::Merge& merge = tables.merges[i];
    for (const TokenId id : {merge.left, merge.right, merge.result}) {
      if (id < 0 || id >= tokens) {
        return CheckId(absl::StrCat("an id of merges[", i, "]"), id, tokens);
      }
    }
    const std::string& left = tables.token_bytes[merge.left];
    const std::string& right = tables.token_bytes[merge.right];
    if (left.empty() || right.empty() ||
        !IsJoined(tables.token_bytes[merge.result], left, right)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "merges[", i, "] makes token ", merge.result, ", ",
          Quoted(tables.token_bytes[merge.result]), ", of tokens ", merge.left,
          ", ", Quoted(left), ", and ", merge.right, ", ", Quoted(right)));
    }
  }
  TokenId previous = -1;
  for (size_t i = 0; i < tables.added.size(); ++i) {
    const AddedToken& added = tables.added[i];
    const std::string what = absl::StrCat("added_tokens[", i, "]");
    DELTAEDGE_RETURN_IF_ERROR(
        CheckId(absl::StrCat(what, ".id"), added.id, tokens));
    if (added.id <= previous) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ".id is ", added.id, ", which is not above the ",
                       previous, " before it"));
    }
    previous = added.id;
    DELTAEDGE_RETURN_IF_ERROR(CheckLength(
        absl::StrCat(what, ".text"), added.text.size(), kMaxAddedTokenBytes));
    if (added.text.empty() || added.text != tables.token_bytes[added.id]) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ".text is ", Quoted(added.text), ", but token ",
                       added.id, " is ", Quoted(tables.token_bytes[added.id])));
    }
  }
  if (tables.pretokenizer.empty()) {
    return absl::InvalidArgumentError("the pretokenizer's expression is empty");
  }
  return CheckLength("the pretokenizer's expression",
                     tables.pretokenizer.size(), kMaxPretokenizerBytes);
}

absl::Status CheckChat(const ChatTable& chat, const TokenizerTables& tokenizer,
                       int32_t vocab_size) {
  const std::pair<absl::string_view, absl::string_view> texts[] = {
      {"chat.turn_start", chat.turn_start},
      {"chat.system_name", chat.system_name},
      {"chat.user_name", chat.user_name},
      {"chat.assistant_name", chat.assistant_name},
      {"chat.name_end", chat.name_end},
      {"chat.turn_end", chat.turn_end},
      {"chat.reply_open_unset", chat.reply_open_unset},
      {"chat.reply_open_off", chat.reply_open_off},
      {"chat.reply_open_on", chat.reply_open_on},
      {"chat.default_system", chat.default_system.value_or("")},
  };
  for (const auto& [what, text] : texts) {
    DELTAEDGE_RETURN_IF_ERROR(
        CheckLength(what, text.size(), kMaxChatTextBytes));
  }
  for (size_t i = 0; i < chat.control_tokens.size(); ++i) {
    const ChatTable::ControlToken& control = chat.control_tokens[i];
    const std::string what = absl::StrCat("chat.control_tokens[", i, "]");
    DELTAEDGE_RETURN_IF_ERROR(
        CheckId(absl::StrCat(what, ".id"), control.id,
                static_cast<int64_t>(tokenizer.token_bytes.size())));
    if (control.text.empty() ||
        control.text != tokenizer.token_bytes[control.id]) {
      return absl::InvalidArgumentError(absl::StrCat(
          what, ".text is ", Quoted(control.text), ", but token ", control.id,
          " is ", Quoted(tokenizer.token_bytes[control.id])));
    }
  }
  return CheckStopTokens("chat.stop_tokens", chat.stop_tokens, vocab_size);
}

absl::Status CheckTensors(const std::vector<TensorEntry>& tensors,
                          const std::vector<TensorSlot>& slots) {
  absl::flat_hash_map<absl::string_view, const TensorSlot*> expected;
  for (const TensorSlot& slot : slots) expected.emplace(slot.name, &slot);
  absl::flat_hash_map<absl::string_view, const TensorEntry*> found;
  for (const TensorEntry& tensor : tensors) {
    if (!found.emplace(tensor.name, &tensor).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("there are two tensors ", Quoted(tensor.name)));
    }
    const auto it = expected.find(tensor.name);
    if (it == expected.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", Quoted(tensor.name),
                       " does not belong to this architecture and config"));
    }
    const TensorSlot& slot = *it->second;
    if (tensor.shape != slot.shape) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor '", tensor.name, "' is ", ShapeText(tensor.shape),
          ", the config makes it ", ShapeText(slot.shape)));
    }
    const absl::Span<const WeightType> allowed =
        absl::MakeConstSpan(kWeightTypes)
            .first(slot.role == TensorRole::kFloat ? 1
                                                   : std::size(kWeightTypes));
    if (std::find(allowed.begin(), allowed.end(), tensor.type) ==
        allowed.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor '", tensor.name, "' has type ", static_cast<int>(tensor.type),
          " (", WeightTypeName(tensor.type), "), allowed are ",
          absl::StrJoin(allowed, ", ", [](std::string* out, WeightType type) {
            absl::StrAppend(out, WeightTypeName(type));
          })));
    }
    if (tensor.type == WeightType::kQ4 && tensor.shape[1] % kQ4Block != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor '", tensor.name, "' is ", ShapeText(tensor.shape), ", type ",
          WeightTypeName(tensor.type), " needs multiples of ", kQ4Block,
          " for columns"));
    }
    const std::optional<int64_t> bytes = TensorBytes(tensor.type, tensor.shape);
    if (!bytes.has_value() || *bytes != tensor.size_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor '", tensor.name, "' has ", tensor.size_bytes,
          " bytes, but type ", WeightTypeName(tensor.type), " and shape ",
          ShapeText(tensor.shape), " come to ", bytes.value_or(-1)));
    }
  }
  for (const TensorSlot& slot : slots) {
    if (!found.contains(slot.name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor '", slot.name, "', ", ShapeText(slot.shape), ", is missing"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSegments(const std::vector<TensorEntry>& tensors,
                           int64_t segment_bytes) {
  std::vector<const TensorEntry*> by_offset;
  by_offset.reserve(tensors.size());
  for (const TensorEntry& tensor : tensors) by_offset.push_back(&tensor);
  std::sort(by_offset.begin(), by_offset.end(),
            [](const TensorEntry* a, const TensorEntry* b) {
              return a->offset_bytes < b->offset_bytes;
            });
  int64_t end = 0;
  for (const TensorEntry* tensor : by_offset) {
    const int64_t begin = tensor->offset_bytes;
    if (begin % static_cast<int64_t>(schema::kSegmentAlignment) != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor '", tensor->name, "' starts at ", begin,
          ", allowed are multiples of ", schema::kSegmentAlignment));
    }
    if (begin < end) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", tensor->name, "' starts at ", begin,
                       ", inside or before another one that ends at ", end));
    }
    const std::optional<int64_t> next = CheckedAdd(begin, tensor->size_bytes);
    if (!next.has_value() || *next > segment_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", tensor->name, "' starts at ", begin,
                       " and has ", tensor->size_bytes,
                       " bytes, but the segments end at ", segment_bytes));
    }
    end = *next;
  }
  const std::optional<int64_t> padded =
      CheckedRoundUp(end, schema::kSegmentAlignment);
  if (!padded.has_value() || *padded != segment_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the segments have ", segment_bytes,
                     " bytes, but the last tensor ends at ", end));
  }
  return absl::OkStatus();
}

// --- Plain data to FlatBuffers -----------------------------------------------

using Builder = flatbuffers::FlatBufferBuilder;
using StringOffset = flatbuffers::Offset<flatbuffers::String>;

template <class T>
using VectorOffset = flatbuffers::Offset<flatbuffers::Vector<T>>;

StringOffset PutString(absl::string_view text, Builder* builder) {
  return builder->CreateString(text.data(), text.size());
}

schema::LayerKind ToSchema(LayerKind kind) {
  switch (kind) {
    case LayerKind::kGatedDeltaNet:
      return schema::LayerKind::GatedDeltaNet;
    case LayerKind::kFullAttention:
      return schema::LayerKind::FullAttention;
  }
  return schema::LayerKind::Unknown;
}

// Absent unless some layer has experts.
flatbuffers::Offset<schema::Moe> PutMoe(const MoeConfig& moe,
                                        Builder* builder) {
  if (moe.experts == 0) return {};
  std::vector<schema::FeedForward> kinds;
  for (const bool sparse : moe.layers) {
    kinds.push_back(sparse ? schema::FeedForward::Experts
                           : schema::FeedForward::Dense);
  }
  const auto layers = builder->CreateVector(kinds);
  return schema::CreateMoe(*builder, moe.experts, moe.experts_per_token,
                           moe.expert_size, moe.shared_size, moe.normalise,
                           layers);
}

schema::SlidingMask ToSchema(SlidingMask mask) {
  switch (mask) {
    case SlidingMask::kCausal:
      return schema::SlidingMask::Causal;
    case SlidingMask::kSymmetric:
      return schema::SlidingMask::Symmetric;
  }
  return schema::SlidingMask::Unknown;
}

schema::TensorType ToSchema(WeightType type) {
  switch (type) {
    case WeightType::kUnknown:
      break;
    case WeightType::kF32:
      return schema::TensorType::F32;
    case WeightType::kQ8:
      return schema::TensorType::Q8;
    case WeightType::kQ4:
      return schema::TensorType::Q4;
    case WeightType::kQ8W:
      return schema::TensorType::Q8W;
  }
  return schema::TensorType::Unknown;
}

flatbuffers::Offset<schema::Attention> PutAttention(
    const AttentionConfig& attention, Builder* builder) {
  return schema::CreateAttention(*builder, attention.query_heads,
                                 attention.kv_heads, attention.head_dim,
                                 attention.rotary_dim, attention.rope_theta);
}

flatbuffers::Offset<schema::TargetConfig> PutTarget(const TargetConfig& config,
                                                    Builder* builder) {
  const auto gdn = schema::CreateGdn(
      *builder, config.gdn.key_heads, config.gdn.value_heads,
      config.gdn.key_dim, config.gdn.value_dim, config.gdn.conv_width);
  const auto attention = PutAttention(config.attention, builder);
  std::vector<schema::LayerKind> kinds;
  for (const LayerKind kind : config.layers) kinds.push_back(ToSchema(kind));
  const auto layers = builder->CreateVector(kinds);
  const auto moe = PutMoe(config.moe, builder);
  return schema::CreateTargetConfig(
      *builder, config.vocab_size, config.hidden_size, config.intermediate_size,
      config.max_context, config.rms_norm_eps, config.tied_head, gdn, attention,
      layers, moe);
}

flatbuffers::Offset<schema::DraftConfig> PutDraft(const DraftConfig& config,
                                                  Builder* builder) {
  const auto attention = PutAttention(config.attention, builder);
  std::vector<flatbuffers::Offset<schema::DraftLayer>> entries;
  for (const DraftLayerConfig& layer : config.layers) {
    entries.push_back(schema::CreateDraftLayer(*builder, layer.sliding_window));
  }
  const auto layers = builder->CreateVector(entries);
  const auto target_layers = builder->CreateVector(config.target_layers);
  return schema::CreateDraftConfig(
      *builder, config.vocab_size, config.hidden_size, config.intermediate_size,
      config.block_size, config.mask_token, config.rms_norm_eps, attention,
      ToSchema(config.sliding_mask), layers, target_layers,
      config.target_layer_count);
}

VectorOffset<flatbuffers::Offset<schema::Tensor>> PutTensors(
    const std::vector<TensorEntry>& tensors, Builder* builder) {
  std::vector<flatbuffers::Offset<schema::Tensor>> entries;
  entries.reserve(tensors.size());
  for (const TensorEntry& tensor : tensors) {
    const auto name = PutString(tensor.name, builder);
    const auto shape = builder->CreateVector(tensor.shape);
    entries.push_back(schema::CreateTensor(
        *builder, name, ToSchema(tensor.type), shape,
        static_cast<uint64_t>(tensor.offset_bytes),
        static_cast<uint64_t>(tensor.size_bytes), tensor.checksum));
  }
  return builder->CreateVector(entries);
}

flatbuffers::Offset<schema::Tokenizer> PutTokenizer(
    const TokenizerTables& tables, Builder* builder) {
  std::string bytes;
  std::vector<uint32_t> offsets;
  offsets.reserve(tables.token_bytes.size() + 1);
  offsets.push_back(0);
  for (const std::string& token : tables.token_bytes) {
    bytes += token;
    offsets.push_back(static_cast<uint32_t>(bytes.size()));
  }
  std::vector<int32_t> ids;
  ids.reserve(3 * tables.merges.size());
  for (const TokenizerTables::Merge& merge : tables.merges) {
    ids.insert(ids.end(), {merge.left, merge.right, merge.result});
  }
  std::vector<flatbuffers::Offset<schema::AddedToken>> entries;
  entries.reserve(tables.added.size());
  for (const AddedToken& added : tables.added) {
    const auto text = PutString(added.text, builder);
    entries.push_back(schema::CreateAddedToken(
        *builder, added.id, text, added.special, added.single_word,
        added.lstrip, added.rstrip, added.normalized));
  }
  const auto token_bytes = builder->CreateVector(
      reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  const auto token_offsets = builder->CreateVector(offsets);
  const auto merges = builder->CreateVector(ids);
  const auto added_tokens = builder->CreateVector(entries);
  const auto pretokenizer = PutString(tables.pretokenizer, builder);
  return schema::CreateTokenizer(*builder, token_bytes, token_offsets, merges,
                                 added_tokens, pretokenizer, tables.nfc,
                                 tables.ignore_merges);
}

flatbuffers::Offset<schema::Chat> PutChat(const ChatTable& chat,
                                          Builder* builder) {
  const auto turn_start = PutString(chat.turn_start, builder);
  const auto system_name = PutString(chat.system_name, builder);
  const auto user_name = PutString(chat.user_name, builder);
  const auto assistant_name = PutString(chat.assistant_name, builder);
  const auto name_end = PutString(chat.name_end, builder);
  const auto turn_end = PutString(chat.turn_end, builder);
  const auto reply_open_unset = PutString(chat.reply_open_unset, builder);
  const auto reply_open_off = PutString(chat.reply_open_off, builder);
  const auto reply_open_on = PutString(chat.reply_open_on, builder);
  const auto default_system = chat.default_system.has_value()
                                  ? PutString(*chat.default_system, builder)
                                  : StringOffset(0);
  std::vector<flatbuffers::Offset<schema::ControlToken>> entries;
  for (const ChatTable::ControlToken& control : chat.control_tokens) {
    const auto text = PutString(control.text, builder);
    entries.push_back(schema::CreateControlToken(*builder, control.id, text));
  }
  const auto control_tokens = builder->CreateVector(entries);
  const auto stop_tokens = builder->CreateVector(chat.stop_tokens);
  return schema::CreateChat(
      *builder, turn_start, system_name, user_name, assistant_name, name_end,
      turn_end, reply_open_unset, reply_open_off, reply_open_on, default_system,
      chat.trim_texts, chat.system_anywhere, control_tokens, stop_tokens);
}

// --- FlatBuffers to plain data -----------------------------------------------

// The verifier has seen that required fields are there, that vectors and
// strings lie inside the buffer, and nothing else.

template <class T>
std::vector<T> ToVector(const flatbuffers::Vector<T>* values) {
  return std::vector<T>(values->begin(), values->end());
}

// A copy of text that many tables may share is bounded.
absl::StatusOr<std::string> ToString(absl::string_view what,
                                     const flatbuffers::String* text,
                                     size_t most) {
  const absl::Status status = CheckLength(what, text->size(), most);
  if (!status.ok()) return absl::DataLossError(status.message());
  return std::string(text->data(), text->size());
}

// An enum value is "unknown", known, or of a newer revision.
template <class Enum>
absl::Status NotKnown(absl::string_view what, Enum value) {
  const std::string message =
      absl::StrCat(what, " is of kind ", static_cast<int>(value));
  if (value == Enum::Unknown) {
    return absl::DataLossError(absl::StrCat(message, ", which means unknown"));
  }
  return absl::UnimplementedError(
      absl::StrCat(message, ", which needs a newer version of this library"));
}

AttentionConfig GetAttention(const schema::Attention& attention) {
  AttentionConfig config;
  config.query_heads = attention.query_heads();
  config.kv_heads = attention.kv_heads();
  config.head_dim = attention.head_dim();
  config.rotary_dim = attention.rotary_dim();
  config.rope_theta = attention.rope_theta();
  return config;
}

absl::StatusOr<MoeConfig> GetMoe(const schema::Moe& moe) {
  MoeConfig config;
  config.experts = moe.experts();
  if (config.experts == 0) {
    return absl::DataLossError("a mixture of no experts");
  }
  config.experts_per_token = moe.experts_per_token();
  config.expert_size = moe.expert_size();
  config.shared_size = moe.shared_size();
  config.normalise = moe.normalise();
  config.layers.reserve(moe.layers()->size());
  for (flatbuffers::uoffset_t i = 0; i < moe.layers()->size(); ++i) {
    const auto kind = static_cast<schema::FeedForward>(moe.layers()->Get(i));
    switch (kind) {
      case schema::FeedForward::Dense:
        config.layers.push_back(false);
        break;
      case schema::FeedForward::Experts:
        config.layers.push_back(true);
        break;
      default:
        return NotKnown(absl::StrCat("what follows the mixer of layer ", i),
                        kind);
    }
  }
  return config;
}

absl::StatusOr<TargetConfig> GetTarget(const schema::TargetConfig& target) {
  TargetConfig config;
  config.vocab_size = target.vocab_size();
  config.hidden_size = target.hidden_size();
  config.intermediate_size = target.intermediate_size();
  config.max_context = target.max_context();
  config.rms_norm_eps = target.rms_norm_eps();
  config.tied_head = target.tied_head();
  config.gdn.key_heads = target.gdn()->key_heads();
  config.gdn.value_heads = target.gdn()->value_heads();
  config.gdn.key_dim = target.gdn()->key_dim();
  config.gdn.value_dim = target.gdn()->value_dim();
  config.gdn.conv_width = target.gdn()->conv_width();
  config.attention = GetAttention(*target.attention());
  config.layers.reserve(target.layers()->size());
  for (flatbuffers::uoffset_t i = 0; i < target.layers()->size(); ++i) {
    const auto kind = static_cast<schema::LayerKind>(target.layers()->Get(i));
    switch (kind) {
      case schema::LayerKind::GatedDeltaNet:
        config.layers.push_back(LayerKind::kGatedDeltaNet);
        break;
      case schema::LayerKind::FullAttention:
        config.layers.push_back(LayerKind::kFullAttention);
        break;
      default:
        return NotKnown(absl::StrCat("layer ", i), kind);
    }
  }
  if (target.moe() != nullptr) {
    DELTAEDGE_ASSIGN_OR_RETURN(config.moe, GetMoe(*target.moe()));
  }
  return config;
}

absl::StatusOr<DraftConfig> GetDraft(const schema::DraftConfig& draft) {
  DraftConfig config;
  config.vocab_size = draft.vocab_size();
  config.hidden_size = draft.hidden_size();
  config.intermediate_size = draft.intermediate_size();
  config.block_size = draft.block_size();
  config.mask_token = draft.mask_token();
  config.rms_norm_eps = draft.rms_norm_eps();
  config.attention = GetAttention(*draft.attention());
  switch (draft.sliding_mask()) {
    case schema::SlidingMask::Causal:
      config.sliding_mask = SlidingMask::kCausal;
      break;
    case schema::SlidingMask::Symmetric:
      config.sliding_mask = SlidingMask::kSymmetric;
      break;
    default:
      return NotKnown("sliding_mask", draft.sliding_mask());
  }
  for (const schema::DraftLayer* layer : *draft.layers()) {
    config.layers.push_back({layer->sliding_window()});
  }
  config.target_layers = ToVector(draft.target_layers());
  config.target_layer_count = draft.target_layer_count();
  return config;
}

absl::StatusOr<TensorEntry> GetTensor(const schema::Tensor& tensor) {
  TensorEntry entry;
  DELTAEDGE_ASSIGN_OR_RETURN(
      entry.name,
      ToString("a tensor's name", tensor.name(), kMaxTensorNameBytes));
  const std::string what = absl::StrCat("tensor ", Quoted(entry.name));
  if (tensor.shape()->size() < 1 || tensor.shape()->size() > 2) {
    return absl::DataLossError(absl::StrCat(what, " has ",
                                            tensor.shape()->size(),
                                            " dimensions, allowed are 1, 2"));
  }
  entry.shape = ToVector(tensor.shape());
  switch (tensor.type()) {
    case schema::TensorType::F32:
      entry.type = WeightType::kF32;
      break;
    case schema::TensorType::Q8:
      entry.type = WeightType::kQ8;
      break;
    case schema::TensorType::Q4:
      entry.type = WeightType::kQ4;
      break;
    case schema::TensorType::Q8W:
      entry.type = WeightType::kQ8W;
      break;
    default:
      return NotKnown(what, tensor.type());
  }
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  if (tensor.offset_bytes() > kMost || tensor.size_bytes() > kMost) {
    return absl::DataLossError(absl::StrCat(
        what, " starts at ", tensor.offset_bytes(), " and has ",
        tensor.size_bytes(), " bytes, allowed are numbers up to ", kMost));
  }
  entry.offset_bytes = static_cast<int64_t>(tensor.offset_bytes());
  entry.size_bytes = static_cast<int64_t>(tensor.size_bytes());
  entry.checksum = tensor.checksum();
  return entry;
}

absl::StatusOr<TokenizerTables> GetTokenizer(const schema::Tokenizer& tokenizer,
                                             int32_t vocab_size) {
  TokenizerTables tables;
  tables.vocab_size = vocab_size;
  const flatbuffers::Vector<uint32_t>& offsets = *tokenizer.token_offsets();
  const flatbuffers::Vector<uint8_t>& bytes = *tokenizer.token_bytes();
  const flatbuffers::Vector<int32_t>& merges = *tokenizer.merges();
  if (offsets.size() < 1 || offsets.Get(0) != 0 ||
      offsets.Get(offsets.size() - 1) != bytes.size()) {
    return absl::DataLossError(
        absl::StrCat("token_offsets do not span token_bytes, which has ",
                     bytes.size(), " bytes"));
  }
  tables.token_bytes.reserve(offsets.size() - 1);
  for (flatbuffers::uoffset_t i = 0; i + 1 < offsets.size(); ++i) {
    const uint32_t begin = offsets.Get(i);
    const uint32_t end = offsets.Get(i + 1);
    if (begin > end || end > bytes.size()) {
      return absl::DataLossError(absl::StrCat("token ", i, " is bytes ", begin,
                                              " to ", end, " of the ",
                                              bytes.size(), " in token_bytes"));
    }
    tables.token_bytes.emplace_back(
        reinterpret_cast<const char*>(bytes.data()) + begin, end - begin);
  }
  if (merges.size() % 3 != 0) {
    return absl::DataLossError(absl::StrCat(
        "merges has ", merges.size(), " numbers, allowed are multiples of 3"));
  }
  tables.merges.reserve(merges.size() / 3);
  for (flatbuffers::uoffset_t i = 0; i < merges.size(); i += 3) {
    tables.merges.push_back(
        {merges.Get(i), merges.Get(i + 1), merges.Get(i + 2)});
  }
  for (const schema::AddedToken* token : *tokenizer.added_tokens()) {
    AddedToken added;
    added.id = token->id();
    DELTAEDGE_ASSIGN_OR_RETURN(
        added.text,
        ToString("an added token's text", token->text(), kMaxAddedTokenBytes));
    added.special = token->special();
    added.single_word = token->single_word();
    added.lstrip = token->lstrip();
    added.rstrip = token->rstrip();
    added.normalized = token->normalized();
    tables.added.push_back(std::move(added));
  }
  DELTAEDGE_ASSIGN_OR_RETURN(
      tables.pretokenizer,
      ToString("the pretokenizer's expression", tokenizer.pretokenizer(),
               kMaxPretokenizerBytes));
  tables.nfc = tokenizer.nfc();
  tables.ignore_merges = tokenizer.ignore_merges();
  return tables;
}

absl::StatusOr<ChatTable> GetChat(const schema::Chat& chat) {
  ChatTable table;
  const struct {
    const char* what;
    const flatbuffers::String* from;
    std::string* to;
  } texts[] = {
      {"chat.turn_start", chat.turn_start(), &table.turn_start},
      {"chat.system_name", chat.system_name(), &table.system_name},
      {"chat.user_name", chat.user_name(), &table.user_name},
      {"chat.assistant_name", chat.assistant_name(), &table.assistant_name},
      {"chat.name_end", chat.name_end(), &table.name_end},
      {"chat.turn_end", chat.turn_end(), &table.turn_end},
      {"chat.reply_open_unset", chat.reply_open_unset(),
       &table.reply_open_unset},
      {"chat.reply_open_off", chat.reply_open_off(), &table.reply_open_off},
      {"chat.reply_open_on", chat.reply_open_on(), &table.reply_open_on},
  };
  for (const auto& [what, from, to] : texts) {
    DELTAEDGE_ASSIGN_OR_RETURN(*to, ToString(what, from, kMaxChatTextBytes));
  }
  if (chat.default_system() != nullptr) {
    DELTAEDGE_ASSIGN_OR_RETURN(
        table.default_system,
        ToString("chat.default_system", chat.default_system(),
                 kMaxChatTextBytes));
  }
  table.trim_texts = chat.trim_texts();
  table.system_anywhere = chat.system_anywhere();
  for (const schema::ControlToken* token : *chat.control_tokens()) {
    ChatTable::ControlToken control;
    control.id = token->id();
    DELTAEDGE_ASSIGN_OR_RETURN(
        control.text,
        ToString("a control token's text", token->text(), kMaxAddedTokenBytes));
    table.control_tokens.push_back(std::move(control));
  }
  table.stop_tokens = ToVector(chat.stop_tokens());
  return table;
}

absl::Status CheckArchitecture(schema::Architecture found,
                               schema::Architecture expected) {
  if (found == expected) return absl::OkStatus();
  if (found == schema::Architecture::Qwen35Dense ||
      found == schema::Architecture::DFlash ||
      found == schema::Architecture::Qwen35Moe) {
    return absl::DataLossError(absl::StrCat(
        "a ", schema::EnumNameArchitecture(expected), " model is labelled ",
        schema::EnumNameArchitecture(found)));
  }
  return NotKnown("the architecture", found);
}

absl::Status CheckIdentifier(absl::Span<const uint8_t> bytes) {
  constexpr size_t kIdentifierOffset = sizeof(flatbuffers::uoffset_t);
  constexpr size_t kIdentifierBytes = flatbuffers::kFileIdentifierLength;
  if (bytes.size() < kIdentifierOffset + kIdentifierBytes) {
    return absl::DataLossError(
        absl::StrCat("the index has only ", bytes.size(), " bytes"));
  }
  const absl::string_view found(
      reinterpret_cast<const char*>(bytes.data()) + kIdentifierOffset,
      kIdentifierBytes);
  const absl::string_view ours = schema::IndexIdentifier();
  if (found == ours) return absl::OkStatus();
  if (found.substr(0, 3) == ours.substr(0, 3)) {
    return absl::UnimplementedError(
        absl::StrCat("the index is a ", Quoted(found), ", this library reads ",
                     Quoted(ours)));
  }
  return absl::DataLossError(absl::StrCat(
      "the index is labelled ", Quoted(found), " instead of ", Quoted(ours)));
}

}  // namespace

absl::Status CheckIndex(const ModelIndex& index, int64_t segment_bytes) {
  const ModelContents& contents = index.contents;
  DELTAEDGE_RETURN_IF_ERROR(CheckLength(
      "the converter's name", contents.converter.size(), kMaxConverterBytes));
  if (contents.kind == ModelKind::kTarget) {
    const TargetConfig& config = contents.target;
    DELTAEDGE_RETURN_IF_ERROR(Validate(config));
    if (contents.target_fingerprint != 0) {
      return absl::InvalidArgumentError("a target names a target of its own");
    }
    if (contents.tokenizer.has_value()) {
      DELTAEDGE_RETURN_IF_ERROR(
          CheckTokenizer(*contents.tokenizer, config.vocab_size));
    }
    if (contents.chat.has_value()) {
      if (!contents.tokenizer.has_value()) {
        return absl::InvalidArgumentError("a chat table without a tokenizer");
      }
      DELTAEDGE_RETURN_IF_ERROR(
          CheckChat(*contents.chat, *contents.tokenizer, config.vocab_size));
    }
    DELTAEDGE_RETURN_IF_ERROR(CheckStopTokens(
        "stop_tokens", contents.stop_tokens, config.vocab_size));
    TargetWeights weights;
    DELTAEDGE_RETURN_IF_ERROR(
        CheckTensors(index.tensors, TensorSlots(config, &weights)));
  } else {
    const DraftConfig& config = contents.draft;
    DELTAEDGE_RETURN_IF_ERROR(Validate(config));
    if (contents.target_fingerprint == 0) {
      return absl::InvalidArgumentError("a draft names no target");
    }
    if (contents.tokenizer.has_value() || contents.chat.has_value() ||
        !contents.stop_tokens.empty()) {
      return absl::InvalidArgumentError(
          "a draft has a tokenizer, a chat table or stop tokens, which are its "
          "target's");
    }
    DraftWeights weights;
    DELTAEDGE_RETURN_IF_ERROR(
        CheckTensors(index.tensors, TensorSlots(config, &weights)));
  }
  return CheckSegments(index.tensors, segment_bytes);
}

absl::StatusOr<std::string> SerializeIndex(const ModelIndex& index) {
  const ModelContents& contents = index.contents;
  const bool is_target = contents.kind == ModelKind::kTarget;
  // FlatBuffers end the process when a buffer reaches 2 GiB, so the tables that
  // a vocabulary can make large are measured first.
  if (contents.tokenizer.has_value()) {
    uint64_t bytes = 0;
    for (const std::string& token : contents.tokenizer->token_bytes) {
      bytes += sizeof(uint32_t) + token.size();
    }
    bytes += contents.tokenizer->merges.size() * sizeof(TokenizerTables::Merge);
    for (const AddedToken& added : contents.tokenizer->added) {
      bytes += sizeof(uint32_t) + added.text.size();
    }
    if (bytes > schema::kMaxIndexBytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the tokenizer's tables have ", bytes,
                       " bytes, allowed are ", schema::kMaxIndexBytes));
    }
  }

  Builder builder;
  // A field that holds its default takes room like any other: so the size does
  // not depend on checksums, and absence always means an older writer.
  builder.ForceDefaults(true);
  const std::string& model_name =
      is_target ? contents.target.name : contents.draft.name;
  const auto name = PutString(model_name, &builder);
  const auto converter = PutString(contents.converter, &builder);
  flatbuffers::Offset<schema::TargetConfig> target;
  flatbuffers::Offset<schema::DraftConfig> draft;
  if (is_target) {
    target = PutTarget(contents.target, &builder);
  } else {
    draft = PutDraft(contents.draft, &builder);
  }
  const auto tensors = PutTensors(index.tensors, &builder);
  flatbuffers::Offset<schema::Tokenizer> tokenizer;
  if (contents.tokenizer.has_value()) {
    tokenizer = PutTokenizer(*contents.tokenizer, &builder);
  }
  flatbuffers::Offset<schema::Chat> chat;
  if (contents.chat.has_value()) chat = PutChat(*contents.chat, &builder);
  const auto stop_tokens = builder.CreateVector(contents.stop_tokens);
  builder.Finish(
      schema::CreateIndex(
          builder,
          is_target ? schema::ModelKind::Target : schema::ModelKind::Draft,
          !is_target                        ? schema::Architecture::DFlash
          : contents.target.moe.experts > 0 ? schema::Architecture::Qwen35Moe
                                            : schema::Architecture::Qwen35Dense,
          /*required_features=*/0, name, converter, index.fingerprint,
          contents.target_fingerprint, target, draft, tensors, tokenizer, chat,
          stop_tokens),
      schema::IndexIdentifier());
  if (builder.GetSize() > schema::kMaxIndexBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the index has ", builder.GetSize(),
                     " bytes, allowed are ", schema::kMaxIndexBytes));
  }
  return std::string(reinterpret_cast<const char*>(builder.GetBufferPointer()),
                     builder.GetSize());
}

absl::StatusOr<ModelIndex> ParseIndex(absl::Span<const uint8_t> bytes) {
  DELTAEDGE_RETURN_IF_ERROR(CheckIdentifier(bytes));
  flatbuffers::Verifier verifier(bytes.data(), bytes.size(), kMaxTableDepth,
                                 kMaxTables);
  if (!schema::VerifyIndexBuffer(verifier)) {
    return absl::DataLossError("the index is damaged");
  }
  const schema::Index& root = *schema::GetIndex(bytes.data());

  if (root.required_features() != nullptr) {
    for (const flatbuffers::String* feature : *root.required_features()) {
      return absl::UnimplementedError(
          absl::StrCat("the file needs the feature ",
                       Quoted({feature->data(), feature->size()}),
                       ", which this version of the library does not have"));
    }
  }

  ModelIndex index;
  ModelContents& contents = index.contents;
  index.fingerprint = root.fingerprint();
  if (index.fingerprint == 0) {
    return absl::DataLossError("the fingerprint is missing");
  }
  contents.target_fingerprint = root.target_fingerprint();
  DELTAEDGE_ASSIGN_OR_RETURN(
      contents.converter,
      ToString("the converter's name", root.converter(), kMaxConverterBytes));
  DELTAEDGE_ASSIGN_OR_RETURN(std::string name,
                             ToString("name", root.name(), kMaxModelNameBytes));
  contents.stop_tokens = ToVector(root.stop_tokens());
  if (root.kind() == schema::ModelKind::Target) {
    if (root.target() == nullptr || root.draft() != nullptr) {
      return absl::DataLossError("a target needs a target's config alone");
    }
    contents.kind = ModelKind::kTarget;
    DELTAEDGE_RETURN_IF_ERROR(CheckArchitecture(
        root.architecture(), root.target()->moe() != nullptr
                                 ? schema::Architecture::Qwen35Moe
                                 : schema::Architecture::Qwen35Dense));
    DELTAEDGE_ASSIGN_OR_RETURN(contents.target, GetTarget(*root.target()));
    contents.target.name = std::move(name);
  } else if (root.kind() == schema::ModelKind::Draft) {
    if (root.draft() == nullptr || root.target() != nullptr) {
      return absl::DataLossError("a draft needs a draft's config alone");
    }
    contents.kind = ModelKind::kDraft;
    DELTAEDGE_RETURN_IF_ERROR(
        CheckArchitecture(root.architecture(), schema::Architecture::DFlash));
    DELTAEDGE_ASSIGN_OR_RETURN(contents.draft, GetDraft(*root.draft()));
    contents.draft.name = std::move(name);
  } else {
    return NotKnown("the model", root.kind());
  }
  index.tensors.reserve(root.tensors()->size());
  for (const schema::Tensor* tensor : *root.tensors()) {
    DELTAEDGE_ASSIGN_OR_RETURN(TensorEntry entry, GetTensor(*tensor));
    index.tensors.push_back(std::move(entry));
  }
  if (root.tokenizer() != nullptr) {
    DELTAEDGE_ASSIGN_OR_RETURN(
        contents.tokenizer,
        GetTokenizer(*root.tokenizer(), contents.target.vocab_size));
  }
  if (root.chat() != nullptr) {
    DELTAEDGE_ASSIGN_OR_RETURN(contents.chat, GetChat(*root.chat()));
  }
  return index;
}

}  // namespace deltaedge
