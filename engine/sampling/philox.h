// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_SAMPLING_PHILOX_H_
#define DELTAEDGE_ENGINE_SAMPLING_PHILOX_H_

#include <array>
#include <cstdint>

namespace deltaedge {

// Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
// easy as 1, 2, 3" (SC 2011): 128 random bits that are a function of counter
// and key, so that any number of a stream can be had without those before it.
constexpr std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                             std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(a)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

// The random number of a position: 53 bits, even in [0, 1). The seed is the
// key, the position the counter, low words first.
constexpr double UniformAt(uint64_t seed, int64_t position) {
  const uint64_t count = static_cast<uint64_t>(position);
  const std::array<uint32_t, 4> words = Philox4x32(
      {static_cast<uint32_t>(count), static_cast<uint32_t>(count >> 32), 0, 0},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return static_cast<double>((uint64_t{words[1]} << 32 | words[0]) >> 11) *
         0x1p-53;
}

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_SAMPLING_PHILOX_H_
