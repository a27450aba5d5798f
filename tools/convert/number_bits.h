// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_CONVERT_NUMBER_BITS_H_
#define DELTAEDGE_TOOLS_CONVERT_NUMBER_BITS_H_

#include <cstdint>
#include <cstring>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error \
    "Checkpoints are read as they lie in memory: little-endian machines only."
#endif

namespace deltaedge {

// Numbers as the files of checkpoints hold them: little-endian, at any address.

template <class Bits>
Bits LoadBits(const unsigned char* from) {
  Bits bits;
  std::memcpy(&bits, from, sizeof(bits));
  return bits;
}

inline float FloatFromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline float LoadF32(const unsigned char* from) {
  return FloatFromBits(LoadBits<uint32_t>(from));
}

inline float LoadBf16(const unsigned char* from) {
  return FloatFromBits(static_cast<uint32_t>(LoadBits<uint16_t>(from)) << 16);
}

inline float LoadF16(const unsigned char* from) {
  const uint32_t bits = LoadBits<uint16_t>(from);
  const uint32_t sign = (bits & 0x8000u) << 16;
  const uint32_t exponent = bits >> 10 & 0x1Fu;
  const uint32_t fraction = bits & 0x3FFu;
  if (exponent == 0) {  // Zero or subnormal: fraction * 2^-24, exact.
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t wide_exponent = exponent == 0x1F ? 0xFFu : exponent + 112;
  return FloatFromBits(sign | wide_exponent << 23 | fraction << 13);
}

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_CONVERT_NUMBER_BITS_H_
