// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/status_macros.h"
#include "engine/model/weights.h"
#include "engine/ops/linear.h"
#include "pthreadpool.h"
#include "xnnpack.h"

namespace deltaedge {
namespace {

static_assert(Linear::kReadablePastEnd >= XNN_EXTRA_BYTES);

absl::Status XnnError(xnn_status status, absl::string_view action,
                      absl::string_view name) {
  if (status == xnn_status_success) return absl::OkStatus();
  const std::string message =
      absl::StrCat("XNNPACK cannot ", action, " product '", name, "': ");
  switch (status) {
    case xnn_status_out_of_memory:
      return absl::ResourceExhaustedError(absl::StrCat(message, "no memory"));
    case xnn_status_unsupported_hardware:
      return absl::UnimplementedError(
          absl::StrCat(message, "this processor is not supported"));
    default:
      return absl::InternalError(
          absl::StrCat(message, "status ", static_cast<int>(status)));
  }
}

// Where XNNPACK puts the packed weights of one operator. It calls this a cache;
// for us it is the way to own that memory.
class PackedWeights {
 public:
  explicit PackedWeights(absl::string_view name) : name_(name) {
    provider_.context = this;
    provider_.look_up = [](void*, const xnn_weights_cache_look_up_key*) {
      return kNotFound;
    };
    provider_.reserve_space = [](void* self, size_t size) {
      return static_cast<PackedWeights*>(self)->Reserve(size);
    };
    provider_.look_up_or_insert = [](void*,
                                     const xnn_weights_cache_look_up_key*,
                                     void*, size_t) { return size_t{0}; };
    provider_.is_finalized = [](void*) { return true; };
    provider_.offset_to_addr = [](void* self, size_t offset) -> void* {
      return static_cast<PackedWeights*>(self)->buffer_.data() + offset;
    };
    provider_.delete_cache = [](void*) { return xnn_status_success; };
  }
  // The provider points here.
  PackedWeights(const PackedWeights&) = delete;
  PackedWeights& operator=(const PackedWeights&) = delete;

  xnn_weights_cache_t provider() { return &provider_; }
  int64_t size_bytes() const { return buffer_.size_bytes(); }
  // Why Reserve failed, if it did.
  const absl::Status& status() const { return status_; }

 private:
  static constexpr size_t kNotFound = std::numeric_limits<size_t>::max();

  void* Reserve(size_t size) {
    absl::StatusOr<AlignedBuffer> buffer = AlignedBuffer::Allocate(
        static_cast<int64_t>(size),
        absl::StrCat("packed weights of product '", name_, "'"));
    status_ = buffer.status();
    if (!buffer.ok()) return nullptr;
    buffer_ = *std::move(buffer);
    return buffer_.data();
  }

  const std::string name_;
  xnn_weights_cache_provider provider_ = {};
  AlignedBuffer buffer_;
  absl::Status status_;
};

bool AreNeighbours(absl::Span<const MatrixView> parts) {
  for (size_t i = 1; i < parts.size(); ++i) {
    const MatrixView& before = parts[i - 1];
    const int64_t size = int64_t{before.rows} * before.cols;
    if (parts[i].f32() != before.f32() + size) return false;
  }
  return true;
}

class XnnLinear final : public Linear {
 public:
  XnnLinear(const Shape& shape, absl::string_view name)
      : Linear(shape), name_(name), weights_(name) {}
  ~XnnLinear() override { xnn_delete_operator(op_); }

  static absl::StatusOr<std::unique_ptr<Linear>> Create(
      absl::Span<const MatrixView> parts, absl::string_view name,
      const LinearOptions& options) {
    DELTAEDGE_ASSIGN_OR_RETURN(const Shape shape, CheckParts(parts, name));
    for (const MatrixView& part : parts) {
      if (part.type != WeightType::kF32) {
        return absl::UnimplementedError(
            absl::StrCat("product '", name, "' has weights of type ",
                         static_cast<int>(part.type), "; this build knows ",
                         static_cast<int>(WeightType::kF32), " (f32)"));
      }
    }
    auto linear = std::make_unique<XnnLinear>(shape, name);
    DELTAEDGE_RETURN_IF_ERROR(linear->Configure(options, name));
    DELTAEDGE_RETURN_IF_ERROR(linear->Pack(parts));
    return linear;
  }

 protected:
  absl::Status Multiply(const float* x, int32_t rows, float* y,
                        pthreadpool_t pool) override {
    xnn_status status = xnn_reshape_fully_connected_nc_f32(
        op_, static_cast<size_t>(rows), pool);
    if (status == xnn_status_success) {
      status = xnn_setup_fully_connected_nc_f32(op_, x, y);
    }
    if (status == xnn_status_success) status = xnn_run_operator(op_, pool);
    return XnnError(status, "run", name_);
  }

 private:
  absl::Status Pack(absl::Span<const MatrixView> parts) {
    const float* kernel = parts[0].f32();
    AlignedArray<float> joined;
    if (!AreNeighbours(parts)) {
      DELTAEDGE_ASSIGN_OR_RETURN(
          joined,
          AlignedArray<float>::Allocate(
              {out_features(), in_features()},
              absl::StrCat("joined matrices of product '", name_, "'")));
      float* end = joined.data();
      for (const MatrixView& part : parts) {
        end = std::copy_n(part.f32(), int64_t{part.rows} * part.cols, end);
      }
      kernel = joined.data();
    }
    DELTAEDGE_RETURN_IF_ERROR(
        XnnError(xnn_initialize(/*allocator=*/nullptr), "start for", name_));
    const size_t in = static_cast<size_t>(in_features());
    const size_t out = static_cast<size_t>(out_features());
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const xnn_status status = xnn_create_fully_connected_nc_f32(
        in, out, /*input_stride=*/in, /*output_stride=*/out, kernel,
        /*bias=*/nullptr, /*output_min=*/-kInfinity, /*output_max=*/kInfinity,
        /*flags=*/0, /*code_cache=*/nullptr, weights_.provider(), &op_);
    DELTAEDGE_RETURN_IF_ERROR(weights_.status());
    DELTAEDGE_RETURN_IF_ERROR(XnnError(status, "make", name_));
    set_packed_bytes(weights_.size_bytes());
    return absl::OkStatus();
  }

  const std::string name_;
  PackedWeights weights_;
  xnn_operator_t op_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Linear>> Linear::Create(
    absl::Span<const MatrixView> parts, absl::string_view name,
    const LinearOptions& options) {
  return XnnLinear::Create(parts, name, options);
}

}  // namespace deltaedge
