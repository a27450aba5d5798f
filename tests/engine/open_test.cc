// SPDX-License-Identifier: Apache-2.0

// Model files that are sound as files and that only the engine can refuse.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/engine.h"
#include "engine/model/model_contents.h"
#include "engine/model/model_index.h"
#include "engine/model/tensor_list.h"
#include "engine/model/weights.h"
#include "engine/options.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/model/tiny_models.h"
#include "tools/make_random/make_random.h"

namespace deltaedge {
namespace {

using ::testing::HasSubstr;

ModelContents ByteModel() {
  ModelContents contents = testing::TinyTarget();
  contents.target.vocab_size = kByteTokens;
  contents.tokenizer = ByteTokenizer(kByteTokens);
  contents.chat = ByteChat();
  return contents;
}

absl::Status WriteAndOpen(const std::string& path,
                          const ModelContents& contents) {
  EXPECT_EQ(
      testing::WriteTinyModel(path, contents, testing::kTinyTargetFingerprint),
      absl::OkStatus());
  return Engine::Open({path, ""}, {/*num_threads=*/1}).status();
}

TEST(OpenTest, ErrorsOfTablesNameTheFile) {
  const std::string path = testing::TempPath("tables.gdn");
  EXPECT_EQ(WriteAndOpen(path, ByteModel()), absl::OkStatus());
  const auto expect = [&](const ModelContents& contents,
                          const std::string& text) {
    const absl::Status status = WriteAndOpen(path, contents);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr(path));
    EXPECT_THAT(status.message(), HasSubstr(text));
  };
  expect(testing::TinyTarget(), "byte 0x00 has no token");

  ModelContents contents = ByteModel();
  contents.tokenizer->added.front().single_word = true;
  expect(contents, "single_word");

  contents = ByteModel();
  contents.tokenizer->pretokenizer = "(";
  expect(contents, "pretokenizer expression is unsound");

  contents = ByteModel();
  contents.chat->turn_start = "no marker";
  expect(contents, "turn_start is \"no marker\"");
}

// Writes the model with `types` for some tensors and zeros for all scales of
// one of them.
void WriteDamaged(const std::string& path, const ModelContents& contents,
                  const std::vector<std::pair<std::string, WeightType>>& types,
                  const std::string& damaged, uint64_t fingerprint) {
  std::vector<TensorSpec> specs = testing::Specs(contents);
  for (TensorSpec& spec : specs) {
    for (const auto& [name, type] : types) {
      if (spec.name == name) spec.type = type;
    }
  }
  ASSERT_EQ(testing::WriteTinyModel(path, contents, specs, fingerprint),
            absl::OkStatus());
  const ModelIndex index = testing::PlacedIndex(contents, specs, fingerprint);
  std::string file = testing::ReadFile(path);
  const size_t segments = file.size() - testing::SegmentBytes(index);
  for (const TensorEntry& tensor : index.tensors) {
    if (tensor.name != damaged) continue;
    const TensorLayout layout = *LayoutOf(tensor.type, tensor.shape);
    ASSERT_GT(layout.scale_bytes, 0);
    file.replace(segments + tensor.offset_bytes + layout.scale_offset,
                 layout.scale_bytes, layout.scale_bytes, '\0');
  }
  testing::WriteFile(path, file);
}

void ExpectDamaged(const ModelFiles& files, const std::string& path,
                   const std::string& product) {
  const absl::Status status = Engine::Open(files, {/*num_threads=*/1}).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("'" + path + "': "));
  EXPECT_THAT(status.message(), HasSubstr("'" + product + "'"));
}

// Without checksums it is the product that finds them.
TEST(OpenTest, DamagedScalesNameTheFileAndTheLayer) {
  const std::string path = testing::TempPath("damaged.gdn");
  ModelContents contents = testing::TinyMoeTarget();
  contents.tokenizer.reset();
  contents.chat.reset();
  std::vector<std::pair<std::string, WeightType>> types = {
      {"layers.0.gdn.in_qkv", WeightType::kQ8},
      {"layers.0.gdn.in_z", WeightType::kQ8},
      {"layers.0.gdn.out", WeightType::kQ8W},
      {"layers.0.moe.gate_up", WeightType::kQ8},
      {"layers.0.moe.down", WeightType::kQ8},
      {"layers.0.moe.shared.down", WeightType::kQ8W},
      {"layers.1.attention.q", WeightType::kQ8W},
      {"layers.1.attention.k", WeightType::kQ8W},
      {"layers.1.attention.v", WeightType::kQ8W},
      {"layers.1.mlp.down", WeightType::kQ8},
      {"head", WeightType::kQ8},
  };
  for (const auto& [damaged, product] :
       std::vector<std::pair<std::string, std::string>>{
           {"layers.0.gdn.in_z", "layers.0.gdn.in"},
           {"layers.0.gdn.out", "layers.0.gdn.out"},
           {"layers.0.moe.gate_up", "layers.0.moe.gate_up"},
           {"layers.0.moe.down", "layers.0.moe.down"},
           {"layers.0.moe.shared.down", "layers.0.moe.shared.down"},
           {"layers.1.attention.k", "layers.1.attention.in"},
           {"layers.1.mlp.down", "layers.1.mlp.down"},
           {"head", "head"}}) {
    WriteDamaged(path, contents, types, damaged,
                 testing::kTinyTargetFingerprint);
    ExpectDamaged({path, ""}, path, product);
  }

  const std::string target = testing::TempPath("target.gdn");
  contents = testing::TinyTarget();
  contents.tokenizer.reset();
  contents.chat.reset();
  ASSERT_EQ(testing::WriteTinyModel(target, contents,
                                    testing::kTinyTargetFingerprint),
            absl::OkStatus());
  types = {{"fc", WeightType::kQ8},
           {"layers.0.attention.k", WeightType::kQ8},
           {"layers.0.attention.v", WeightType::kQ8},
           {"layers.1.mlp.down", WeightType::kQ8}};
  for (const auto& [damaged, product] :
       std::vector<std::pair<std::string, std::string>>{
           {"fc", "fc"},
           {"layers.0.attention.v", "layers.0.kv"},
           {"layers.1.mlp.down", "layers.1.mlp.down"}}) {
    WriteDamaged(path, testing::TinyDraft(), types, damaged,
                 testing::kTinyDraftFingerprint);
    ExpectDamaged({target, path}, path, product);
  }
}

}  // namespace
}  // namespace deltaedge
