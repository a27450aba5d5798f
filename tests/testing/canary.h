// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TESTS_TESTING_CANARY_H_
#define DELTAEDGE_TESTS_TESTING_CANARY_H_

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

namespace deltaedge::testing {

// An array of `size` elements at a chosen distance from a 64-byte boundary,
// between two runs of guard words. A write before or behind the array shows in
// `Intact()`; a read there shows as a NaN when T is a floating-point type. The
// elements themselves start as guard words too, so an element that was never
// written is a NaN as well.
//
//   CanaryBuffer<float> out(n, /*misalign=*/1);
//   Kernel(out.data());
//   EXPECT_TRUE(out.Intact());
template <class T>
class CanaryBuffer {
 public:
  static constexpr size_t kAlignment = 64;
  static constexpr size_t kGuardBytes = 256;

  // `misalign`: elements between a 64-byte boundary and `data()`.
  explicit CanaryBuffer(size_t size, size_t misalign = 0)
      : size_(size),
        bytes_(2 * kGuardBytes + kAlignment + (misalign + size) * sizeof(T)),
        raw_(new unsigned char[bytes_]) {
    assert(misalign * sizeof(T) < kAlignment);
    const uintptr_t base = reinterpret_cast<uintptr_t>(raw_.get());
    const uintptr_t begin =
        (base + kGuardBytes + kAlignment - 1) / kAlignment * kAlignment;
    data_ = reinterpret_cast<T*>(begin + misalign * sizeof(T));
    std::memset(raw_.get(), kGuardByte, bytes_);
  }

  // A copy of `values`.
  explicit CanaryBuffer(const std::vector<T>& values, size_t misalign = 0)
      : CanaryBuffer(values.size(), misalign) {
    for (size_t i = 0; i < size_; ++i) data_[i] = values[i];
  }

  CanaryBuffer(CanaryBuffer&&) = default;
  CanaryBuffer& operator=(CanaryBuffer&&) = default;

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return size_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }

  std::vector<T> ToVector() const { return std::vector<T>(begin(), end()); }

  // Turns all elements back into guard words (NaN for floating point).
  void Dirty() { std::memset(data_, kGuardByte, size_ * sizeof(T)); }

  // Whether everything around the elements is as it was made.
  bool Intact() const {
    const unsigned char* begin = reinterpret_cast<const unsigned char*>(data_);
    const unsigned char* end = begin + size_ * sizeof(T);
    for (const unsigned char* p = raw_.get(); p < raw_.get() + bytes_; ++p) {
      if (p == begin) p = end;
      if (*p != kGuardByte) return false;
    }
    return true;
  }

 private:
  // Repeated, it is a negative quiet NaN in float and in double.
  static constexpr unsigned char kGuardByte = 0xFF;

  size_t size_;
  size_t bytes_;
  std::unique_ptr<unsigned char[]> raw_;
  T* data_;
};

// Whether two arrays hold the same bits: unlike ==, tells -0 from +0 and takes
// a NaN as equal to itself.
template <class T>
bool SameBits(const T* a, const T* b, size_t size) {
  return size == 0 || std::memcmp(a, b, size * sizeof(T)) == 0;
}

template <class A, class B>
bool SameBits(const A& a, const B& b) {
  return a.size() == b.size() && SameBits(a.data(), b.data(), a.size());
}

}  // namespace deltaedge::testing

#endif  // DELTAEDGE_TESTS_TESTING_CANARY_H_
