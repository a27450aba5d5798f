// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_BASE_CHECKED_MATH_H_
#define DELTAEDGE_ENGINE_BASE_CHECKED_MATH_H_

#include <cstdint>
#include <optional>

namespace deltaedge {

// Sums and products of sizes that cannot wrap: the mathematical value, or
// nothing if it does not fit int64_t. Any number of operands; the order in
// which they are given is the order in which they are combined, so a product
// with a later zero may still be refused.
//
//   std::optional<int64_t> bytes = CheckedMul(rows, cols, sizeof(float));
//   if (!bytes) return absl::ResourceExhaustedError(...);

constexpr std::optional<int64_t> CheckedAdd(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

constexpr std::optional<int64_t> CheckedMul(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

template <class... Rest>
constexpr std::optional<int64_t> CheckedAdd(int64_t a, int64_t b, int64_t c,
                                            Rest... rest) {
  const std::optional<int64_t> sum = CheckedAdd(a, b);
  return sum ? CheckedAdd(*sum, c, rest...) : std::nullopt;
}

template <class... Rest>
constexpr std::optional<int64_t> CheckedMul(int64_t a, int64_t b, int64_t c,
                                            Rest... rest) {
  const std::optional<int64_t> product = CheckedMul(a, b);
  return product ? CheckedMul(*product, c, rest...) : std::nullopt;
}

// `value` rounded up to a multiple of `unit`. 0 <= value, 0 < unit.
constexpr std::optional<int64_t> CheckedRoundUp(int64_t value, int64_t unit) {
  const std::optional<int64_t> sum = CheckedAdd(value, unit - 1);
  return sum ? std::optional<int64_t>(*sum / unit * unit) : std::nullopt;
}

// a / b, rounded up. 0 <= a, 0 < b, and a + b fits.
constexpr int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_BASE_CHECKED_MATH_H_
