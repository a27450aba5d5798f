// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_BASE_ALIGNED_BUFFER_H_
#define DELTAEDGE_ENGINE_BASE_ALIGNED_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include "absl/base/attributes.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/status_macros.h"

namespace deltaedge {

// Zeroed memory for numbers: 64-byte aligned, with kReadablePastEnd further
// bytes that may be read and never written. Vector kernels load whole registers
// and so look past the last element; what they find there is unspecified.
//
// From kMappedBytes on the memory comes straight from the operating system as
// pages that cost nothing until they are touched: a KV cache sized for a whole
// context occupies what has been written so far. No room is set aside for them,
// so a machine that runs out later ends the process when it touches a page, as
// with any program on a system that overcommits.
//
// Movable, not copyable; a moved-from or default buffer is empty with null
// data. Const methods may be called from any thread.
class AlignedBuffer {
 public:
  static constexpr int64_t kAlignment = 64;
  static constexpr int64_t kReadablePastEnd = 64;
  static constexpr int64_t kMappedBytes = int64_t{1} << 20;

  // `size_bytes` zero bytes; 0 gives a buffer whose tail can be read. `what`
  // names the purpose in errors ("KV rows of layer 3"): ResourceExhausted if
  // there is no memory, InvalidArgument if `size_bytes` is negative. Never
  // throws and never ends the process.
  static absl::StatusOr<AlignedBuffer> Allocate(int64_t size_bytes,
                                                absl::string_view what);

  // The same for memory that is filled at once and then read from end to end
  // again and again. It starts at a multiple of kHugePageBytes and asks the
  // system for pages of that size, which spares most of the address look-ups:
  // on a virtual machine a fifth of the time of such a read. What remains at
  // the end is in small pages, so that none of it is wasted. Smaller buffers
  // are as those of Allocate.
  static absl::StatusOr<AlignedBuffer> AllocateHugePages(
      int64_t size_bytes, absl::string_view what);
  static constexpr int64_t kHugePageBytes = int64_t{2} << 20;

  AlignedBuffer() = default;
  AlignedBuffer(AlignedBuffer&& other) noexcept { *this = std::move(other); }
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    std::swap(capacity_bytes_, other.capacity_bytes_);
    other.Free();
    return *this;
  }
  ~AlignedBuffer() { Free(); }

  std::byte* data() ABSL_ATTRIBUTE_LIFETIME_BOUND { return data_; }
  const std::byte* data() const ABSL_ATTRIBUTE_LIFETIME_BOUND { return data_; }
  int64_t size_bytes() const { return size_bytes_; }

 private:
  static absl::StatusOr<AlignedBuffer> Allocate(
      int64_t size_bytes, absl::string_view what,
      void* (*allocate_zeroed)(size_t));
  void Free();

  std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
  int64_t capacity_bytes_ = 0;  // What was asked of the system, tail included.
};

// An AlignedBuffer of `size()` elements of a plain type, all bits zero.
//
//   DELTAEDGE_ASSIGN_OR_RETURN(
//       keys_, AlignedArray<float>::Allocate({rows, heads, dim}, "keys"));
template <class T>
class AlignedArray {
  static_assert(std::is_trivially_copyable_v<T> &&
                std::is_trivially_destructible_v<T>);
  static_assert(alignof(T) <= AlignedBuffer::kAlignment);

 public:
  // As AlignedBuffer::Allocate, for the product of `shape` elements;
  // ResourceExhausted also if that does not fit int64_t bytes, InvalidArgument
  // also if a factor is negative.
  static absl::StatusOr<AlignedArray> Allocate(
      std::initializer_list<int64_t> shape, absl::string_view what);
  static absl::StatusOr<AlignedArray> Allocate(int64_t count,
                                               absl::string_view what) {
    return Allocate({count}, what);
  }

  AlignedArray() = default;
  AlignedArray(AlignedArray&& other) noexcept { *this = std::move(other); }
  AlignedArray& operator=(AlignedArray&& other) noexcept {
    buffer_ = std::move(other.buffer_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  T* data() ABSL_ATTRIBUTE_LIFETIME_BOUND {
    return reinterpret_cast<T*>(buffer_.data());
  }
  const T* data() const ABSL_ATTRIBUTE_LIFETIME_BOUND {
    return reinterpret_cast<const T*>(buffer_.data());
  }
  int64_t size() const { return size_; }
  int64_t size_bytes() const { return buffer_.size_bytes(); }
  bool empty() const { return size_ == 0; }

  T& operator[](int64_t i) ABSL_ATTRIBUTE_LIFETIME_BOUND { return data()[i]; }
  const T& operator[](int64_t i) const ABSL_ATTRIBUTE_LIFETIME_BOUND {
    return data()[i];
  }
  T* begin() ABSL_ATTRIBUTE_LIFETIME_BOUND { return data(); }
  T* end() ABSL_ATTRIBUTE_LIFETIME_BOUND { return data() + size_; }
  const T* begin() const ABSL_ATTRIBUTE_LIFETIME_BOUND { return data(); }
  const T* end() const ABSL_ATTRIBUTE_LIFETIME_BOUND { return data() + size_; }
  absl::Span<T> span() ABSL_ATTRIBUTE_LIFETIME_BOUND {
    return absl::Span<T>(data(), static_cast<size_t>(size_));
  }
  absl::Span<const T> span() const ABSL_ATTRIBUTE_LIFETIME_BOUND {
    return absl::Span<const T>(data(), static_cast<size_t>(size_));
  }

 private:
  AlignedBuffer buffer_;
  int64_t size_ = 0;
};

// Implementation.

namespace internal {
absl::StatusOr<AlignedBuffer> AllocateElements(
    std::initializer_list<int64_t> shape, int64_t element_bytes,
    absl::string_view what);
}  // namespace internal

template <class T>
absl::StatusOr<AlignedArray<T>> AlignedArray<T>::Allocate(
    std::initializer_list<int64_t> shape, absl::string_view what) {
  constexpr int64_t kElementBytes = sizeof(T);
  AlignedArray array;
  DELTAEDGE_ASSIGN_OR_RETURN(
      array.buffer_, internal::AllocateElements(shape, kElementBytes, what));
  array.size_ = array.buffer_.size_bytes() / kElementBytes;
  return array;
}

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_BASE_ALIGNED_BUFFER_H_
