// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TESTS_TESTING_RANDOM_H_
#define DELTAEDGE_TESTS_TESTING_RANDOM_H_

#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace deltaedge::testing {

// Seeded random numbers for tests, the same with every compiler and library
// (those of <random>'s distributions are not). SplitMix64. Not thread-safe.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Bits() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

  // An integer in [low, high].
  int Int(int low, int high) {
    assert(low <= high);
    const uint64_t span = static_cast<uint64_t>(static_cast<int64_t>(high) -
                                                static_cast<int64_t>(low) + 1);
    return static_cast<int>(low + static_cast<int64_t>(Bits() % span));
  }

  bool OneIn(int n) { return Int(1, n) == 1; }

  // Even in [0, 1).
  double Unit() { return static_cast<double>(Bits() >> 11) * 0x1p-53; }

  // Even in [low, high).
  float Uniform(float low = -1.0f, float high = 1.0f) {
    return static_cast<float>(low + (static_cast<double>(high) - low) * Unit());
  }

  // Normal with mean 0 and deviation 1 (Box and Muller).
  float Gaussian() {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - Unit()));
    return static_cast<float>(radius * std::cos(6.283185307179586 * Unit()));
  }

  std::vector<float> Uniforms(size_t size, float low = -1.0f,
                              float high = 1.0f) {
    std::vector<float> values(size);
    for (float& value : values) value = Uniform(low, high);
    return values;
  }

  std::vector<float> Gaussians(size_t size, float deviation = 1.0f) {
    std::vector<float> values(size);
    for (float& value : values) value = deviation * Gaussian();
    return values;
  }

 private:
  uint64_t state_;
};

}  // namespace deltaedge::testing

#endif  // DELTAEDGE_TESTS_TESTING_RANDOM_H_
