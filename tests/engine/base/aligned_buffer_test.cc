// SPDX-License-Identifier: Apache-2.0

#include "engine/base/aligned_buffer.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/allocation_hooks.h"
#include "gtest/gtest.h"

namespace deltaedge {
namespace {

constexpr int64_t kSizes[] = {0,
                              1,
                              63,
                              64,
                              65,
                              4096,
                              AlignedBuffer::kMappedBytes - 65,
                              AlignedBuffer::kMappedBytes - 64,
                              AlignedBuffer::kMappedBytes,
                              3 * AlignedBuffer::kMappedBytes + 1};

TEST(AlignedBufferTest, IsAlignedZeroedAndReadablePastItsEnd) {
  for (int64_t size : kSizes) {
    absl::StatusOr<AlignedBuffer> buffer = AlignedBuffer::Allocate(size, "x");
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    EXPECT_EQ(buffer->size_bytes(), size);
    EXPECT_EQ(
        reinterpret_cast<uintptr_t>(buffer->data()) % AlignedBuffer::kAlignment,
        0u);
    int64_t nonzero = 0;
    for (int64_t i = 0; i < size; ++i) {
      nonzero += buffer->data()[i] != std::byte{0};
      buffer->data()[i] = std::byte{0xFF};
    }
    EXPECT_EQ(nonzero, 0);
    // A sanitizer reports the read that goes too far.
    const volatile std::byte* const tail = buffer->data() + size;
    for (int64_t i = 0; i < AlignedBuffer::kReadablePastEnd; ++i) {
      static_cast<void>(tail[i]);
    }
  }
}

TEST(AlignedBufferTest, ZeroesMemoryThatWasUsedBefore) {
  for (int round = 0; round < 8; ++round) {
    absl::StatusOr<AlignedArray<int32_t>> array =
        AlignedArray<int32_t>::Allocate(1000, "x");
    ASSERT_TRUE(array.ok());
    for (int32_t& value : *array) {
      ASSERT_EQ(value, 0);
      value = -1;
    }
  }
}

TEST(AlignedBufferTest, MovesAndCountsLiveBytes) {
  const int64_t before = LiveAllocatedBytes();
  for (int64_t size : kSizes) {
    absl::StatusOr<AlignedBuffer> a = AlignedBuffer::Allocate(size, "a");
    absl::StatusOr<AlignedBuffer> b = AlignedBuffer::Allocate(size, "b");
    ASSERT_TRUE(a.ok() && b.ok());
    const int64_t of_both = LiveAllocatedBytes() - before;
    EXPECT_GE(of_both, 2 * (size + AlignedBuffer::kReadablePastEnd));
    std::byte* const data = b->data();
    *a = *std::move(b);
    EXPECT_EQ(a->data(), data);
    EXPECT_EQ(LiveAllocatedBytes() - before, of_both / 2);
    const AlignedBuffer c = *std::move(a);
    EXPECT_EQ(c.data(), data);
    EXPECT_EQ(c.size_bytes(), size);
    EXPECT_EQ(a->data(), nullptr);
    EXPECT_EQ(a->size_bytes(), 0);
    EXPECT_EQ(LiveAllocatedBytes() - before, of_both / 2);
  }
  EXPECT_EQ(LiveAllocatedBytes(), before);
}

TEST(AlignedBufferTest, CostsNothingUntilItIsTouched) {
#ifdef __SANITIZE_THREAD__
  // Leaves programs so little address space that a terabyte fits by luck.
  constexpr int64_t kSize = int64_t{1} << 38;
#else
  constexpr int64_t kSize = int64_t{1} << 40;
#endif
  absl::StatusOr<AlignedBuffer> buffer = AlignedBuffer::Allocate(kSize, "x");
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  buffer->data()[buffer->size_bytes() - 1] = std::byte{1};
}

TEST(AlignedBufferTest, HugePagesAreAlignedAndWholeAndGivenBack) {
  constexpr int64_t kHugePage = AlignedBuffer::kHugePageBytes;
  const int64_t before = LiveAllocatedBytes();
  for (int64_t size : {int64_t{0}, int64_t{100}, kHugePage - 65, kHugePage - 64,
                       kHugePage, 3 * kHugePage + 4096 * 5 + 1}) {
    absl::StatusOr<AlignedBuffer> buffer =
        AlignedBuffer::AllocateHugePages(size, "x");
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    EXPECT_EQ(buffer->size_bytes(), size);
    if (size >= kHugePage - AlignedBuffer::kReadablePastEnd) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % kHugePage, 0u);
    }
    int64_t nonzero = 0;
    for (int64_t i = 0; i < size; ++i) {
      nonzero += buffer->data()[i] != std::byte{0};
      buffer->data()[i] = std::byte{0xFF};
    }
    EXPECT_EQ(nonzero, 0);
    EXPECT_GE(LiveAllocatedBytes() - before, size);
    EXPECT_LE(LiveAllocatedBytes() - before, size + 128);
  }
  EXPECT_EQ(LiveAllocatedBytes(), before);
  const absl::Status status =
      AlignedBuffer::AllocateHugePages(std::numeric_limits<int64_t>::max() / 2,
                                       "weights")
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("weights"), std::string::npos);
}

TEST(AlignedBufferTest, RefusesWhatCannotBe) {
  const int64_t max = std::numeric_limits<int64_t>::max();
  for (int64_t size : {max, max - 64, max - 127, max / 2}) {
    const absl::Status status =
        AlignedBuffer::Allocate(size, "KV rows").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_NE(status.message().find("KV rows"), std::string::npos);
    EXPECT_NE(status.message().find(std::to_string(size)), std::string::npos);
  }
  EXPECT_EQ(AlignedBuffer::Allocate(-1, "x").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(AlignedArrayTest, MultipliesItsShape) {
  absl::StatusOr<AlignedArray<double>> array =
      AlignedArray<double>::Allocate({3, 5, 7}, "x");
  ASSERT_TRUE(array.ok());
  EXPECT_EQ(array->size(), 105);
  EXPECT_EQ(array->size_bytes(), 840);
  EXPECT_EQ(array->end() - array->begin(), 105);
  EXPECT_EQ(array->span().size(), 105u);
  EXPECT_FALSE(array->empty());
  const AlignedArray<double> other = *std::move(array);
  EXPECT_EQ(other.size(), 105);
  EXPECT_TRUE(array->empty());

  EXPECT_TRUE(AlignedArray<float>::Allocate({0, 5}, "x")->empty());
  const absl::Status wraps =
      AlignedArray<float>::Allocate({int64_t{1} << 31, int64_t{1} << 31}, "KV")
          .status();
  EXPECT_EQ(wraps.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(wraps.message().find("KV"), std::string::npos);
  EXPECT_EQ(AlignedArray<float>::Allocate({-2, -2}, "x").status().code(),
            absl::StatusCode::kInvalidArgument);
}

bool CanAllocate() { return AlignedBuffer::Allocate(10, "x").ok(); }

TEST(AllocationHooksTest, RefusesTheNth) {
  {
    const ScopedAllocationFailure failure(2);
    EXPECT_TRUE(CanAllocate());
    EXPECT_FALSE(CanAllocate());
    EXPECT_TRUE(CanAllocate());
  }
  {
    const ScopedAllocationFailure failure(2, /*and_all_after=*/true);
    EXPECT_TRUE(CanAllocate());
    EXPECT_FALSE(CanAllocate());
    EXPECT_FALSE(CanAllocate());
  }
  const int64_t count = AllocationCount();
  EXPECT_TRUE(CanAllocate());
  EXPECT_EQ(AllocationCount(), count + 1);
}

}  // namespace
}  // namespace deltaedge
