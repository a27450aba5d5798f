// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_BASE_BFLOAT16_H_
#define DELTAEDGE_ENGINE_BASE_BFLOAT16_H_

#include <cstdint>
#include <cstring>

namespace deltaedge {

// bfloat16: the upper half of a float's bits.

inline float FloatFromBfloat16(uint16_t bits) {
  const uint32_t widened = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &widened, sizeof(value));
  return value;
}

// The nearest bfloat16, the even one of two equally near. `value` is finite;
// one that is too large becomes infinity.
inline uint16_t Bfloat16FromFloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  bits += 0x7FFF + (bits >> 16 & 1);
  return static_cast<uint16_t>(bits >> 16);
}

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_BASE_BFLOAT16_H_
