// SPDX-License-Identifier: Apache-2.0

#include "engine/ops/embedding.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/base/mmap_file.h"
#include "engine/model/weights.h"
#include "engine/types.h"
#include "gtest/gtest.h"
#include "tests/testing/canary.h"

namespace deltaedge {
namespace {

TEST(EmbedRowsTest, CopiesRowsInTheirOrder) {
  constexpr int kVocab = 11;
  constexpr int kHidden = 7;
  std::vector<float> values;
  for (int i = 0; i < kVocab * kHidden; ++i) {
    values.push_back(static_cast<float>(i));
  }
  const MatrixView table = {values.data(), WeightType::kF32, kVocab, kHidden};
  const std::vector<TokenId> tokens = {10, 0, 3, 3};
  testing::CanaryBuffer<float> x(tokens.size() * kHidden);
  EmbedRows(table, nullptr, tokens, x.data());
  EXPECT_TRUE(x.Intact());
  for (size_t t = 0; t < tokens.size(); ++t) {
    for (int i = 0; i < kHidden; ++i) {
      EXPECT_EQ(x[t * kHidden + i], static_cast<float>(tokens[t] * kHidden + i))
          << "row " << t << ", column " << i;
    }
  }
}

TEST(EmbedRowsTest, RowsOfAQuantisedTableAreTheStoredNumbers) {
  constexpr int kVocab = 5;
  constexpr int kHidden = 64;
  std::vector<uint8_t> q(kVocab * kHidden);
  for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<uint8_t>(31 * i);
  const std::vector<float> row_scales = {0.1f, 0.2f, 0.3f, 0.4f, 0.5f};
  const std::vector<uint16_t> block_scales = {0x3DCD, 0x3E4D, 0x3E9A, 0x3ECD,
                                              0x3F00, 0x3F1A, 0x3F33, 0x3F4D,
                                              0x3F66, 0x3F80};
  const MatrixView tables[] = {
      {q.data(), WeightType::kQ8, kVocab, kHidden, row_scales.data()},
      {q.data(), WeightType::kQ8W, kVocab, kHidden, row_scales.data()},
      {q.data(), WeightType::kQ4, kVocab, kHidden, block_scales.data()}};
  const std::vector<TokenId> tokens = {4, 1, 1};
  for (const MatrixView& table : tables) {
    testing::CanaryBuffer<float> x(tokens.size() * kHidden);
    EmbedRows(table, nullptr, tokens, x.data());
    EXPECT_TRUE(x.Intact());
    for (size_t t = 0; t < tokens.size(); ++t) {
      for (int i = 0; i < kHidden; ++i) {
        const int at = tokens[t] * kHidden + i;
        float expected;
        if (table.type == WeightType::kQ4) {
          const int number = i % 2 == 0 ? q[at / 2] % 16 : q[at / 2] / 16;
          const uint32_t bits = uint32_t{block_scales[at / 32]} << 16;
          std::memcpy(&expected, &bits, sizeof(bits));
          expected *= static_cast<float>(number - 8);
        } else {
          expected = row_scales[tokens[t]] *
                     static_cast<float>(static_cast<int8_t>(q[at]));
        }
        ASSERT_EQ(x[t * kHidden + i], expected) << t << " " << i;
      }
    }
  }
}

TEST(EmbedRowsTest, RowsOfAFileAreTheSame) {
  constexpr int kVocab = 40;
  std::string bytes(1 << 20, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(i * i / 7 % 120);
  }
  const std::string path = ::testing::TempDir() + "/table";
  std::ofstream(path, std::ios::binary) << bytes;
  const absl::StatusOr<MmapFile> file = MmapFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const std::vector<TokenId> tokens = {kVocab - 1, 3, 3, 0};
  const std::byte* const scales = file->data() + (700 << 10);
  for (const auto& [type, cols] :
       std::vector<std::pair<WeightType, int32_t>>{{WeightType::kF32, 33},
                                                   {WeightType::kQ8, 33},
                                                   {WeightType::kQ8W, 8192},
                                                   {WeightType::kQ8, 8193},
                                                   {WeightType::kQ4, 96}}) {
    const MatrixView table = {file->data() + 64, type, kVocab, cols,
                              type == WeightType::kF32 ? nullptr : scales};
    const size_t size = tokens.size() * static_cast<size_t>(cols);
    testing::CanaryBuffer<float> touched(size), copied(size);
    EmbedRows(table, nullptr, tokens, touched.data());
    EmbedRows(table, &*file, tokens, copied.data());
    EXPECT_TRUE(copied.Intact());
    EXPECT_EQ(std::memcmp(touched.data(), copied.data(), size * sizeof(float)),
              0)
        << "type " << static_cast<int>(type) << ", " << cols << " columns";
  }
}

TEST(EmbedRowsTest, NoTokens) {
  const float value = 1;
  EmbedRows({&value, WeightType::kF32, 1, 1}, nullptr, {}, nullptr);
}

}  // namespace
}  // namespace deltaedge
