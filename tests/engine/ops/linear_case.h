// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TESTS_ENGINE_OPS_LINEAR_CASE_H_
#define DELTAEDGE_TESTS_ENGINE_OPS_LINEAR_CASE_H_

#include <cstdint>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "engine/model/tensor_list.h"
#include "engine/model/weights.h"
#include "engine/ops/linear.h"
#include "engine/ops/linear_input.h"
#include "gtest/gtest.h"
#include "tests/engine/ops/random_matrix.h"
#include "tests/testing/random.h"

namespace deltaedge::testing {

struct LinearSize {
  int in;  // At least: RandomMatrix tells.
  int out;
};

// Products of one type of weights and one size. Skipped where there is no
// kernel for the type.
class LinearCase
    : public ::testing::TestWithParam<std::tuple<WeightType, LinearSize>> {
 protected:
  // `matrices` of that size, one below another.
  LinearCase(int max_rows, int matrices)
      : type_(std::get<0>(GetParam())),
        in_(Columns(type_, std::get<1>(GetParam()).in)),
        out_(std::get<1>(GetParam()).out),
        random_(static_cast<uint64_t>(in_ * 1000 + out_)),
        matrix_(type_, matrices * out_, in_, random_),
        input_(LinearInput::Allocate(max_rows, in_).value()) {}

  void SetUp() override {
    const absl::Status status =
        Linear::Create({matrix_.View()}, "test").status();
    if (absl::IsUnimplemented(status)) GTEST_SKIP() << status;
  }

  const WeightType type_;
  const int in_, out_;
  Random random_;
  const RandomMatrix matrix_;
  LinearInput input_;
};

// All types of weights in each of the sizes, and what such a case is called.
template <class... Sizes>
auto LinearCases(Sizes... sizes) {
  return ::testing::Combine(::testing::ValuesIn(kWeightTypes),
                            ::testing::Values(sizes...));
}
inline std::string LinearCaseName(
    const ::testing::TestParamInfo<LinearCase::ParamType>& info) {
  const LinearSize& size = std::get<1>(info.param);
  return std::string(WeightTypeName(std::get<0>(info.param))) + "_" +
         std::to_string(size.in) + "_" + std::to_string(size.out);
}

}  // namespace deltaedge::testing

#endif  // DELTAEDGE_TESTS_ENGINE_OPS_LINEAR_CASE_H_
