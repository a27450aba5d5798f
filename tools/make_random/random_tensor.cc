// SPDX-License-Identifier: Apache-2.0

#include "tools/make_random/random_tensor.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "engine/base/bfloat16.h"
#include "engine/model/model_contents.h"
#include "engine/model/tensor_list.h"

namespace deltaedge {
namespace {

constexpr int64_t kTaps = 4;

uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace

RandomTensor::Draw RandomTensor::DrawOf(absl::string_view tensor,
                                        ModelKind kind) {
  if (tensor == "embedding" || tensor == "head") return Draw::kHead;
  if (absl::EndsWith(tensor, "norm")) {
    return kind == ModelKind::kTarget && !absl::EndsWith(tensor, "gdn.norm")
               ? Draw::kZeroCentredGain
               : Draw::kGain;
  }
  if (absl::EndsWith(tensor, "gdn.conv")) return Draw::kTaps;
  if (absl::EndsWith(tensor, "gdn.neg_exp_a")) return Draw::kDecay;
  if (absl::EndsWith(tensor, "gdn.dt_bias")) return Draw::kDtBias;
  return Draw::kMatrix;
}

RandomTensor::RandomTensor(const TensorSpec& spec, ModelKind kind,
                           const RandomNumbers& numbers)
    : draw_(DrawOf(spec.name, kind)),
      bf16_(numbers.bf16 && draw_ != Draw::kDecay &&
            !absl::EndsWith(spec.name, "gdn.norm")),
      key_(numbers.seed),
      columns_(spec.shape.back()),
      root_(std::sqrt(static_cast<double>(columns_))) {
  for (const char c : spec.name) {
    key_ = Mix(key_ ^ static_cast<unsigned char>(c));
  }
  for (const int32_t extent : spec.shape) elements_ *= extent;
}

// SplitMix64, whose i-th number is a function of i.
uint64_t RandomTensor::Bits(int64_t i) const {
  return Mix(key_ + (static_cast<uint64_t>(i) + 1) * 0x9E3779B97F4A7C15u);
}

// Even in [0, 1).
double RandomTensor::Uniform(int64_t i) const {
  return static_cast<double>(Bits(i) >> 11) * 0x1p-53;
}

// Mean 0, deviation 1: twelve even numbers of 16 bits, added. No function of
// the C library, whose last bits differ between machines.
double RandomTensor::Normal(int64_t i) const {
  uint64_t sums = 0;  // Two, of 32 bits.
  for (int64_t j = 0; j < 3; ++j) {
    const uint64_t bits = Bits(3 * i + j);
    sums += (bits & 0x0000FFFF0000FFFF) + (bits >> 16 & 0x0000FFFF0000FFFF);
  }
  const auto sum = static_cast<int64_t>((sums & 0xFFFFFFFF) + (sums >> 32));
  return static_cast<double>(2 * sum - 12 * 0xFFFF) * 0x1p-17;
}

float RandomTensor::SourceOf(int64_t i) const {
  double value = 0;
  switch (draw_) {
    case Draw::kMatrix:
      value = Normal(i) / root_;
      break;
    case Draw::kHead:
      value = 2 * Normal(i) / root_;
      break;
    case Draw::kGain:
      value = 1 + 0.1 * Normal(i);
      break;
    case Draw::kZeroCentredGain:
      value = static_cast<float>(1 + 0.1 * Normal(i)) - 1.0f;
      break;
    case Draw::kTaps:
      value = 0.5 * Normal(i);
      break;
    case Draw::kDecay:
      value = std::log(16 - 15 * Uniform(i));
      break;
    case Draw::kDtBias:
      value = -6.9 + 4.65 * Uniform(i);
      break;
  }
  const auto source = static_cast<float>(value);
  return bf16_ ? FloatFromBfloat16(Bfloat16FromFloat(source)) : source;
}

std::vector<float> RandomTensor::Stored(int64_t first, int64_t count) const {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) {
    const float source = SourceOf(first + i);
    values[i] = draw_ == Draw::kZeroCentredGain ? 1.0f + source
                : draw_ == Draw::kDecay
                    ? static_cast<float>(-std::exp(double{source}))
                    : source;
  }
  return values;
}

std::vector<float> RandomTensor::Source(int64_t first, int64_t count) const {
  const int64_t channels = elements_ / kTaps;
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = first + i;
    values[i] = SourceOf(
        draw_ == Draw::kTaps ? at % kTaps * channels + at / kTaps : at);
  }
  return values;
}

}  // namespace deltaedge
