// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TESTS_TOOLS_CONVERT_GGUF_WRITER_H_
#define DELTAEDGE_TESTS_TOOLS_CONVERT_GGUF_WRITER_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace deltaedge::testing {

// Little-endian bytes of a number.
template <class Value>
std::string Little(Value value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  std::string bytes(sizeof(value), '\0');
  for (size_t i = 0; i < sizeof(value); ++i) {
    bytes[i] = static_cast<char>(bits >> (8 * i));
  }
  return bytes;
}

inline uint32_t FloatBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// The nearest half-precision number. Of a magnitude below 65504, and either
// normal or zero.
inline uint16_t ToF16(float value) {
  const uint32_t bits = FloatBits(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude < 0x38800000u) return static_cast<uint16_t>(sign);
  const uint32_t odd = magnitude >> 13 & 1;
  return static_cast<uint16_t>(
      sign | ((magnitude - 0x38000000u + 0xFFFu + odd) >> 13));
}

inline float FromF16(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const float magnitude =
      std::ldexp(static_cast<float>(bits & 1023) + (exponent > 0 ? 1024 : 0),
                 std::max(exponent, 1) - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// Types of tensors by their numbers in the format.
enum GgufType : uint32_t { kF32 = 0, kF16 = 1, kQ40 = 2, kQ80 = 8, kBf16 = 30 };

// `values` as a tensor of `type` holds them.
inline std::string EncodeGguf(GgufType type, const std::vector<float>& values) {
  std::string bytes;
  if (type == kF32 || type == kF16 || type == kBf16) {
    for (const float value : values) {
      absl::StrAppend(
          &bytes, type == kF32 ? Little(value)
                  : type == kF16
                      ? Little(ToF16(value))
                      : Little(static_cast<uint16_t>(FloatBits(value) >> 16)));
    }
    return bytes;
  }
  for (size_t block = 0; block + 32 <= values.size(); block += 32) {
    const float* const v = values.data() + block;
    const float extreme = *std::max_element(
        v, v + 32, [](float a, float b) { return std::abs(a) < std::abs(b); });
    const uint16_t scale =
        ToF16(type == kQ80 ? std::abs(extreme) / 127 : extreme / -8);
    const float inverse = scale == 0 ? 0 : 1 / FromF16(scale);
    absl::StrAppend(&bytes, Little(scale));
    const auto number = [&](int i, int low, int high) {
      return std::clamp(static_cast<int>(std::lround(v[i] * inverse)), low,
                        high);
    };
    if (type == kQ80) {
      for (int i = 0; i < 32; ++i) {
        bytes.push_back(static_cast<char>(number(i, -127, 127)));
      }
    } else {
      for (int i = 0; i < 16; ++i) {
        bytes.push_back(static_cast<char>((number(i, -8, 7) + 8) |
                                          (number(16 + i, -8, 7) + 8) << 4));
      }
    }
  }
  return bytes;
}

// Writes sound GGUF files, key behind key and tensor behind tensor.
class GgufWriter {
 public:
  explicit GgufWriter(uint32_t version = 3) : version_(version) {}

  template <class Value>
  GgufWriter& Number(absl::string_view key, uint32_t type, Value value) {
    return Key(key, Little(type) + Little(value));
  }
  GgufWriter& U32(absl::string_view key, uint32_t value) {
    return Number(key, 4, value);
  }
  GgufWriter& F32(absl::string_view key, float value) {
    return Number(key, 6, value);
  }
  GgufWriter& Bool(absl::string_view key, bool value) {
    return Number(key, 7, static_cast<uint8_t>(value));
  }
  GgufWriter& Text(absl::string_view key, absl::string_view value) {
    return Key(key, Little(uint32_t{8}) + Counted(value));
  }
  GgufWriter& Texts(absl::string_view key,
                    const std::vector<std::string>& values) {
    std::string items;
    for (const std::string& value : values) items += Counted(value);
    return Array(key, 8, values.size(), items);
  }
  GgufWriter& I32s(absl::string_view key, const std::vector<int32_t>& values) {
    std::string items;
    for (const int32_t value : values) items += Little(value);
    return Array(key, 5, values.size(), items);
  }
  GgufWriter& Bools(absl::string_view key, const std::vector<bool>& values) {
    std::string items;
    for (const bool value : values) items.push_back(value ? 1 : 0);
    return Array(key, 7, values.size(), items);
  }
  GgufWriter& Array(absl::string_view key, uint32_t type, uint64_t count,
                    absl::string_view items) {
    return Key(key, absl::StrCat(Little(uint32_t{9}), Little(type),
                                 Little(count), items));
  }
  // Any value: its type and its bytes.
  GgufWriter& Key(absl::string_view key, absl::string_view value) {
    ++keys_;
    absl::StrAppend(&key_bytes_, Counted(key), value);
    return *this;
  }

  // `shape` outermost first, as elsewhere; the format turns it round.
  GgufWriter& Tensor(absl::string_view name, const std::vector<int64_t>& shape,
                     uint32_t type, absl::string_view bytes) {
    std::string extents;
    for (auto it = shape.rbegin(); it != shape.rend(); ++it) {
      extents += Little(static_cast<uint64_t>(*it));
    }
    data_.resize((data_.size() + alignment_ - 1) / alignment_ * alignment_);
    absl::StrAppend(&tensor_bytes_, Counted(name),
                    Little(static_cast<uint32_t>(shape.size())), extents,
                    Little(type), Little(static_cast<uint64_t>(data_.size())));
    absl::StrAppend(&data_, bytes);
    ++tensors_;
    return *this;
  }
  GgufWriter& Tensor(absl::string_view name, const std::vector<int64_t>& shape,
                     GgufType type, const std::vector<float>& values) {
    return Tensor(name, shape, type, EncodeGguf(type, values));
  }

  // Before the first tensor.
  GgufWriter& Alignment(uint32_t alignment) {
    alignment_ = alignment;
    return U32("general.alignment", alignment);
  }

  std::string Header() const {
    return absl::StrCat("GGUF", Little(version_), Little(tensors_),
                        Little(keys_), key_bytes_, tensor_bytes_);
  }
  std::string Bytes() const {
    std::string bytes = Header();
    bytes.resize((bytes.size() + alignment_ - 1) / alignment_ * alignment_);
    return bytes + data_;
  }

 private:
  static std::string Counted(absl::string_view text) {
    return absl::StrCat(Little(static_cast<uint64_t>(text.size())), text);
  }

  const uint32_t version_;
  size_t alignment_ = 32;
  uint64_t keys_ = 0, tensors_ = 0;
  std::string key_bytes_, tensor_bytes_, data_;
};

}  // namespace deltaedge::testing

#endif  // DELTAEDGE_TESTS_TOOLS_CONVERT_GGUF_WRITER_H_
