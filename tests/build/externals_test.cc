// SPDX-License-Identifier: Apache-2.0
// Every external library compiles, links and answers; the flags that the
// engine's promise rests on are in force.

#include <xnnpack.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "flatbuffers/flatbuffers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "pcre2.h"
#include "pthreadpool.h"
#include "tests/build/externals_generated.h"
#include "utf8proc.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/build/externals_test.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace deltaedge {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

float Dot(const float* a, const float* b, size_t n) {
  const hn::ScalableTag<float> d;
  auto sum = hn::Zero(d);
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    sum =
        hn::MulAdd(hn::LoadN(d, a + i, n - i), hn::LoadN(d, b + i, n - i), sum);
  }
  return hn::ReduceSum(d, sum);
}

// The compiler must not fuse this, here least of all: most targets have FMA.
float MultiplyThenAdd(float a, float b, float c) { return a * b + c; }

}  // namespace HWY_NAMESPACE
}  // namespace deltaedge
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace deltaedge {
namespace {

HWY_EXPORT(Dot);
HWY_EXPORT(MultiplyThenAdd);

// Runs `body` once for each target that this machine can run.
template <typename Body>
void ForEachTarget(const Body& body) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST(ExternalsTest, Abseil) {
  absl::flat_hash_map<std::string, int> map;
  map[absl::StrCat("a", 1)] = 2;
  EXPECT_EQ(map["a1"], 2);
  const absl::StatusOr<int> refused = absl::InvalidArgumentError("rows 0");
  EXPECT_EQ(refused.status().message(), "rows 0");
  absl::Mutex mutex;
  const absl::MutexLock lock(&mutex);
}

TEST(ExternalsTest, FlatBuffers) {
  flatbuffers::FlatBufferBuilder builder;
  tests::FinishPointBuffer(builder,
                           tests::CreatePointDirect(builder, 7, "seven"));
  flatbuffers::Verifier verifier(builder.GetBufferPointer(), builder.GetSize());
  ASSERT_TRUE(tests::VerifyPointBuffer(verifier));
  const tests::Point* point = tests::GetPoint(builder.GetBufferPointer());
  EXPECT_EQ(point->x(), 7);
  EXPECT_EQ(point->name()->str(), "seven");
}

TEST(ExternalsTest, HighwayDispatch) {
  const std::vector<float> a(37, 1.5f);
  const std::vector<float> b(37, 2.0f);
  int targets = 0;
  ForEachTarget([&] {
    ++targets;
    EXPECT_EQ(HWY_DYNAMIC_DISPATCH(Dot)(a.data(), b.data(), a.size()), 111.0f);
  });
  EXPECT_GE(targets, 1);
}

TEST(ExternalsTest, ContractionIsOff) {
  // (1 + u)(1 - u) = 1 - u^2, which rounds to 1: the unfused sum is exactly
  // zero, the fused one keeps -u^2.
  const float u = std::ldexp(1.0f, -13);
  ASSERT_EQ(std::fma(1.0f + u, 1.0f - u, -1.0f), -u * u);
  ForEachTarget([&] {
    EXPECT_EQ(HWY_DYNAMIC_DISPATCH(MultiplyThenAdd)(1.0f + u, 1.0f - u, -1.0f),
              0.0f);
  });
}

TEST(ExternalsTest, Pthreadpool) {
  const std::unique_ptr<pthreadpool, decltype(&pthreadpool_destroy)> pool(
      pthreadpool_create(2), &pthreadpool_destroy);
  ASSERT_NE(pool, nullptr);
  std::vector<int> out(1000, 0);
  for (int launch = 0; launch < 10; ++launch) {
    pthreadpool_parallelize_1d(
        pool.get(),
        [](void* context, size_t i) { static_cast<int*>(context)[i] += 1; },
        out.data(), out.size(), PTHREADPOOL_FLAG_DISABLE_DENORMALS);
  }
  EXPECT_THAT(out, testing::Each(10));
}

TEST(ExternalsTest, XnnpackFullyConnected) {
  ASSERT_EQ(xnn_initialize(nullptr), xnn_status_success);
  constexpr size_t kRows = 3, kIn = 5, kOut = 2;
  // [kOut, kIn]; row n holds n + 1.
  std::vector<float> weights(kOut * kIn, 1.0f);
  std::fill(weights.begin() + kIn, weights.end(), 2.0f);
  xnn_operator_t op = nullptr;
  const float infinity = std::numeric_limits<float>::infinity();
  ASSERT_EQ(
      xnn_create_fully_connected_nc_f32(kIn, kOut, kIn, kOut, weights.data(),
                                        /*bias=*/nullptr, -infinity, infinity,
                                        /*flags=*/0, nullptr, nullptr, &op),
      xnn_status_success);
  ASSERT_EQ(
      xnn_reshape_fully_connected_nc_f32(op, kRows, /*threadpool=*/nullptr),
      xnn_status_success);
  std::vector<float> x(kRows * kIn + XNN_EXTRA_BYTES / sizeof(float), 1.0f);
  std::vector<float> y(kRows * kOut, 0.0f);
  ASSERT_EQ(xnn_setup_fully_connected_nc_f32(op, x.data(), y.data()),
            xnn_status_success);
  ASSERT_EQ(xnn_run_operator(op, /*threadpool=*/nullptr), xnn_status_success);
  EXPECT_THAT(y, testing::ElementsAre(5.0f, 10.0f, 5.0f, 10.0f, 5.0f, 10.0f));
  EXPECT_EQ(xnn_delete_operator(op), xnn_status_success);
}

TEST(ExternalsTest, Pcre2KnowsUnicodeClasses) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>("^\\p{L}+(?!\\S)"),
                    PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error,
                    &offset, nullptr),
      &pcre2_code_free);
  ASSERT_NE(code, nullptr) << "error " << error << " at " << offset;
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)>
      match(pcre2_match_data_create_from_pattern(code.get(), nullptr),
            &pcre2_match_data_free);
  const std::string text = "h\xc3\xa9llo w";
  ASSERT_EQ(pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                        text.size(), 0, 0, match.get(), nullptr),
            1);
  EXPECT_EQ(pcre2_get_ovector_pointer(match.get())[1], 6u);
}

TEST(ExternalsTest, Utf8procComposes) {
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> composed(
      utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>("e\xcc\x81")),
      &std::free);
  EXPECT_STREQ(reinterpret_cast<const char*>(composed.get()), "\xc3\xa9");
}

TEST(ExternalsTest, Json) {
  EXPECT_EQ(nlohmann::json::parse(R"({"k": [1, 2]})").at("k").at(1), 2);
}

}  // namespace
}  // namespace deltaedge
#endif  // HWY_ONCE
