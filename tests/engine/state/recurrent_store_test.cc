// SPDX-License-Identifier: Apache-2.0

#include "engine/state/recurrent_store.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/state/kv_store.h"
#include "engine/types.h"
#include "gtest/gtest.h"

namespace deltaedge {
namespace {

RecurrentShape Shape(int32_t block_rows,
                     Rollback rollback = Rollback::kJournal) {
  RecurrentShape shape;
  shape.rollback = rollback;
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

TEST(RecurrentStoreTest, StatesDoNotOverlapAndStartAtZero) {
  for (const Rollback rollback : {Rollback::kJournal, Rollback::kSlots}) {
    auto store = RecurrentStore::Create(Shape(3, rollback));
    ASSERT_TRUE(store.ok());
    const int32_t columns = store->shape().state_columns();
    EXPECT_EQ(columns, rollback == Rollback::kSlots ? 4 : 1);
    for (int32_t layer = 0; layer < 2; ++layer) {
      for (int32_t column = 0; column < columns; ++column) {
        float* const state = store->state(layer, column);
        EXPECT_EQ(std::count(state, state + 64, 0.0f), 64);
        std::fill_n(state, 64, static_cast<float>(10 * layer + column + 1));
      }
    }
    for (int32_t layer = 0; layer < 2; ++layer) {
      for (int32_t column = 0; column < columns; ++column) {
        const float* const state = store->state(layer, column);
        EXPECT_EQ(std::count(state, state + 64,
                             static_cast<float>(10 * layer + column + 1)),
                  64);
      }
    }
  }
}

TEST(RecurrentStoreTest, SlotsHaveNoJournal) {
  auto store = RecurrentStore::Create(Shape(3, Rollback::kSlots));
  ASSERT_TRUE(store.ok());
  for (const int32_t which : {0, 1}) {
    const JournalRows rows = store->journal(1, which);
    EXPECT_EQ(rows.k, nullptr);
    EXPECT_EQ(rows.u, nullptr);
    EXPECT_EQ(rows.gamma, nullptr);
  }
}

// Case C9: chunks shorter than the window keep the older columns.
TEST(RecurrentStoreTest, AdoptTakesTheLastColumns) {
  for (int32_t rows = 1; rows <= 6; ++rows) {
    auto store = RecurrentStore::Create(Shape(1));
    auto spare = SpareStates::Create(Shape(1));
    ASSERT_TRUE(store.ok() && spare.ok());
    const auto old = Columns(7, 3, 5);
    for (int32_t layer = 0; layer < 2; ++layer) {
      store->WriteColumns(layer, 7, 3, old.data(), 5);
      const int32_t tail = std::min(rows, 3);
      const auto last = Columns(10 + rows - tail, tail, 5);
      std::copy(last.begin(), last.end(), spare->columns(layer));
    }
    store->Adopt({10, rows}, /*column=*/0, &*spare);
    for (int32_t layer = 0; layer < 2; ++layer) {
      for (int64_t p = 10 + rows - 3; p < 10 + rows; ++p) {
        for (int32_t c = 0; c < 5; ++c) {
          EXPECT_EQ(store->ring(layer)[(p % 4) * 5 + c], Column(p, c));
        }
      }
    }
  }
}

TEST(RecurrentStoreTest, AdoptSwapsTheStatesOfOneColumn) {
  for (const Rollback rollback : {Rollback::kJournal, Rollback::kSlots}) {
    const RecurrentShape shape = Shape(3, rollback);
    const int32_t columns = shape.state_columns();
    for (int32_t adopted = 0; adopted < columns; ++adopted) {
      auto store = RecurrentStore::Create(shape);
      auto spare = SpareStates::Create(shape);
      ASSERT_TRUE(store.ok() && spare.ok());
      std::vector<const float*> ours, theirs;
      for (int32_t layer = 0; layer < 2; ++layer) {
        for (int32_t column = 0; column < columns; ++column) {
          ours.push_back(store->state(layer, column));
        }
        theirs.push_back(spare->state(layer));
      }
      store->Adopt({0, 1}, adopted, &*spare);
      for (int32_t layer = 0; layer < 2; ++layer) {
        for (int32_t column = 0; column < columns; ++column) {
          EXPECT_EQ(store->state(layer, column),
                    column == adopted ? theirs[layer]
                                      : ours[layer * columns + column]);
        }
        EXPECT_EQ(spare->state(layer), ours[layer * columns + adopted]);
      }
    }
  }
}

TEST(RecurrentStoreTest, ResetClearsTheStatesThatCount) {
  for (const Rollback rollback : {Rollback::kJournal, Rollback::kSlots}) {
    auto store = RecurrentStore::Create(Shape(2, rollback));
    ASSERT_TRUE(store.ok());
    for (int32_t layer = 0; layer < 2; ++layer) {
      std::fill_n(store->state(layer, 0), 64, 3.0f);
    }
    store->Reset();
    for (int32_t layer = 0; layer < 2; ++layer) {
      const float* const state = store->state(layer, 0);
      EXPECT_EQ(std::count(state, state + 64, 0.0f), 64);
    }
  }
}

// The GDN layers of Qwen3.5-4B: 16 key and 32 value heads of 128.
RecurrentShape PublishedShape(int32_t block_rows, Rollback rollback) {
  RecurrentShape shape;
  shape.layers = 24;
  shape.state_floats = 32 * 128 * 128;
  shape.key_floats = 16 * 128;
  shape.update_floats = 32 * 128;
  shape.decay_floats = 32;
  shape.column_floats = 2 * 16 * 128 + 32 * 128;
  shape.block_rows = block_rows;
  shape.rollback = rollback;
  return shape;
}

// A session that does not speculate has one state, two journals of the one row
// that it may take back, and a window of that row and the three before it.
TEST(RecurrentStoreTest, APlainSessionPaysNothingForSpeculation) {
  constexpr int64_t kStates = 50331648;  // 48 MiB
  constexpr int64_t kColumns = 786432;   // One of every layer.
  constexpr int64_t kJournalRow = 592896;
  EXPECT_EQ(PublishedShape(1, Rollback::kJournal).bytes(),
            kStates + 2 * kJournalRow + 4 * kColumns);
  EXPECT_EQ(PublishedShape(1, Rollback::kSlots).bytes(),
            2 * kStates + 4 * kColumns);
  EXPECT_EQ(PublishedShape(16, Rollback::kJournal).bytes(),
            kStates + 32 * kJournalRow + 19 * kColumns);
  EXPECT_EQ(PublishedShape(16, Rollback::kSlots).bytes(),
            17 * kStates + 19 * kColumns);
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
