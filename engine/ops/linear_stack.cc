// SPDX-License-Identifier: Apache-2.0

#include "engine/ops/linear_stack.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/bfloat16.h"
#include "engine/base/checked_math.h"
#include "engine/base/status_macros.h"
#include "engine/model/weights.h"
#include "engine/ops/linear.h"
#include "engine/ops/linear_input.h"
#include "pthreadpool.h"

namespace deltaedge {
namespace {

// `matrices` of `rows` rows each, `stride` rows apart. What lies between is
// never multiplied with, but has scales.
struct Spread {
  AlignedBuffer numbers, scales;
  MatrixView view;
};

absl::StatusOr<Spread> SpreadOut(const MatrixView& stacked, int32_t matrices,
                                 int32_t stride, absl::string_view name) {
  const int32_t rows = stacked.rows / matrices;
  const std::string what =
      absl::StrCat("spread matrices of product '", name, "'");
  const int64_t number_bytes = RowBytes(stacked);
  const int64_t scale_bytes = ScaleBytes(stacked);
  Spread spread;
  spread.view = stacked;
  spread.view.rows = matrices * stride;
  const auto copy = [&](const void* from, int64_t row_bytes,
                        AlignedBuffer* to) {
    for (int64_t i = 0; i < matrices; ++i) {
      std::memcpy(to->data() + i * stride * row_bytes,
                  static_cast<const std::byte*>(from) + i * rows * row_bytes,
                  static_cast<size_t>(rows * row_bytes));
    }
  };
  DELTAEDGE_ASSIGN_OR_RETURN(
      spread.numbers,
      AlignedBuffer::Allocate(spread.view.rows * number_bytes, what));
  copy(stacked.data, number_bytes, &spread.numbers);
  spread.view.data = spread.numbers.data();
  if (scale_bytes == 0) return spread;
  DELTAEDGE_ASSIGN_OR_RETURN(
      spread.scales,
      AlignedBuffer::Allocate(spread.view.rows * scale_bytes, what));
  if (stacked.type == WeightType::kQ4) {
    std::fill_n(reinterpret_cast<uint16_t*>(spread.scales.data()),
                spread.view.rows * scale_bytes / 2, Bfloat16FromFloat(1.0f));
  } else {
    std::fill_n(reinterpret_cast<float*>(spread.scales.data()),
                spread.view.rows, 1.0f);
  }
  copy(stacked.scales, scale_bytes, &spread.scales);
  spread.view.scales = spread.scales.data();
  return spread;
}

struct Batch {
  const Linear* linear;
  LinearInput* input;
  absl::Span<const LinearStack::Group> groups;
  int32_t outputs, stride;
  float* y;
};

void RunColumns(void* context, size_t group, size_t begin, size_t columns) {
  const Batch& batch = *static_cast<const Batch*>(context);
  // Groups are few, and a part takes a thousand times longer than this.
  int32_t row = 0;
  for (size_t i = 0; i < group; ++i) row += batch.groups[i].rows;
  const auto first = static_cast<int32_t>(begin);
  const LinearStack::Group& of = batch.groups[group];
  batch.linear->RunPart(
      *batch.input,
      {row, of.rows, of.matrix * batch.stride + first,
       static_cast<int32_t>(columns),
       batch.y + int64_t{row} * batch.outputs + first, batch.outputs});
}

}  // namespace

absl::StatusOr<std::unique_ptr<LinearStack>> LinearStack::Create(
    const MatrixView& stacked, int32_t count, absl::string_view name,
    const LinearOptions& options) {
  if (count < 1 || stacked.rows % count != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("product '", name, "' has ", stacked.rows, " rows in ",
                     count, " matrices of the same size"));
  }
  const int32_t outputs = stacked.rows / count;
  const auto stride = static_cast<int32_t>(DivideUp(outputs, kMaxPanelOutputs) *
                                           kMaxPanelOutputs);
  Spread spread;
  spread.view = stacked;
  // Views that lack something are Linear's to refuse.
  const bool whole = stacked.data != nullptr &&
                     (stacked.scales != nullptr || ScaleBytes(stacked) == 0);
  if (stride != outputs && whole) {
    if (options.packed != nullptr && options.packed->HasNext()) {
      // Their numbers are not read then.
      spread.view.rows = count * stride;
    } else {
      DELTAEDGE_ASSIGN_OR_RETURN(spread,
                                 SpreadOut(stacked, count, stride, name));
    }
  }
  DELTAEDGE_ASSIGN_OR_RETURN(std::unique_ptr<Linear> linear,
                             Linear::Create({spread.view}, name, options));
  if (stride % linear->panel_outputs() != 0) {
    return absl::UnimplementedError(
        absl::StrCat("product '", name, "' has panels of ",
                     linear->panel_outputs(), " outputs on this processor"));
  }
  return absl::WrapUnique(new LinearStack(
      std::move(linear), TakesInt8(stacked.type), outputs, stride));
}

void LinearStack::Run(LinearInput& input, absl::Span<const Group> groups,
                      float* y, pthreadpool_t pool) const {
  if (input.rows() == 0) return;
  assert(input.features() == in_features());
  if (takes_int8_) input.Quantize(pool);
  Batch batch = {linear_.get(), &input, groups, out_features_, stride_, y};
  const auto outputs = static_cast<int64_t>(groups.size()) * out_features_;
  const auto threads =
      static_cast<int64_t>(pthreadpool_get_threads_count(pool));
  pthreadpool_parallelize_2d_tile_1d(
      pool, RunColumns, &batch, groups.size(),
      static_cast<size_t>(out_features_),
      static_cast<size_t>(linear_->PartOutputs(outputs, threads)),
      PTHREADPOOL_FLAG_DISABLE_DENORMALS);
}

}  // namespace deltaedge
