// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/quantise.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
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

// Vectors of GCC and clang: the search is most of a conversion's time. A lane
// is a block of its own, so that none waits for another.
constexpr int kLanes = 4;
using Floats __attribute__((vector_size(kLanes * sizeof(float)))) = float;
using Bits __attribute__((vector_size(kLanes * sizeof(float)))) = uint32_t;

// To the nearest bfloat16.
Floats Rounded(Floats x) {
  Bits bits;
  std::memcpy(&bits, &x, sizeof(bits));
  bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// Blocks in units of the least scale that cuts nothing off, so that their
// largest numbers are 7 or -8 and no square of them is too large or too small.
using Blocks = std::array<Floats, kQ4Block>;

// How well scales fit blocks, and what the scales for their numbers would be.
struct Fit {
  Floats error;    // Sum of (w - scale q)^2.
  Floats product;  // Sum of w q.
  Floats square;   // Sum of q^2.
};

Fit TryScales(const Blocks& blocks, Floats scale) {
  const Floats inverse = 1 / scale;
  const Floats low = Floats{} - 8.0f, high = Floats{} + 7.0f;
  constexpr int kSums = 4;
  Fit sums[kSums];
  for (int sum = 0; sum < kSums; ++sum) {
    Floats error = {}, product = {}, square = {};
    for (int i = sum; i < kQ4Block; i += kSums) {
      const Floats w = blocks[i];
      Floats q = w * inverse;
      q = q < low ? low : q;
      q = q > high ? high : q;
      q = (q + kRounder) - kRounder;
      const Floats difference = w - scale * q;
      error += difference * difference;
      product += w * q;
      square += q * q;
    }
    sums[sum] = {error, product, square};
  }
  const auto all = [&sums](Floats Fit::*part) {
    return (sums[0].*part + sums[2].*part) + (sums[1].*part + sums[3].*part);
  };
  return {all(&Fit::error), all(&Fit::product), all(&Fit::square)};
}

// The scales of `count` blocks `w` [count, kQ4Block], at most kLanes, which are
// bfloat16 numbers.
Floats FindScales(const float* w, int count) {
  Blocks blocks = {};
  for (int lane = 0; lane < count; ++lane) {
    for (int i = 0; i < kQ4Block; ++i) {
      blocks[i][lane] = w[lane * kQ4Block + i];
    }
  }
  Floats positive = {}, negative = {};
  for (const Floats& x : blocks) {
    positive = positive < x ? x : positive;
    negative = negative < -x ? -x : negative;
  }
  positive /= 7;
  negative /= 8;
  const Floats covering = positive < negative ? negative : positive;
  // Blocks of less get a scale without a search.
  const Floats lowest = Floats{} + 4 * kLeastScale;
  const Floats least = covering < lowest ? Floats{} + 1.0f : covering;
  for (Floats& x : blocks) x /= least;

  Floats best = Rounded(least);
  Fit best_fit = {Floats{} + std::numeric_limits<float>::max(), Floats{},
                  Floats{} + 1.0f};
  // Takes `relative`, once stored, where it is better than the best so far.
  const auto consider = [&](Floats relative) {
    const Floats scale = Rounded(relative * least);
    const Fit fit = TryScales(blocks, scale / least);
    const auto better = fit.error < best_fit.error;
    best = better ? scale : best;
    best_fit.error = better ? fit.error : best_fit.error;
    best_fit.product = better ? fit.product : best_fit.product;
    best_fit.square = better ? fit.square : best_fit.square;
  };
  constexpr int kSteps = 8;
  constexpr float kFirst = 0.75f, kLast = 1.1f;
  for (int i = 0; i < kSteps; ++i) {
    consider(Floats{} + (kFirst + i * ((kLast - kFirst) / (kSteps - 1))));
  }
  for (int i = 0; i < 2; ++i) consider(best_fit.product / best_fit.square);
  best = covering < lowest ? lowest : best;
  return covering == 0.0f ? Floats{} + 1.0f : best;
}

}  // namespace

float QuantiseQ8(absl::Span<const float> row, int8_t* q) {
  // The bits of magnitudes are in their order.
  int32_t most_bits = 0;
  for (const float w : row) {
    int32_t bits;
    std::memcpy(&bits, &w, sizeof(bits));
    most_bits = std::max(most_bits, bits & 0x7FFFFFFF);
  }
  float most;
  std::memcpy(&most, &most_bits, sizeof(most));
  const float scale = most == 0 ? 1 : std::max(most / 127, kLeastScale);
  for (size_t i = 0; i < row.size(); ++i) {
    q[i] = static_cast<int8_t>(Nearest(row[i], scale, -127, 127));
  }
  return scale;
}

void QuantiseQ4(absl::Span<const float> row, uint8_t* q, uint16_t* scales) {
  const auto blocks = static_cast<int64_t>(row.size()) / kQ4Block;
  for (int64_t first = 0; first < blocks; first += kLanes) {
    const float* w = row.data() + first * kQ4Block;
    const int count =
        static_cast<int>(std::min<int64_t>(kLanes, blocks - first));
    const Floats found = FindScales(w, count);
    for (int lane = 0; lane < count; ++lane, w += kQ4Block) {
      const float scale = found[lane];
      *scales++ = Bfloat16FromFloat(scale);  // Exact.
      std::array<int32_t, kQ4Block> numbers;
      for (int i = 0; i < kQ4Block; ++i) {
        numbers[i] = Nearest(w[i], scale, -8, 7) + 8;
      }
      for (int i = 0; i < kQ4Block; i += 2) {
        *q++ = static_cast<uint8_t>(numbers[i] | numbers[i + 1] << 4);
      }
    }
  }
}

}  // namespace deltaedge
