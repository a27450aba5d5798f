// SPDX-License-Identifier: Apache-2.0

#include "engine/state/recurrent_store.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/state/kv_store.h"
#include "gtest/gtest.h"

namespace deltaedge {
namespace {

RecurrentShape Shape(int32_t block_rows) {
  RecurrentShape shape;
  shape.layers = 2;
  shape.state_floats = 64;
  shape.key_floats = 6;
  shape.update_floats = 10;
  shape.decay_floats = 2;
  shape.column_floats = 5;
  shape.block_rows = block_rows;
  return shape;
}

// Column of position p, channel c.
float Column(int64_t position, int32_t channel) {
  return static_cast<float>(100 * position + channel);
}

std::vector<float> Columns(int64_t position, int32_t rows, int32_t stride) {
  std::vector<float> x(rows * stride, -1.0f);
  for (int32_t t = 0; t < rows; ++t) {
    for (int32_t c = 0; c < 5; ++c) x[t * stride + c] = Column(position + t, c);
  }
  return x;
}

TEST(RecurrentStoreTest, JournalsDoNotOverlap) {
  auto store = RecurrentStore::Create(Shape(4));
  ASSERT_TRUE(store.ok());
  for (int32_t layer = 0; layer < 2; ++layer) {
    float value = 0;
    for (const int32_t which : {0, 1}) {
      const JournalRows rows = store->journal(layer, which);
      for (int i = 0; i < 4 * 6; ++i) rows.k[i] = ++value;
      for (int i = 0; i < 4 * 10; ++i) rows.u[i] = ++value;
      for (int i = 0; i < 4 * 2; ++i) rows.gamma[i] = ++value;
    }
    value = 0;
    for (const int32_t which : {0, 1}) {
      const JournalRows rows = store->journal(layer, which);
      for (int i = 0; i < 4 * 6; ++i) ASSERT_EQ(rows.k[i], ++value);
      for (int i = 0; i < 4 * 10; ++i) ASSERT_EQ(rows.u[i], ++value);
      for (int i = 0; i < 4 * 2; ++i) ASSERT_EQ(rows.gamma[i], ++value);
    }
  }
}

// Case C4: a block of any length leaves the three columns before it alone, so
// the window is right whatever part of the block is kept.
TEST(RecurrentStoreTest, ABlockLeavesTheWindowBeforeItIntact) {
  for (int32_t block_rows = 1; block_rows <= 16; ++block_rows) {
    auto store = RecurrentStore::Create(Shape(block_rows));
    ASSERT_TRUE(store.ok());
    const int32_t ring_rows = store->shape().ring_rows();
    for (int64_t position = 0; position < 40; ++position) {
      const auto before = Columns(position, 3, 7);
      store->WriteColumns(1, position, 3, before.data(), 7);
      const auto block = Columns(position + 3, block_rows, 7);
      store->WriteColumns(1, position + 3, block_rows, block.data(), 7);
      for (int64_t p = position; p < position + 3 + block_rows; ++p) {
        for (int32_t c = 0; c < 5; ++c) {
          ASSERT_EQ(store->ring(1)[(p % ring_rows) * 5 + c], Column(p, c));
        }
      }
    }
  }
}

// Case C9: chunks shorter than the window keep the older columns.
TEST(RecurrentStoreTest, AdoptTakesStatesAndTheLastColumns) {
  for (int32_t rows = 1; rows <= 6; ++rows) {
    auto store = RecurrentStore::Create(Shape(1));
    auto spare = SpareStates::Create(Shape(1));
    ASSERT_TRUE(store.ok() && spare.ok());
    const auto old = Columns(7, 3, 5);
    for (int32_t layer = 0; layer < 2; ++layer) {
      store->WriteColumns(layer, 7, 3, old.data(), 5);
      store->state(layer)[0] = 1;
      spare->state(layer)[0] = 2;
      const int32_t tail = std::min(rows, 3);
      const auto last = Columns(10 + rows - tail, tail, 5);
      std::copy(last.begin(), last.end(), spare->columns(layer));
    }
    const float* const spare_state = spare->state(1);
    store->Adopt({10, rows}, &*spare);
    for (int32_t layer = 0; layer < 2; ++layer) {
      EXPECT_EQ(store->state(layer)[0], 2);
      EXPECT_EQ(spare->state(layer)[0], 1);
      for (int64_t p = 10 + rows - 3; p < 10 + rows; ++p) {
        for (int32_t c = 0; c < 5; ++c) {
          EXPECT_EQ(store->ring(layer)[(p % 4) * 5 + c], Column(p, c));
        }
      }
    }
    EXPECT_EQ(store->state(1), spare_state) << "a copy where a swap would do";
  }
}

TEST(RecurrentStoreTest, ResetClearsStates) {
  auto store = RecurrentStore::Create(Shape(1));
  ASSERT_TRUE(store.ok());
  for (int i = 0; i < 64; ++i) store->state(1)[i] = 3;
  store->Reset();
  for (int i = 0; i < 64; ++i) EXPECT_EQ(store->state(1)[i], 0);
}

// A session that does not speculate pays nothing for it: two journal rows and a
// window of four columns beside the state.
TEST(RecurrentStoreTest, APlainSessionIsSmall) {
  EXPECT_EQ(Shape(1).bytes(), 2 * 4 * (64 + 2 * 18 + 4 * 5));
  EXPECT_EQ(Shape(16).bytes(), 2 * 4 * (64 + 32 * 18 + 19 * 5));
}

TEST(KvStoreTest, LayersDoNotOverlap) {
  KvShape shape;
  shape.layers = 3;
  shape.key_floats = 33;
  shape.value_floats = 65;
  EXPECT_EQ(shape.bytes(), 3 * 4 * (33 + 65));
  auto store = KvStore::Create(shape);
  ASSERT_TRUE(store.ok());
  for (int32_t layer = 0; layer < 3; ++layer) {
    for (int i = 0; i < 33; ++i) store->keys(layer)[i] = 10 * layer + 1;
    for (int i = 0; i < 65; ++i) store->values(layer)[i] = 10 * layer + 2;
  }
  for (int32_t layer = 0; layer < 3; ++layer) {
    for (int i = 0; i < 33; ++i)
      ASSERT_EQ(store->keys(layer)[i], 10 * layer + 1);
    for (int i = 0; i < 65; ++i) {
      ASSERT_EQ(store->values(layer)[i], 10 * layer + 2);
    }
  }
}

TEST(KvStoreTest, NoMemoryIsAnError) {
  KvShape shape;
  shape.layers = 1;
  shape.key_floats = int64_t{1} << 60;
  EXPECT_FALSE(KvStore::Create(shape).ok());
}

}  // namespace
}  // namespace deltaedge
