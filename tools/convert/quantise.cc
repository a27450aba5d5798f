// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/quantise.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "absl/types/span.h"
#include "engine/base/bfloat16.h"
#include "engine/model/weights.h"

namespace deltaedge {
namespace {

constexpr float kLeastScale = std::numeric_limits<float>::min();

// Added and taken away again, it leaves a float of less than 2^22 rounded to
// the nearest integer, even if two are as near.
constexpr float kRounder = 0x1.8p23f;

// The nearest integer to w / scale within [low, high].
int32_t Nearest(float w, float scale, float low, float high) {
  const float q = std::min(std::max(w / scale, low), high);
  return static_cast<int32_t>((q + kRounder) - kRounder);
}

// Vectors of GCC and clang: the search is most of a conversion's time.
using Floats __attribute__((vector_size(16))) = float;
constexpr int kLanes = 4;

float Sum(Floats x) { return (x[0] + x[2]) + (x[1] + x[3]); }

// A block in units of the least scale that cuts nothing off, so that its
// largest numbers are 7 or -8 and no square of it is too large or too small.
struct Block {
  Floats w[kQ4Block / kLanes];
};

// How well a scale fits a block, and what the scale for its numbers would be.
struct Fit {
  float error;    // Sum of (w - scale q)^2.
  float product;  // Sum of w q.
  float square;   // Sum of q^2.
};

Fit TryScale(const Block& block, float scale) {
  const float inverse = 1 / scale;
  const Floats low = Floats{} - 8.0f, high = Floats{} + 7.0f;
  Floats error = {}, product = {}, square = {};
  for (const Floats& w : block.w) {
    Floats q = w * inverse;
    q = q < low ? low : q;
    q = q > high ? high : q;
    q = (q + kRounder) - kRounder;
    const Floats difference = w - scale * q;
    error += difference * difference;
    product += w * q;
    square += q * q;
  }
  return {Sum(error), Sum(product), Sum(square)};
}

// The scale of a block `w` [kQ4Block].
uint16_t FindScale(const float* w) {
  float positive = 0, negative = 0;
  for (int i = 0; i < kQ4Block; ++i) {
    positive = std::max(positive, w[i]);
    negative = std::max(negative, -w[i]);
  }
  const float least = std::max(positive / 7, negative / 8);
  if (least == 0) return Bfloat16FromFloat(1);
  if (least < 4 * kLeastScale) return Bfloat16FromFloat(4 * kLeastScale);

  Block block;
  for (int i = 0; i < kQ4Block; ++i) {
    block.w[i / kLanes][i % kLanes] = w[i] / least;
  }
  uint16_t best = Bfloat16FromFloat(least);
  Fit best_fit = {std::numeric_limits<float>::infinity(), 0, 1};
  // Whether `relative`, once stored, is better than the best so far.
  const auto improves = [&](float relative) {
    const uint16_t scale = Bfloat16FromFloat(relative * least);
    const Fit fit = TryScale(block, FloatFromBfloat16(scale) / least);
    if (!(fit.error < best_fit.error)) return false;
    best = scale;
    best_fit = fit;
    return true;
  };
  constexpr int kSteps = 8;
  constexpr float kFirst = 0.75f, kLast = 1.1f;
  for (int i = 0; i < kSteps; ++i) {
    improves(kFirst + i * ((kLast - kFirst) / (kSteps - 1)));
  }
  for (int i = 0; i < 2; ++i) {
    if (!improves(best_fit.product / best_fit.square)) break;
  }
  return best;
}

}  // namespace

float QuantiseQ8(absl::Span<const float> row, int8_t* q) {
  float most = 0;
  for (const float w : row) most = std::max(most, std::abs(w));
  const float scale = most == 0 ? 1 : std::max(most / 127, kLeastScale);
  for (const float w : row) {
    *q++ = static_cast<int8_t>(Nearest(w, scale, -127, 127));
  }
  return scale;
}

void QuantiseQ4(absl::Span<const float> row, uint8_t* q, uint16_t* scales) {
  for (size_t begin = 0; begin < row.size(); begin += kQ4Block) {
    const float* const w = row.data() + begin;
    *scales = FindScale(w);
    const float scale = FloatFromBfloat16(*scales++);
    for (int i = 0; i < kQ4Block; i += 2) {
      *q++ = static_cast<uint8_t>((Nearest(w[i], scale, -8, 7) + 8) |
                                  (Nearest(w[i + 1], scale, -8, 7) + 8) << 4);
    }
  }
}

}  // namespace deltaedge
