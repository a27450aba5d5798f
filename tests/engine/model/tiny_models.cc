// SPDX-License-Identifier: Apache-2.0

#include "tests/engine/model/tiny_models.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/crc/crc32c.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/checked_math.h"
#include "engine/base/status_macros.h"
#include "engine/model/chat_table.h"
#include "engine/model/config.h"
#include "engine/model/model_contents.h"
#include "engine/model/model_index.h"
#include "engine/model/model_writer.h"
#include "engine/model/tensor_list.h"
#include "engine/model/tokenizer_tables.h"
#include "engine/model/weights.h"
#include "gtest/gtest.h"
#include "schema/header.h"

namespace deltaedge {
namespace testing {
namespace {

[[noreturn]] void Die(const std::string& what) {
  std::cerr << what << std::endl;
  std::abort();
}

}  // namespace

ModelContents TinyTarget() {
  ModelContents contents;
  contents.kind = ModelKind::kTarget;
  contents.converter = "by hand";
  TargetConfig& config = contents.target;
  config.name = "tiny";
  config.vocab_size = 8;
  config.hidden_size = 4;
  config.intermediate_size = 6;
  config.max_context = 128;
  config.rms_norm_eps = 1e-6f;
  config.tied_head = false;
  config.gdn.key_heads = 1;
  config.gdn.value_heads = 2;
  config.gdn.key_dim = 2;
  config.gdn.value_dim = 3;
  config.gdn.conv_width = 4;
  config.attention.query_heads = 2;
  config.attention.kv_heads = 1;
  config.attention.head_dim = 4;
  config.attention.rotary_dim = 2;
  config.attention.rope_theta = 1e7;
  config.layers = {LayerKind::kGatedDeltaNet, LayerKind::kFullAttention};

  TokenizerTables& tokenizer = contents.tokenizer.emplace();
  tokenizer.token_bytes = {"a", "b", "ab", "", "<|start|>", "<|end|>"};
  tokenizer.merges = {{0, 1, 2}};
  tokenizer.added.resize(2);
  tokenizer.added[0].id = 4;
  tokenizer.added[0].text = "<|start|>";
  tokenizer.added[0].special = true;
  tokenizer.added[1].id = 5;
  tokenizer.added[1].text = "<|end|>";
  tokenizer.added[1].special = true;
  tokenizer.pretokenizer = "\\p{L}+|\\p{N}";
  tokenizer.nfc = true;
  tokenizer.vocab_size = 8;

  ChatTable& chat = contents.chat.emplace();
  chat.turn_start = "<|start|>";
  chat.name_end = "\n";
  chat.turn_end = "<|end|>\n";
  chat.default_system = "Be brief.";
  chat.trim_texts = true;
  chat.system_anywhere = false;
  chat.control_tokens = {{4, "<|start|>"}, {5, "<|end|>"}};
  chat.stop_tokens = {5};
  contents.stop_tokens = {5};
  return contents;
}

ModelContents TinyWideTarget() {
  ModelContents contents = TinyTarget();
  contents.target.name = "tiny and wide";
  contents.target.hidden_size = 32;
  return contents;
}

ModelContents TinyMoeTarget() {
  ModelContents contents = TinyWideTarget();
  contents.target.name = "tiny with experts";
  contents.target.moe.experts = 3;
  contents.target.moe.experts_per_token = 2;
  contents.target.moe.expert_size = 5;
  contents.target.moe.shared_size = 7;
  contents.target.moe.normalise = true;
  contents.target.moe.layers = {true, false};
  return contents;
}

ModelContents TinyDraft() {
  ModelContents contents;
  contents.kind = ModelKind::kDraft;
  contents.converter = "by hand";
  contents.target_fingerprint = kTinyTargetFingerprint;
  DraftConfig& config = contents.draft;
  config.name = "tiny draft";
  config.vocab_size = 8;
  config.hidden_size = 4;
  config.intermediate_size = 6;
  config.block_size = 4;
  config.mask_token = 7;
  config.rms_norm_eps = 1e-6f;
  config.attention.query_heads = 2;
  config.attention.kv_heads = 1;
  config.attention.head_dim = 4;
  config.attention.rotary_dim = 2;
  config.attention.rope_theta = 1e7;
  config.sliding_mask = SlidingMask::kSymmetric;
  config.layers = {{0}, {16}};
  config.target_layers = {0, 1};
  config.target_layer_count = 2;
  return contents;
}

std::vector<TensorSpec> Specs(const ModelContents& contents) {
  return contents.kind == ModelKind::kTarget ? TensorSpecs(contents.target)
                                             : TensorSpecs(contents.draft);
}

std::vector<TensorSpec> QuantisedSpecs(const ModelContents& contents) {
  const std::pair<absl::string_view, WeightType> types[] = {
      {"embedding", WeightType::kQ4},
      {"layers.0.gdn.in_qkv", WeightType::kQ8},
      {"layers.0.gdn.in_z", WeightType::kQ8},
      {"layers.0.gdn.out", WeightType::kQ8W},
      {"layers.0.mlp.gate", WeightType::kQ4},
      {"layers.0.mlp.up", WeightType::kQ4},
      {"layers.0.mlp.down", WeightType::kQ8},
      {"layers.1.attention.q", WeightType::kQ8W},
      {"layers.1.attention.k", WeightType::kQ8W},
      {"layers.1.attention.v", WeightType::kQ8W},
      {"layers.0.moe.gate_up", WeightType::kQ4},
      {"layers.0.moe.down", WeightType::kQ8},
      {"layers.0.moe.shared.down", WeightType::kQ8W},
      {"head", WeightType::kQ8},
  };
  std::vector<TensorSpec> specs = Specs(contents);
  for (TensorSpec& spec : specs) {
    for (const auto& [name, type] : types) {
      if (spec.name == name) spec.type = type;
    }
  }
  return specs;
}

std::vector<float> TinyValues(size_t tensor, const TensorSpec& spec) {
  size_t count = 1;
  for (const int32_t dimension : spec.shape) count *= dimension;
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(tensor) + static_cast<float>(i) / 16;
  }
  return values;
}

TinyParts TinyBytes(size_t tensor, const TensorSpec& spec) {
  TinyParts parts;
  if (spec.type == WeightType::kF32) {
    const std::vector<float> values = TinyValues(tensor, spec);
    parts.numbers.assign(reinterpret_cast<const char*>(values.data()),
                         values.size() * sizeof(float));
    return parts;
  }
  const TensorLayout layout = LayoutOf(spec.type, spec.shape).value();
  for (int64_t i = 0; i < layout.number_bytes; ++i) {
    parts.numbers += static_cast<char>(37 * (tensor + i));
  }
  const size_t size = spec.type == WeightType::kQ4 ? 2 : 4;
  for (size_t i = 0; i < layout.scale_bytes / size; ++i) {
    const float scale = static_cast<float>(1 + i % 100) / 64;
    const char* const bytes = reinterpret_cast<const char*>(&scale);
    parts.scales.append(bytes + sizeof(scale) - size, size);
  }
  return parts;
}

absl::Status WriteTinyModel(const std::string& path,
                            const ModelContents& contents,
                            const std::vector<TensorSpec>& specs,
                            uint64_t fingerprint) {
  DELTAEDGE_ASSIGN_OR_RETURN(const std::unique_ptr<ModelWriter> writer,
                             ModelWriter::Create(path, contents, specs));
  const auto bytes = [](const std::string& text) {
    return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()),
                               text.size());
  };
  for (size_t i = 0; i < specs.size(); ++i) {
    const TinyParts parts = TinyBytes(i, specs[i]);
    DELTAEDGE_RETURN_IF_ERROR(writer->Begin(specs[i].name));
    DELTAEDGE_RETURN_IF_ERROR(writer->Append(bytes(parts.numbers)));
    DELTAEDGE_RETURN_IF_ERROR(writer->AppendScales(bytes(parts.scales)));
  }
  return writer->Finish(fingerprint);
}

absl::Status WriteTinyModel(const std::string& path,
                            const ModelContents& contents,
                            uint64_t fingerprint) {
  return WriteTinyModel(path, contents, Specs(contents), fingerprint);
}

ModelIndex PlacedIndex(const ModelContents& contents, uint64_t fingerprint) {
  return PlacedIndex(contents, Specs(contents), fingerprint);
}

ModelIndex PlacedIndex(const ModelContents& contents,
                       const std::vector<TensorSpec>& specs,
                       uint64_t fingerprint) {
  ModelIndex index;
  index.contents = contents;
  index.fingerprint = fingerprint;
  int64_t end = 0;
  for (const TensorSpec& spec : specs) {
    TensorEntry entry;
    entry.name = spec.name;
    entry.type = spec.type;
    entry.shape = spec.shape;
    entry.offset_bytes = end;
    entry.size_bytes = TensorBytes(spec.type, spec.shape).value();
    end = CheckedRoundUp(end + entry.size_bytes, schema::kSegmentAlignment)
              .value();
    index.tensors.push_back(std::move(entry));
  }
  return index;
}

int64_t SegmentBytes(const ModelIndex& index) {
  const TensorEntry& last = index.tensors.back();
  return CheckedRoundUp(last.offset_bytes + last.size_bytes,
                        schema::kSegmentAlignment)
      .value();
}

std::string HeaderAndIndex(const std::string& index, int64_t segment_bytes) {
  schema::FileHeader header;
  header.index_bytes = index.size();
  header.first_segment =
      CheckedRoundUp(schema::kHeaderBytes + static_cast<int64_t>(index.size()),
                     schema::kFirstSegmentAlignment)
          .value();
  header.segment_bytes = segment_bytes;
  std::string file(header.first_segment, '\0');
  file.replace(schema::kHeaderBytes, index.size(), index);
  schema::SerializeHeader(header, reinterpret_cast<uint8_t*>(file.data()));
  Reseal(&file);
  return file;
}

void Reseal(std::string* file) {
  auto* const bytes = reinterpret_cast<uint8_t*>(file->data());
  if (file->size() < schema::kHeaderBytes) return;
  const uint64_t index_bytes =
      schema::internal::GetLittleEndian(bytes + schema::kIndexBytesOffset, 8);
  if (index_bytes > file->size() - schema::kHeaderBytes) return;
  const absl::string_view all(*file);
  const absl::crc32c_t checksum = absl::ExtendCrc32c(
      absl::ComputeCrc32c(all.substr(0, schema::kIndexChecksumOffset)),
      all.substr(schema::kHeaderBytes, index_bytes));
  schema::internal::PutLittleEndian(static_cast<uint32_t>(checksum), 4,
                                    bytes + schema::kIndexChecksumOffset);
}

std::string TempPath(const std::string& name) {
  return ::testing::TempDir() + "/" + name;
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) Die("cannot read " + path);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out) Die("cannot write " + path);
}

}  // namespace testing
}  // namespace deltaedge
