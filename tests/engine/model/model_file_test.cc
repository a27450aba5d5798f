// SPDX-License-Identifier: Apache-2.0

#include "engine/model/model_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/model/chat_table.h"
#include "engine/model/config.h"
#include "engine/model/dequantise.h"
#include "engine/model/model_contents.h"
#include "engine/model/model_index.h"
#include "engine/model/tensor_list.h"
#include "engine/model/tokenizer_tables.h"
#include "engine/model/weights.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/model/tiny_models.h"

namespace deltaedge {
namespace {

using ::deltaedge::testing::HeaderAndIndex;
using ::deltaedge::testing::kTinyDraftFingerprint;
using ::deltaedge::testing::kTinyTargetFingerprint;
using ::deltaedge::testing::PlacedIndex;
using ::deltaedge::testing::QuantisedSpecs;
using ::deltaedge::testing::ReadFile;
using ::deltaedge::testing::SegmentBytes;
using ::deltaedge::testing::Specs;
using ::deltaedge::testing::TempPath;
using ::deltaedge::testing::TinyBytes;
using ::deltaedge::testing::TinyDraft;
using ::deltaedge::testing::TinyMoeTarget;
using ::deltaedge::testing::TinyParts;
using ::deltaedge::testing::TinyTarget;
using ::deltaedge::testing::TinyValues;
using ::deltaedge::testing::TinyWideTarget;
using ::deltaedge::testing::WriteFile;
using ::deltaedge::testing::WriteTinyModel;
using ::testing::HasSubstr;

void ExpectValues(const MatrixView& matrix, size_t tensor,
                  const TensorSpec& spec) {
  ASSERT_EQ(matrix.type, WeightType::kF32);
  ASSERT_EQ(matrix.rows, spec.shape[0]);
  ASSERT_EQ(matrix.cols, spec.shape[1]);
  const std::vector<float> values = TinyValues(tensor, spec);
  EXPECT_EQ(std::memcmp(matrix.data, values.data(), 4 * values.size()), 0)
      << spec.name;
}

void ExpectValues(const float* vector, size_t tensor, const TensorSpec& spec) {
  ASSERT_NE(vector, nullptr) << spec.name;
  EXPECT_EQ(reinterpret_cast<uintptr_t>(vector) % 64, 0) << spec.name;
  const std::vector<float> values = TinyValues(tensor, spec);
  EXPECT_EQ(std::memcmp(vector, values.data(), 4 * values.size()), 0)
      << spec.name;
}

TEST(ModelFileTest, TargetComesBackAsItWasWritten) {
  const std::string path = TempPath("target.gdn");
  const ModelContents contents = TinyTarget();
  ASSERT_EQ(WriteTinyModel(path, contents, kTinyTargetFingerprint),
            absl::OkStatus());
  const auto opened = ModelFile::Open(path, ModelFile::Verify::kChecksums);
  ASSERT_EQ(opened.status(), absl::OkStatus());
  const ModelFile& file = **opened;

  EXPECT_EQ(file.kind(), ModelFile::Kind::kTarget);
  EXPECT_EQ(file.path(), path);
  EXPECT_EQ(file.converter(), "by hand");
  EXPECT_EQ(file.fingerprint(), kTinyTargetFingerprint);
  EXPECT_EQ(file.target_fingerprint(), 0u);

  const TargetConfig& config = file.target_config();
  EXPECT_EQ(config.name, "tiny");
  EXPECT_EQ(config.vocab_size, 8);
  EXPECT_EQ(config.hidden_size, 4);
  EXPECT_EQ(config.intermediate_size, 6);
  EXPECT_EQ(config.max_context, 128);
  EXPECT_EQ(config.rms_norm_eps, 1e-6f);
  EXPECT_FALSE(config.tied_head);
  EXPECT_EQ(config.gdn.key_heads, 1);
  EXPECT_EQ(config.gdn.value_heads, 2);
  EXPECT_EQ(config.gdn.key_dim, 2);
  EXPECT_EQ(config.gdn.value_dim, 3);
  EXPECT_EQ(config.gdn.conv_width, 4);
  EXPECT_EQ(config.attention.query_heads, 2);
  EXPECT_EQ(config.attention.kv_heads, 1);
  EXPECT_EQ(config.attention.head_dim, 4);
  EXPECT_EQ(config.attention.rotary_dim, 2);
  EXPECT_EQ(config.attention.rope_theta, 1e7);
  EXPECT_EQ(config.layers, contents.target.layers);

  // In the order of the list in tensor_list.cc.
  const std::vector<TensorSpec> specs = Specs(contents);
  const TargetWeights& w = file.target_weights();
  ASSERT_EQ(w.layers.size(), 2u);
  size_t i = 0;
  const auto next = [&](const auto& view, absl::string_view name) {
    ASSERT_LT(i, specs.size());
    EXPECT_EQ(specs[i].name, name);
    ExpectValues(view, i, specs[i]);
    ++i;
  };
  const TargetLayerWeights& gdn = w.layers[0];
  const TargetLayerWeights& attention = w.layers[1];
  next(w.embedding, "embedding");
  next(gdn.input_norm, "layers.0.input_norm");
  next(gdn.gdn.in_qkv, "layers.0.gdn.in_qkv");
  next(gdn.gdn.in_z, "layers.0.gdn.in_z");
  next(gdn.gdn.in_b, "layers.0.gdn.in_b");
  next(gdn.gdn.in_a, "layers.0.gdn.in_a");
  next(gdn.gdn.conv, "layers.0.gdn.conv");
  next(gdn.gdn.neg_exp_a, "layers.0.gdn.neg_exp_a");
  next(gdn.gdn.dt_bias, "layers.0.gdn.dt_bias");
  next(gdn.gdn.norm, "layers.0.gdn.norm");
  next(gdn.gdn.out, "layers.0.gdn.out");
  next(gdn.post_norm, "layers.0.post_norm");
  next(gdn.mlp.gate, "layers.0.mlp.gate");
  next(gdn.mlp.up, "layers.0.mlp.up");
  next(gdn.mlp.down, "layers.0.mlp.down");
  next(attention.input_norm, "layers.1.input_norm");
  next(attention.attention.q, "layers.1.attention.q");
  next(attention.attention.k, "layers.1.attention.k");
  next(attention.attention.v, "layers.1.attention.v");
  next(attention.attention.q_norm, "layers.1.attention.q_norm");
  next(attention.attention.k_norm, "layers.1.attention.k_norm");
  next(attention.attention.out, "layers.1.attention.out");
  next(attention.post_norm, "layers.1.post_norm");
  next(attention.mlp.gate, "layers.1.mlp.gate");
  next(attention.mlp.up, "layers.1.mlp.up");
  next(attention.mlp.down, "layers.1.mlp.down");
  next(w.final_norm, "final_norm");
  next(w.head, "head");
  EXPECT_EQ(i, specs.size());
  EXPECT_EQ(gdn.attention.q.data, nullptr);
  EXPECT_EQ(attention.gdn.in_qkv.data, nullptr);
  EXPECT_EQ(w.layers[1].attention.q.rows, 2 * 2 * 4);  // Queries and gates.

  int64_t weight_bytes = 0;
  for (const TensorEntry& tensor : file.tensors()) {
    weight_bytes += tensor.size_bytes;
  }
  EXPECT_EQ(file.weight_bytes(), weight_bytes);
  EXPECT_EQ(file.draft_config().vocab_size, 0);
  EXPECT_EQ(file.draft_weights().fc.data, nullptr);

  ASSERT_TRUE(file.tokenizer().has_value());
  const TokenizerTables& tokenizer = *file.tokenizer();
  EXPECT_EQ(tokenizer.token_bytes, contents.tokenizer->token_bytes);
  ASSERT_EQ(tokenizer.merges.size(), 1u);
  EXPECT_EQ(tokenizer.merges[0].left, 0);
  EXPECT_EQ(tokenizer.merges[0].right, 1);
  EXPECT_EQ(tokenizer.merges[0].result, 2);
  ASSERT_EQ(tokenizer.added.size(), 2u);
  EXPECT_EQ(tokenizer.added[1].id, 5);
  EXPECT_EQ(tokenizer.added[1].text, "<|end|>");
  EXPECT_TRUE(tokenizer.added[1].special);
  EXPECT_FALSE(tokenizer.added[1].normalized);
  EXPECT_EQ(tokenizer.pretokenizer, contents.tokenizer->pretokenizer);
  EXPECT_TRUE(tokenizer.nfc);
  EXPECT_FALSE(tokenizer.ignore_merges);
  EXPECT_EQ(tokenizer.vocab_size, 8);

  ASSERT_TRUE(file.chat().has_value());
  const ChatTable& chat = *file.chat();
  EXPECT_EQ(chat.turn_start, "<|start|>");
  EXPECT_EQ(chat.system_name, "system");
  EXPECT_EQ(chat.user_name, "user");
  EXPECT_EQ(chat.assistant_name, "assistant");
  EXPECT_EQ(chat.name_end, "\n");
  EXPECT_EQ(chat.turn_end, "<|end|>\n");
  EXPECT_EQ(chat.reply_open_on, "");
  EXPECT_EQ(chat.default_system, "Be brief.");
  EXPECT_TRUE(chat.trim_texts);
  EXPECT_FALSE(chat.system_anywhere);
  ASSERT_EQ(chat.control_tokens.size(), 2u);
  EXPECT_EQ(chat.control_tokens[1].id, 5);
  EXPECT_EQ(chat.control_tokens[1].text, "<|end|>");
  EXPECT_EQ(chat.stop_tokens, std::vector<TokenId>{5});
  EXPECT_EQ(file.stop_tokens(), std::vector<TokenId>{5});

  file.EvictWeights();
  ExpectValues(w.head, 27, specs[27]);
}

TEST(ModelFileTest, FlagsOfAddedTokensAreNotMixedUp) {
  for (int flag = 0; flag < 5; ++flag) {
    ModelContents contents = TinyTarget();
    AddedToken& token = contents.tokenizer->added[0];
    token.special = flag == 0;
    token.single_word = flag == 1;
    token.lstrip = flag == 2;
    token.rstrip = flag == 3;
    token.normalized = flag == 4;
    const std::string path = TempPath("flags.gdn");
    ASSERT_EQ(WriteTinyModel(path, contents, 1), absl::OkStatus());
    const auto opened = ModelFile::Open(path);
    ASSERT_EQ(opened.status(), absl::OkStatus());
    const AddedToken& read = (*opened)->tokenizer()->added[0];
    EXPECT_EQ(read.special, flag == 0);
    EXPECT_EQ(read.single_word, flag == 1);
    EXPECT_EQ(read.lstrip, flag == 2);
    EXPECT_EQ(read.rstrip, flag == 3);
    EXPECT_EQ(read.normalized, flag == 4);
  }
}

TEST(ModelFileTest, TextsOfChatTableAreNotMixedUp) {
  ModelContents contents = TinyTarget();
  ChatTable& chat = *contents.chat;
  chat.system_name = "a";
  chat.user_name = "b";
  chat.assistant_name = "c";
  chat.reply_open_unset = "d";
  chat.reply_open_off = "e";
  chat.reply_open_on = std::string("f\0g", 3);
  chat.default_system.reset();
  const std::string path = TempPath("chat.gdn");
  ASSERT_EQ(WriteTinyModel(path, contents, 1), absl::OkStatus());
  const auto opened = ModelFile::Open(path);
  ASSERT_EQ(opened.status(), absl::OkStatus());
  const ChatTable& read = *(*opened)->chat();
  EXPECT_EQ(read.system_name, "a");
  EXPECT_EQ(read.user_name, "b");
  EXPECT_EQ(read.assistant_name, "c");
  EXPECT_EQ(read.reply_open_unset, "d");
  EXPECT_EQ(read.reply_open_off, "e");
  EXPECT_EQ(read.reply_open_on, std::string("f\0g", 3));
  EXPECT_EQ(read.default_system, std::nullopt);
}

TEST(ModelFileTest, DraftComesBackAsItWasWritten) {
  const std::string path = TempPath("draft.gdn");
  const ModelContents contents = TinyDraft();
  ASSERT_EQ(WriteTinyModel(path, contents, kTinyDraftFingerprint),
            absl::OkStatus());
  const auto opened = ModelFile::Open(path, ModelFile::Verify::kChecksums);
  ASSERT_EQ(opened.status(), absl::OkStatus());
  const ModelFile& file = **opened;

  EXPECT_EQ(file.kind(), ModelFile::Kind::kDraft);
  EXPECT_EQ(file.fingerprint(), kTinyDraftFingerprint);
  EXPECT_EQ(file.target_fingerprint(), kTinyTargetFingerprint);
  const DraftConfig& config = file.draft_config();
  EXPECT_EQ(config.name, "tiny draft");
  EXPECT_EQ(config.vocab_size, 8);
  EXPECT_EQ(config.hidden_size, 4);
  EXPECT_EQ(config.intermediate_size, 6);
  EXPECT_EQ(config.block_size, 4);
  EXPECT_EQ(config.mask_token, 7);
  EXPECT_EQ(config.rms_norm_eps, 1e-6f);
  EXPECT_EQ(config.attention.head_dim, 4);
  EXPECT_EQ(config.sliding_mask, SlidingMask::kSymmetric);
  ASSERT_EQ(config.layers.size(), 2u);
  EXPECT_EQ(config.layers[0].sliding_window, 0);
  EXPECT_EQ(config.layers[1].sliding_window, 16);
  EXPECT_EQ(config.target_layers, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(config.target_layer_count, 2);

  const std::vector<TensorSpec> specs = Specs(contents);
  const DraftWeights& w = file.draft_weights();
  ASSERT_EQ(w.layers.size(), 2u);
  size_t i = 0;
  const auto next = [&](const auto& view, const std::string& name) {
    ASSERT_LT(i, specs.size());
    EXPECT_EQ(specs[i].name, name);
    ExpectValues(view, i, specs[i]);
    ++i;
  };
  next(w.fc, "fc");
  EXPECT_EQ(w.fc.cols, 2 * 4);
  next(w.hidden_norm, "hidden_norm");
  for (size_t l = 0; l < 2; ++l) {
    const DraftLayerWeights& layer = w.layers[l];
    const std::string prefix = absl::StrCat("layers.", l, ".");
    next(layer.input_norm, prefix + "input_norm");
    next(layer.attention.q, prefix + "attention.q");
    EXPECT_EQ(layer.attention.q.rows, 2 * 4);  // No gates.
    next(layer.attention.k, prefix + "attention.k");
    next(layer.attention.v, prefix + "attention.v");
    next(layer.attention.q_norm, prefix + "attention.q_norm");
    next(layer.attention.k_norm, prefix + "attention.k_norm");
    next(layer.attention.out, prefix + "attention.out");
    next(layer.post_norm, prefix + "post_norm");
    next(layer.mlp.gate, prefix + "mlp.gate");
    next(layer.mlp.up, prefix + "mlp.up");
    next(layer.mlp.down, prefix + "mlp.down");
  }
  next(w.final_norm, "final_norm");
  EXPECT_EQ(i, specs.size());
  EXPECT_FALSE(file.tokenizer().has_value());
  EXPECT_FALSE(file.chat().has_value());
  EXPECT_TRUE(file.target_weights().layers.empty());
}

// What FORMAT.md says of an element, from the bytes that were written.
double Element(const TinyParts& parts, const TensorSpec& spec, int64_t row,
               int64_t col) {
  const int64_t at = row * spec.shape[1] + col;
  if (spec.type == WeightType::kQ4) {
    const auto byte = static_cast<uint8_t>(parts.numbers[at / 2]);
    const int64_t scale = at / 32;
    return (1 + scale % 100) / 64.0 *
           ((at % 2 == 0 ? byte % 16 : byte / 16) - 8);
  }
  return (1 + row % 100) / 64.0 * static_cast<int8_t>(parts.numbers[at]);
}

TEST(ModelFileTest, QuantisedMatricesComeBackAsTheyWereWritten) {
  const std::string path = TempPath("quantised.gdn");
  const ModelContents contents = TinyWideTarget();
  const std::vector<TensorSpec> specs = QuantisedSpecs(contents);
  ASSERT_EQ(WriteTinyModel(path, contents, specs, 1), absl::OkStatus());
  const auto opened = ModelFile::Open(path, ModelFile::Verify::kChecksums);
  ASSERT_EQ(opened.status(), absl::OkStatus());
  ASSERT_EQ((*opened)->tensors().size(), specs.size());

  TargetWeights weights = (*opened)->target_weights();
  const std::vector<TensorSlot> slots =
      TensorSlots(contents.target, &weights);  // Same vector: same places.
  int quantised = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    const TensorSpec& spec = specs[i];
    ASSERT_EQ(slots[i].name, spec.name);
    if (slots[i].vector != nullptr) {
      ExpectValues(*slots[i].vector, i, spec);
      continue;
    }
    const MatrixView& matrix = *slots[i].matrix;
    EXPECT_EQ(matrix.type, spec.type) << spec.name;
    if (spec.type == WeightType::kF32) {
      EXPECT_EQ(matrix.scales, nullptr);
      ExpectValues(matrix, i, spec);
      continue;
    }
    ++quantised;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(matrix.data) % 64, 0u) << spec.name;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(matrix.scales) % 64, 0u) << spec.name;
    const TinyParts parts = TinyBytes(i, spec);
    std::vector<float> row(matrix.cols);
    for (int64_t r = 0; r < matrix.rows; ++r) {
      DequantiseRow(matrix, r, row.data());
      for (int64_t c = 0; c < matrix.cols; ++c) {
        ASSERT_EQ(row[c], Element(parts, spec, r, c))
            << spec.name << " " << r << " " << c;
      }
    }
  }
  EXPECT_EQ(quantised, 11);
}

TEST(ModelFileTest, MixtureComesBackAsItWasWritten) {
  const std::string path = TempPath("moe.gdn");
  const ModelContents contents = TinyMoeTarget();
  ASSERT_EQ(WriteTinyModel(path, contents, QuantisedSpecs(contents), 1),
            absl::OkStatus());
  const auto opened = ModelFile::Open(path, ModelFile::Verify::kChecksums);
  ASSERT_EQ(opened.status(), absl::OkStatus());
  const TargetConfig& config = (*opened)->target_config();
  EXPECT_EQ(config.intermediate_size, 6);
  EXPECT_EQ(config.moe.experts, 3);
  EXPECT_EQ(config.moe.experts_per_token, 2);
  EXPECT_EQ(config.moe.expert_size, 5);
  EXPECT_EQ(config.moe.shared_size, 7);
  EXPECT_TRUE(config.moe.normalise);
  EXPECT_EQ(config.moe.layers, (std::vector<bool>{true, false}));

  const TargetLayerWeights& sparse = (*opened)->target_weights().layers[0];
  const TargetLayerWeights& dense = (*opened)->target_weights().layers[1];
  EXPECT_EQ(sparse.mlp.gate.data, nullptr);
  EXPECT_EQ(dense.moe.router.data, nullptr);
  EXPECT_EQ(dense.mlp.up.rows, 6);
  const MoeWeights& moe = sparse.moe;
  const auto expect = [](const MatrixView& view, WeightType type, int rows,
                         int cols) {
    EXPECT_EQ(view.type, type);
    EXPECT_EQ(view.rows, rows);
    EXPECT_EQ(view.cols, cols);
    EXPECT_NE(view.data, nullptr);
  };
  expect(moe.router, WeightType::kF32, 3, 32);
  expect(moe.shared_router, WeightType::kF32, 1, 32);
  expect(moe.gate_up, WeightType::kQ4, 3 * 2 * 5, 32);
  expect(moe.down, WeightType::kQ8, 3 * 32, 5);
  expect(moe.shared.gate, WeightType::kF32, 7, 32);
  expect(moe.shared.up, WeightType::kF32, 7, 32);
  expect(moe.shared.down, WeightType::kQ8W, 32, 7);
  // A model whose layers all have experts has no MLP.
  ModelContents all = contents;
  all.target.moe.layers = {true, true};
  all.target.moe.normalise = false;
  all.target.intermediate_size = 0;
  ASSERT_EQ(WriteTinyModel(path, all, 1), absl::OkStatus());
  const auto again = ModelFile::Open(path);
  ASSERT_EQ(again.status(), absl::OkStatus());
  EXPECT_FALSE((*again)->target_config().moe.normalise);
  EXPECT_EQ((*again)->target_weights().layers[1].moe.down.rows, 3 * 32);
}

// A tied head is one matrix, whatever its type.
TEST(ModelFileTest, QuantisedTiedHeadIsTheEmbedding) {
  ModelContents contents = TinyWideTarget();
  contents.target.tied_head = true;
  const std::string path = TempPath("quantised_tied.gdn");
  ASSERT_EQ(WriteTinyModel(path, contents, QuantisedSpecs(contents), 1),
            absl::OkStatus());
  const auto opened = ModelFile::Open(path);
  ASSERT_EQ(opened.status(), absl::OkStatus());
  const TargetWeights& w = (*opened)->target_weights();
  EXPECT_EQ(w.head.type, WeightType::kQ4);
  EXPECT_EQ(w.head.data, w.embedding.data);
  EXPECT_EQ(w.head.scales, w.embedding.scales);
}

TEST(ModelFileTest, TiedHeadIsTheEmbedding) {
  ModelContents contents = TinyTarget();
  contents.target.tied_head = true;
  const std::string path = TempPath("tied.gdn");
  ASSERT_EQ(WriteTinyModel(path, contents, 1), absl::OkStatus());
  const auto opened = ModelFile::Open(path);
  ASSERT_EQ(opened.status(), absl::OkStatus());
  const TargetWeights& w = (*opened)->target_weights();
  EXPECT_NE(w.head.data, nullptr);
  EXPECT_EQ(w.head.data, w.embedding.data);
  EXPECT_EQ(w.head.rows, 8);
  EXPECT_EQ(w.head.cols, 4);
}

TEST(ModelFileTest, TargetNeedsNoTokenizer) {
  ModelContents contents = TinyTarget();
  contents.tokenizer.reset();
  contents.chat.reset();
  contents.stop_tokens.clear();
  const std::string path = TempPath("ids_only.gdn");
  ASSERT_EQ(WriteTinyModel(path, contents, 1), absl::OkStatus());
  const auto opened = ModelFile::Open(path);
  ASSERT_EQ(opened.status(), absl::OkStatus());
  EXPECT_FALSE((*opened)->tokenizer().has_value());
  EXPECT_FALSE((*opened)->chat().has_value());
  EXPECT_TRUE((*opened)->stop_tokens().empty());
}

// --- What is no model file ---------------------------------------------------

absl::Status StatusOfBytes(const std::string& bytes) {
  const std::string path = TempPath("foreign.gdn");
  WriteFile(path, bytes);
  const absl::Status status = ModelFile::Open(path).status();
  EXPECT_THAT(status.message(), HasSubstr(path));
  return status;
}

TEST(ModelFileTest, MissingFileAndFolder) {
  const std::string missing = TempPath("missing.gdn");
  absl::Status status = ModelFile::Open(missing).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr(missing));
  status = ModelFile::Open(::testing::TempDir()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("folder"));
}

TEST(ModelFileTest, ForeignFilesAreNamed) {
  const std::string rest(200, 'x');
  const std::pair<std::string, std::string> cases[] = {
      {"GGUF" + rest, "GGUF"},
      {std::string("\x40\0\0\0\0\0\0\0", 8) + "{\"a\":" + rest, "safetensors"},
      {std::string("\x40\0\0\0\0\0\0\0", 8) + "{\"a\":1}", "safetensors"},
      {"PK\x03\x04" + rest, "zip"},
      {std::string("\x1c\0\0\0TFL3", 8) + rest, "TensorFlow Lite"},
      {"{\"model_type\":" + rest, "JSON"},
      {"version https://git-lfs.github.com/spec/v1\n", "git-lfs"},
      {rest, "not a DeltaEdge model file"},
      {"DELTAEDX" + rest, "not a DeltaEdge model file"},
      {std::string(200, '\0'), "not a DeltaEdge model file"},
  };
  for (const auto& [bytes, name] : cases) {
    const absl::Status status = StatusOfBytes(bytes);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status.message(), HasSubstr(name));
  }
}

TEST(ModelFileTest, EmptyAndShortFiles) {
  EXPECT_EQ(StatusOfBytes("").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(StatusOfBytes("DELTAED").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(StatusOfBytes("DELTAEDG").code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(StatusOfBytes("1234567").code(),
            absl::StatusCode::kInvalidArgument);
}

// --- Pairs -------------------------------------------------------------------

std::unique_ptr<ModelFile> WrittenAndOpened(const std::string& name,
                                            const ModelContents& contents,
                                            uint64_t fingerprint) {
  const std::string path = TempPath(name);
  EXPECT_EQ(WriteTinyModel(path, contents, fingerprint), absl::OkStatus());
  absl::StatusOr<std::unique_ptr<ModelFile>> file = ModelFile::Open(path);
  EXPECT_EQ(file.status(), absl::OkStatus());
  return *std::move(file);
}

// Case C18.
TEST(CheckPairTest, DraftFitsItsTargetAlone) {
  const auto target =
      WrittenAndOpened("t.gdn", TinyTarget(), kTinyTargetFingerprint);
  const auto draft =
      WrittenAndOpened("d.gdn", TinyDraft(), kTinyDraftFingerprint);
  EXPECT_EQ(CheckPair(*target, *draft), absl::OkStatus());

  const auto other =
      WrittenAndOpened("o.gdn", TinyTarget(), kTinyTargetFingerprint + 1);
  absl::Status status = CheckPair(*other, *draft);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr(other->path()));
  EXPECT_THAT(status.message(), HasSubstr(draft->path()));
  EXPECT_THAT(status.message(), HasSubstr("0123456789abcdef"));
  EXPECT_THAT(status.message(), HasSubstr("0123456789abcdf0"));

  ModelContents wider = TinyTarget();
  wider.target.hidden_size = 5;
  const auto unfit = WrittenAndOpened("w.gdn", wider, kTinyTargetFingerprint);
  status = CheckPair(*unfit, *draft);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("hidden_size"));
}

TEST(CheckPairTest, KindsAreChecked) {
  const auto target =
      WrittenAndOpened("t.gdn", TinyTarget(), kTinyTargetFingerprint);
  const auto draft =
      WrittenAndOpened("d.gdn", TinyDraft(), kTinyDraftFingerprint);
  absl::Status status = CheckPair(*draft, *draft);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("is a draft model, not a target"));
  status = CheckPair(*target, *target);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("is a target model, not a draft"));
}

// --- Sizes -------------------------------------------------------------------

// Case S10.
TEST(ModelFileTest, SegmentsBeyondFourGibibytes) {
  // Sparse: the file takes a few pages of disk and no time.
  ModelContents contents = TinyTarget();
  contents.tokenizer.reset();
  contents.chat.reset();
  contents.stop_tokens.clear();
  contents.target.vocab_size = 300000;
  contents.target.hidden_size = 4096;
  const ModelIndex index = PlacedIndex(contents, 1);
  const auto bytes = SerializeIndex(index);
  ASSERT_EQ(bytes.status(), absl::OkStatus());
  const std::string head = HeaderAndIndex(*bytes, SegmentBytes(index));
  const std::string path = TempPath("sparse.gdn");
  WriteFile(path, head);
  const int64_t file_bytes =
      static_cast<int64_t>(head.size()) + SegmentBytes(index);
  ASSERT_GT(file_bytes, int64_t{9} << 30);
  if (truncate(path.c_str(), file_bytes) != 0) {
    GTEST_SKIP() << "the file system has no sparse files of this size";
  }

  const std::vector<float> norm(4096, 0.5f);
  const TensorEntry& entry = index.tensors[index.tensors.size() - 2];
  ASSERT_EQ(entry.name, "final_norm");
  ASSERT_GT(entry.offset_bytes, int64_t{1} << 32);
  {
    std::fstream out(path, std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(static_cast<std::streamoff>(head.size()) + entry.offset_bytes);
    out.write(reinterpret_cast<const char*>(norm.data()), 4 * norm.size());
    ASSERT_TRUE(out.good());
  }
  const auto opened = ModelFile::Open(path);
  ASSERT_EQ(opened.status(), absl::OkStatus());
  EXPECT_EQ(std::memcmp((*opened)->target_weights().final_norm, norm.data(),
                        4 * norm.size()),
            0);
  const MatrixView& matrix = (*opened)->target_weights().head;
  EXPECT_EQ(matrix.f32()[int64_t{300000} * 4096 - 1], 0);
  unlink(path.c_str());
}

TEST(ModelFileTest, FileThatShrinksWhileOpenLeavesTheRestUsable) {
  const std::string path = TempPath("shrinks.gdn");
  ASSERT_EQ(WriteTinyModel(path, TinyTarget(), 1), absl::OkStatus());
  auto opened = ModelFile::Open(path);
  ASSERT_EQ(opened.status(), absl::OkStatus());
  ASSERT_EQ(truncate(path.c_str(), 0), 0);
  EXPECT_EQ((*opened)->target_config().vocab_size, 8);
  EXPECT_EQ((*opened)->tokenizer()->token_bytes[2], "ab");
  EXPECT_EQ((*opened)->tensors().size(), 28u);
}

TEST(ModelFileTest, ReplacingTheFileLeavesAnOpenOneAlone) {
  const std::string path = TempPath("replaced.gdn");
  ASSERT_EQ(WriteTinyModel(path, TinyTarget(), 1), absl::OkStatus());
  const auto opened = ModelFile::Open(path);
  ASSERT_EQ(opened.status(), absl::OkStatus());
  ASSERT_EQ(WriteTinyModel(path, TinyDraft(), 2), absl::OkStatus());
  const std::vector<TensorSpec> specs = Specs(TinyTarget());
  ExpectValues((*opened)->target_weights().embedding, 0, specs[0]);
  EXPECT_EQ((*ModelFile::Open(path))->kind(), ModelFile::Kind::kDraft);
}

}  // namespace
}  // namespace deltaedge
