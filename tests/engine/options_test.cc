// SPDX-License-Identifier: Apache-2.0

#include "engine/options.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/sampling_options.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace deltaedge {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const float kNan = std::numeric_limits<float>::quiet_NaN();
const float kInfinity = std::numeric_limits<float>::infinity();

// What Validate says about defaults with one change.
template <typename Options>
absl::Status Changed(const std::function<void(Options*)>& change) {
  Options options;
  change(&options);
  return Validate(options);
}

struct FloatField {
  const char* name;
  float SamplingOptions::*field;
  float lowest, highest;
  float too_low, too_high;
};

constexpr FloatField kFields[] = {
    {"temperature", &SamplingOptions::temperature, 0.0f, 100.0f, -1e-40f,
     100.1f},
    // Whether 1e-42 is 0 would depend on the floating-point mode.
    {"top_p", &SamplingOptions::top_p, 1e-30f, 1.0f, 1e-42f, 1.0001f},
    {"min_p", &SamplingOptions::min_p, 0.0f, 1.0f, -0.01f, 1.0001f},
    {"repetition_penalty", &SamplingOptions::repetition_penalty, 1e-30f, 100.0f,
     0.0f, 100.1f},
    {"presence_penalty", &SamplingOptions::presence_penalty, -100.0f, 100.0f,
     -100.1f, 100.1f},
    {"frequency_penalty", &SamplingOptions::frequency_penalty, -100.0f, 100.0f,
     -100.1f, 100.1f},
};

TEST(EngineOptionsTest, EnumsOutsideTheirRangeAreNamed) {
  absl::Status status = Changed<EngineOptions>([](EngineOptions* o) {
    o->verify = static_cast<EngineOptions::Verify>(99);
  });
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), StartsWith("verify is 99;"));
  status = Changed<EngineOptions>([](EngineOptions* o) {
    o->placement = static_cast<EngineOptions::Placement>(2);
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), StartsWith("placement is 2;"));
  status = Changed<EngineOptions>([](EngineOptions* o) {
    o->packed_weights = static_cast<EngineOptions::PackedWeights>(-7);
  });
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()),
              StartsWith("packed_weights is -7;"));
}

TEST(SamplingOptionsTest, EveryNumberHasARange) {
  EXPECT_EQ(Validate(SamplingOptions()), absl::OkStatus());
  for (const FloatField& f : kFields) {
    const auto set = [&f](float value) {
      SamplingOptions options;
      options.*f.field = value;
      return Validate(options);
    };
    EXPECT_EQ(set(f.lowest), absl::OkStatus()) << f.name;
    EXPECT_EQ(set(f.highest), absl::OkStatus()) << f.name;
    for (const float bad :
         {f.too_low, f.too_high, kNan, kInfinity, -kInfinity}) {
      const absl::Status status = set(bad);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument)
          << f.name << " " << bad;
      EXPECT_THAT(std::string(status.message()),
                  StartsWith(std::string(f.name) + " is "));
      EXPECT_THAT(std::string(status.message()), HasSubstr("allowed"));
    }
  }
}

TEST(SamplingOptionsTest, TopKIsANumberOfTokens) {
  const auto top_k = [](int32_t k) {
    return Changed<SamplingOptions>([k](SamplingOptions* o) { o->top_k = k; });
  };
  EXPECT_EQ(top_k(1), absl::OkStatus());
  EXPECT_EQ(top_k(std::numeric_limits<int32_t>::max()), absl::OkStatus());
  EXPECT_EQ(top_k(-1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(top_k(-1).message(),
            "top_k is -1; allowed are 0 (all) or a number of tokens");
}

TEST(SamplingOptionsTest, ATokenHasOneFiniteBias) {
  const auto biases = [](std::vector<LogitBias> logit_bias) {
    return Changed<SamplingOptions>(
        [&logit_bias](SamplingOptions* o) { o->logit_bias = logit_bias; });
  };
  EXPECT_EQ(biases({{3, 1.0f}, {4, -1e4f}}), absl::OkStatus());
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    const absl::Status status = biases({{3, 1.0f}, {4, bad}});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), StartsWith("logit_bias[1]"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("token 4"));
  }
  const absl::Status twice = biases({{3, 1.0f}, {4, 1.0f}, {3, 1.0f}});
  EXPECT_EQ(twice.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(twice.message(),
            "logit_bias[2] is for token 3, which has one already");
}

TEST(GenerateOptionsTest, AtLeastOneToken) {
  EXPECT_EQ(Validate(GenerateOptions()), absl::OkStatus());
  for (const int32_t bad : {0, -1}) {
    const absl::Status status = Changed<GenerateOptions>(
        [bad](GenerateOptions* o) { o->max_new_tokens = bad; });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), StartsWith("max_new_tokens is"));
  }
}

TEST(GenerateOptionsTest, SamplingIsLookedAtToo) {
  const absl::Status status = Changed<GenerateOptions>(
      [](GenerateOptions* o) { o->sampling.top_p = 2.0f; });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), StartsWith("top_p is 2;"));
}

absl::Status StopTexts(std::vector<std::string> texts) {
  return Changed<GenerateOptions>(
      [&texts](GenerateOptions* o) { o->stop_texts = texts; });
}

TEST(GenerateOptionsTest, StopTextsAreFewAndShort) {
  EXPECT_EQ(StopTexts(std::vector<std::string>(64, std::string(1024, 'a'))),
            absl::OkStatus());
  const absl::Status many = StopTexts(std::vector<std::string>(65, "a"));
  EXPECT_EQ(many.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(many.message(),
            "stop_texts has 65 entries; allowed are at most 64");
  for (const size_t size : {size_t{0}, size_t{1025}}) {
    const absl::Status status = StopTexts({"a", std::string(size, 'b')});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), "stop_texts[1] has " + std::to_string(size) +
                                    " bytes; allowed are 1 to 1024");
  }
}

TEST(GenerateOptionsTest, StopTextsAreUtf8) {
  EXPECT_EQ(StopTexts({"\n\n", "\u00e9\u4e2d\U0001f600", std::string(1, '\0')}),
            absl::OkStatus());
  for (const char* bad : {"\x80", "\xc3", "\xed\xa0\x80", "\xf5\x80\x80\x80"}) {
    const absl::Status status = StopTexts({"fine", bad});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("stop_texts[1]"));
  }
}

}  // namespace
}  // namespace deltaedge
