// SPDX-License-Identifier: Apache-2.0

#include "engine/base/huge_page_arena.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/allocation_hooks.h"
#include "gtest/gtest.h"

namespace deltaedge {
namespace {

TEST(HugePageArenaTest, HandsOutZeroedAlignedPieces) {
  const int64_t before = LiveAllocatedBytes();
  {
    HugePageArena arena;
    std::vector<std::pair<std::byte*, int64_t>> pieces;
    for (int64_t size : {1000, 1, 0, 64, 65, 5 << 20, 3 << 20, 1, 20 << 20}) {
      absl::StatusOr<std::byte*> piece = arena.Allocate(size, "x");
      ASSERT_TRUE(piece.ok()) << piece.status();
      EXPECT_EQ(reinterpret_cast<uintptr_t>(*piece) % AlignedBuffer::kAlignment,
                0u);
      EXPECT_EQ(std::count(*piece, *piece + size, std::byte{0}), size);
      const std::byte mark = static_cast<std::byte>(pieces.size() + 1);
      std::fill_n(*piece, size, mark);
      pieces.push_back({*piece, size});
    }
    for (size_t i = 0; i < pieces.size(); ++i) {
      const auto& [piece, size] = pieces[i];
      EXPECT_EQ(std::count(piece, piece + size, static_cast<std::byte>(i + 1)),
                size);
    }
  }
  EXPECT_EQ(LiveAllocatedBytes(), before);
}

TEST(HugePageArenaTest, OneArrayHasNoMoreThanItNeeds) {
  const int64_t before = LiveAllocatedBytes();
  HugePageArena arena;
  ASSERT_TRUE(arena.Allocate(1000, "x").ok());
  EXPECT_LE(LiveAllocatedBytes() - before, 1000 + 128);
}

TEST(HugePageArenaTest, ManyArraysTakeFewBlocks) {
  const int64_t before = AllocationCount();
  HugePageArena arena;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(arena.Allocate(100000, "x").ok());
  }
  EXPECT_LE(AllocationCount() - before, 6);
}

TEST(HugePageArenaTest, SaysWhenThereIsNoMemory) {
  HugePageArena arena;
  ASSERT_TRUE(arena.Allocate(1000, "x").ok());
  const absl::Status status =
      arena.Allocate(std::numeric_limits<int64_t>::max() / 2, "weights")
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(arena.Allocate(1000, "x").ok());
}

}  // namespace
}  // namespace deltaedge
