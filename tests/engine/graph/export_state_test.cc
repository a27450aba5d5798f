// SPDX-License-Identifier: Apache-2.0

#include "engine/graph/export_state.h"

#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "engine/graph/target_sequence.h"
#include "engine/model/config.h"
#include "gtest/gtest.h"
#include "kernels/attn/attention.h"
#include "kernels/gdn/gdn_block.h"

namespace deltaedge {
namespace {

// Two GDN layers around one of attention.
TargetConfig SmallConfig() {
  TargetConfig config;
  config.gdn = {/*key_heads=*/1, /*value_heads=*/2, /*key_dim=*/4,
                /*value_dim=*/3, /*conv_width=*/4};
  config.attention = {/*query_heads=*/2, /*kv_heads=*/2, /*head_dim=*/4,
                      /*rotary_dim=*/4, /*rope_theta=*/1e4};
  config.layers = {LayerKind::kGatedDeltaNet, LayerKind::kFullAttention,
                   LayerKind::kGatedDeltaNet};
  return config;
}

class ExportStateTest : public ::testing::Test {
 protected:
  ExportStateTest()
      : config_(SmallConfig()),
        sequence_(*MakeTargetSequence(config_, /*capacity=*/20,
                                      /*block_rows=*/4)) {}

  // Publishes a block of `rows` rows of which `kept` are kept.
  void Block(int rows, int kept) {
    const auto plan = sequence_.cursor.Plan(rows);
    ASSERT_TRUE(plan.ok());
    sequence_.cursor.Begin(*plan);
    sequence_.cursor.PublishBlock(*plan);
    ASSERT_TRUE(sequence_.cursor.Keep(kept).ok());
  }

  TargetConfig config_;
  TargetSequence sequence_;
  std::vector<float> out_, values_;
};

TEST_F(ExportStateTest, EmptySequence) {
  ASSERT_TRUE(ExportRecurrentState(config_, 0, &sequence_, &out_).ok());
  EXPECT_EQ(out_, std::vector<float>(2 * 4 * 3, 0.0f));
  ASSERT_TRUE(ExportConvColumns(config_, 2, &sequence_, &out_).ok());
  EXPECT_EQ(out_, std::vector<float>(3 * 14, 0.0f));
  ASSERT_TRUE(ExportKv(config_, 1, &sequence_, &out_, &values_).ok());
  EXPECT_TRUE(out_.empty());
  EXPECT_TRUE(values_.empty());
}

TEST_F(ExportStateTest, LayerOfAnotherKind) {
  for (const int layer : {-1, 1, 3}) {
    EXPECT_EQ(ExportRecurrentState(config_, layer, &sequence_, &out_).code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ExportConvColumns(config_, layer, &sequence_, &out_).code(),
              absl::StatusCode::kInvalidArgument);
  }
  for (const int layer : {-1, 0, 2, 3}) {
    EXPECT_EQ(ExportKv(config_, layer, &sequence_, &out_, &values_).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

// S = k u^T for one kept row on an empty state, whatever the rows behind it.
TEST_F(ExportStateTest, KeptRowsCountAndOthersDoNot) {
  const JournalRows next =
      sequence_.recurrent.journal(1, 1 - sequence_.cursor.journal());
  for (int i = 0; i < 4 * 4; ++i) next.k[i] = static_cast<float>(i + 1);
  for (int i = 0; i < 4 * 6; ++i) next.u[i] = static_cast<float>(10 * (i + 1));
  for (int i = 0; i < 4 * 2; ++i) next.gamma[i] = 0.5f;
  Block(/*rows=*/4, /*kept=*/1);
  const std::vector<float> before(sequence_.recurrent.state(1, 0),
                                  sequence_.recurrent.state(1, 0) + 8);
  ASSERT_TRUE(ExportRecurrentState(config_, 2, &sequence_, &out_).ok());
  ASSERT_EQ(out_.size(), 2u * 4 * 3);
  for (int head = 0; head < 2; ++head) {
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < 3; ++j) {
        EXPECT_EQ(out_[(head * 4 + i) * 3 + j],
                  next.k[i] * next.u[head * 3 + j]);
      }
    }
  }
  EXPECT_EQ(0, std::memcmp(before.data(), sequence_.recurrent.state(1, 0),
                           before.size() * sizeof(float)));
  EXPECT_EQ(sequence_.cursor.pending(1), 1);

  ASSERT_TRUE(sequence_.cursor.Keep(0).ok());
  ASSERT_TRUE(ExportRecurrentState(config_, 2, &sequence_, &out_).ok());
  EXPECT_EQ(out_, std::vector<float>(2 * 4 * 3, 0.0f));
}

TEST_F(ExportStateTest, LastThreeColumns) {
  const int channels = config_.gdn.conv_channels();
  std::vector<float> columns(4 * channels);
  for (int row = 0; row < 4; ++row) {
    for (int c = 0; c < channels; ++c) {
      columns[row * channels + c] = static_cast<float>(100 * row + c + 1);
    }
  }
  sequence_.recurrent.WriteColumns(0, 0, 4, columns.data(), channels);
  Block(/*rows=*/4, /*kept=*/2);
  ASSERT_TRUE(ExportConvColumns(config_, 0, &sequence_, &out_).ok());
  ASSERT_EQ(out_.size(), 3u * channels);
  for (int c = 0; c < channels; ++c) {
    EXPECT_EQ(out_[c], 0);
    EXPECT_EQ(out_[channels + c], columns[c]);
    EXPECT_EQ(out_[2 * channels + c], columns[channels + c]);
  }
  ASSERT_TRUE(sequence_.cursor.Keep(4).ok());
  ASSERT_TRUE(ExportConvColumns(config_, 0, &sequence_, &out_).ok());
  for (int i = 0; i < 3 * channels; ++i) {
    EXPECT_EQ(out_[i], columns[channels + i]);
  }
}

TEST_F(ExportStateTest, KeysAndValuesByHead) {
  std::vector<float> k(3 * 8), v(3 * 8);
  for (int i = 0; i < 3 * 8; ++i) {
    k[i] = static_cast<float>(i);
    v[i] = static_cast<float>(-i);
  }
  KvWrite({sequence_.kv.keys(0), sequence_.kv.values(0), 2, 4, 20}, 0, 3,
          k.data(), 8, v.data(), 8);
  Block(/*rows=*/3, /*kept=*/2);
  ASSERT_TRUE(ExportKv(config_, 1, &sequence_, &out_, &values_).ok());
  ASSERT_EQ(out_.size(), 2u * 2 * 4);
  for (int head = 0; head < 2; ++head) {
    for (int row = 0; row < 2; ++row) {
      for (int d = 0; d < 4; ++d) {
        EXPECT_EQ(out_[(head * 2 + row) * 4 + d], k[row * 8 + head * 4 + d]);
        EXPECT_EQ(values_[(head * 2 + row) * 4 + d], v[row * 8 + head * 4 + d]);
      }
    }
  }
}

}  // namespace
}  // namespace deltaedge
