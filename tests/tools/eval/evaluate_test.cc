// SPDX-License-Identifier: Apache-2.0

#include "tools/eval/evaluate.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/model/model_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/demo_pair.h"
#include "tests/testing/random.h"
#include "tests/tools/convert/temp_folder.h"
#include "tools/eval/divergence.h"
#include "tools/eval/scored_text.h"
#include "tools/golden_check/target_runner.h"

namespace deltaedge {
namespace {

using ::testing::HasSubstr;
using testing::Random;
using testing::TempFolder;

std::string Path(const std::string& name) {
  return testing::Runfile("tests/testdata/models/" + name + ".gdn");
}

std::unique_ptr<ModelFile> Open(const std::string& path) {
  auto file = ModelFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  return *std::move(file);
}

// Windows that end before, at and behind the end of a chunk; of some only a few
// rows count.
std::vector<TextWindow> Windows() {
  Random random(5);
  std::vector<TextWindow> windows;
  for (const int32_t size :
       {2, kEvalChunkRows, kEvalChunkRows + 1, kEvalChunkRows + 2, 150}) {
    TextWindow window;
    for (int32_t i = 0; i < size; ++i) {
      window.tokens.push_back(random.Int(0, 299));
    }
    for (int32_t i = 0; i + 1 < size; ++i) {
      if (size < 100 || i % 60 == 20) window.scored.push_back(i);
    }
    windows.push_back(window);
  }
  return windows;
}

// All rows of a window in one chunk.
std::vector<float> Scores(const ModelFile& file, const TextWindow& window) {
  auto runner = TargetRunner::Create(file, {}, 256, nullptr);
  EXPECT_TRUE(runner.ok()) << runner.status();
  auto sequence = (*runner)->NewSequence(256);
  EXPECT_TRUE(sequence.ok()) << sequence.status();
  auto outputs = (*runner)->Run(window.tokens, &*sequence);
  EXPECT_TRUE(outputs.ok()) << outputs.status();
  return outputs->logits;
}

TEST(EvaluateTest, IsTheDivergenceOfAllScoredRows) {
  const auto reference = Open(Path("quant_f32"));
  const auto q8 = Open(Path("quant_q8"));
  const auto q4 = Open(Path("quant_q4"));
  const std::vector<TextWindow> windows = Windows();
  const auto found =
      Evaluate(*reference, {reference.get(), q8.get(), q4.get()}, windows,
               /*pool=*/nullptr);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->size(), 3u);
  const std::vector<const ModelFile*> targets = {reference.get(), q8.get(),
                                                 q4.get()};
  for (size_t i = 0; i < targets.size(); ++i) {
    SCOPED_TRACE(targets[i]->path());
    std::vector<RowDivergence> rows;
    for (const TextWindow& window : windows) {
      const std::vector<float> p = Scores(*reference, window);
      const std::vector<float> q = Scores(*targets[i], window);
      const size_t vocab = p.size() / window.tokens.size();
      for (const int32_t row : window.scored) {
        rows.push_back(
            CompareScores(absl::MakeConstSpan(p).subspan(row * vocab, vocab),
                          absl::MakeConstSpan(q).subspan(row * vocab, vocab),
                          window.tokens[row + 1]));
      }
    }
    const Divergence expected = Summarise(rows);
    const Divergence& divergence = (*found)[i];
    EXPECT_EQ(divergence.tokens, expected.tokens);
    EXPECT_EQ(divergence.kl_mean, expected.kl_mean);
    EXPECT_EQ(divergence.kl_max, expected.kl_max);
    EXPECT_EQ(divergence.target_perplexity, expected.target_perplexity);
    EXPECT_EQ(divergence.reference_perplexity, expected.reference_perplexity);
    EXPECT_EQ(divergence.kl_max > 0, i > 0);
  }
  EXPECT_EQ((*found)[0].kl_mean, 0);
  EXPECT_EQ((*found)[0].agreement, 1);
  EXPECT_EQ((*found)[0].perplexity_ratio(), 1);
  EXPECT_GT((*found)[2].kl_mean, (*found)[1].kl_mean);
}

TEST(EvaluateTest, DamageShows) {
  const TempFolder folder;
  const std::string path = folder.path() + "/damaged.gdn";
  std::string bytes = testing::ReadBytes(Path("quant_f32"));
  // The sign of a weight in the last matrix, the head.
  bytes[bytes.size() - 1] ^= static_cast<char>(0x80);
  testing::WriteBytes(path, bytes);
  const auto reference = Open(Path("quant_f32"));
  const auto damaged = Open(path);
  const auto found =
      Evaluate(*reference, {damaged.get()}, Windows(), /*pool=*/nullptr);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_GT(found->front().kl_mean, 0);
}

TEST(EvaluateTest, OnlyModelsOfOneCheckpoint) {
  const auto reference = Open(Path("quant_f32"));
  const auto other = Open(Path("t"));
  const auto draft = Open(Path("quant_draft_q8"));
  absl::Status status =
      Evaluate(*reference, {reference.get(), other.get()}, Windows(), nullptr)
          .status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr(other->path()));
  EXPECT_THAT(status.message(), HasSubstr("of another checkpoint"));
  status = Evaluate(*reference, {draft.get()}, Windows(), nullptr).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("a draft"));
}

TEST(EvaluateTest, WindowsFitTheModel) {
  const auto reference = Open(Path("quant_f32"));
  TextWindow window;
  window.tokens.resize(reference->target_config().max_context + 1);
  window.scored = {0};
  const absl::Status status =
      Evaluate(*reference, {reference.get()}, {window}, nullptr).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("windows of 1025 tokens"));
}

}  // namespace
}  // namespace deltaedge
