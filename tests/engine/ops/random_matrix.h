// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TESTS_ENGINE_OPS_RANDOM_MATRIX_H_
#define DELTAEDGE_TESTS_ENGINE_OPS_RANDOM_MATRIX_H_

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/model/weights.h"
#include "tests/testing/canary.h"
#include "tests/testing/random.h"

namespace deltaedge::testing {

// The next multiple of what the type's columns come in.
inline int Columns(WeightType type, int at_least) {
  const int unit = type == WeightType::kQ4 ? kQ4Block : 1;
  return (at_least + unit - 1) / unit * unit;
}

// Random weights of any type, all codes in use, at an odd distance from the
// alignment: files start anywhere. Scales differ from row to row (and block to
// block), so that the weights lie mostly in -1 .. 1.
class RandomMatrix {
 public:
  RandomMatrix(WeightType type, int rows, int cols, Random& random)
      : type_(type),
        rows_(rows),
        cols_(cols),
        floats_(type == WeightType::kF32 ? random.Gaussians(size()) : Nothing(),
                /*misalign=*/3),
        bytes_(type == WeightType::kF32  ? 0
               : type == WeightType::kQ4 ? size() / 2
                                         : size(),
               /*misalign=*/3),
        scales_(type == WeightType::kQ8 || type == WeightType::kQ8W
                    ? random.Uniforms(static_cast<size_t>(rows), 0.002f, 0.01f)
                    : Nothing(),
                /*misalign=*/1),
        block_scales_(type == WeightType::kQ4 ? size() / kQ4Block : 0,
                      /*misalign=*/1) {
    assert(cols == Columns(type, cols));
    for (uint8_t& byte : bytes_) {
      do {
        byte = static_cast<uint8_t>(random.Bits());
        // The codes of 8 bits are -127 .. 127.
      } while (type != WeightType::kQ4 && byte == 0x80);
    }
    // bfloat16 from 1/16 to 1/4.
    for (uint16_t& scale : block_scales_) {
      scale = static_cast<uint16_t>(random.Int(0x3D80, 0x3E7F));
    }
  }

  // Rows first .. first + rows - 1; all of them.
  MatrixView View(int first, int rows) const {
    MatrixView view = {nullptr, type_, rows, cols_};
    const ptrdiff_t begin = static_cast<ptrdiff_t>(first) * cols_;
    switch (type_) {
      case WeightType::kF32:
        view.data = floats_.data() + begin;
        break;
      case WeightType::kQ4:
        view.data = bytes_.data() + begin / 2;
        view.scales = block_scales_.data() + begin / kQ4Block;
        break;
      default:
        view.data = bytes_.data() + begin;
        view.scales = scales_.data() + first;
    }
    return view;
  }
  MatrixView View() const { return View(0, rows_); }

  // As though the source had been freed.
  void Erase() {
    floats_.Dirty();
    bytes_.Dirty();
    scales_.Dirty();
    block_scales_.Dirty();
  }

 private:
  static std::vector<float> Nothing() { return {}; }
  size_t size() const {
    return static_cast<size_t>(rows_) * static_cast<size_t>(cols_);
  }

  const WeightType type_;
  const int rows_, cols_;
  CanaryBuffer<float> floats_;
  CanaryBuffer<uint8_t> bytes_;
  CanaryBuffer<float> scales_;
  CanaryBuffer<uint16_t> block_scales_;
};

}  // namespace deltaedge::testing

#endif  // DELTAEDGE_TESTS_ENGINE_OPS_RANDOM_MATRIX_H_
