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

std::vector<float> TinyValues(size_t tensor, const TensorSpec& spec) {
  size_t count = 1;
  for (const int32_t dimension : spec.shape) count *= dimension;
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(tensor) + static_cast<float>(i) / 16;
  }
  return values;
}

absl::Status WriteTinyModel(const std::string& path,
                            const ModelContents& contents,
                            uint64_t fingerprint) {
  DELTAEDGE_ASSIGN_OR_RETURN(
      const std::unique_ptr<ModelWriter> writer,
      ModelWriter::Create(path, contents, Specs(contents)));
  for (size_t i = 0; i < writer->tensors().size(); ++i) {
    const TensorSpec& spec = writer->tensors()[i];
    DELTAEDGE_RETURN_IF_ERROR(writer->Begin(spec.name));
    DELTAEDGE_RETURN_IF_ERROR(
        writer->Append(absl::MakeConstSpan(TinyValues(i, spec))));
  }
  return writer->Finish(fingerprint);
}

ModelIndex PlacedIndex(const ModelContents& contents, uint64_t fingerprint) {
  ModelIndex index;
  index.contents = contents;
  index.fingerprint = fingerprint;
  int64_t end = 0;
  for (const TensorSpec& spec : Specs(contents)) {
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
