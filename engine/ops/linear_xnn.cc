// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/bfloat16.h"
#include "engine/base/checked_math.h"
#include "engine/base/huge_page_arena.h"
#include "engine/base/status_macros.h"
#include "engine/model/dequantise.h"
#include "engine/model/weights.h"
#include "engine/ops/linear.h"
#include "engine/ops/linear_input.h"
#include "engine/ops/row_tiles.h"
#include "engine/ops/xnn_tiles.h"
#include "kernels/logits/argmax.h"
#include "kernels/quant/quantize_rows.h"
#include "pthreadpool.h"
#include "xnnpack.h"
#include "xnnpack/operator.h"

namespace deltaedge {
namespace {

static_assert(LinearInput::kReadablePastEnd >= XNN_EXTRA_BYTES);
static_assert(sizeof(RowQuantization) == sizeof(xnn_qd8_quantization_params) &&
              offsetof(RowQuantization, zero_point) ==
                  offsetof(xnn_qd8_quantization_params, zero_point) &&
              offsetof(RowQuantization, scale) ==
                  offsetof(xnn_qd8_quantization_params, inv_scale));

// Weights that stay in a core's second-level cache while all rows pass by.
constexpr int64_t kChunkBytes = int64_t{256} << 10;
// More makes the threads' shares even, fewer makes longer streams of weights.
constexpr int64_t kChunksPerThread = 5;
// Where the best of a row's outputs is looked for on the way, which costs
// something for each chunk.
constexpr int64_t kArgMaxChunkBytes = int64_t{512} << 10;
// Outputs of a tile then stay in a thread's first-level cache.
constexpr int64_t kPassingFloats = 4096;

absl::Status XnnError(xnn_status status, absl::string_view name) {
  const std::string message =
      absl::StrCat("XNNPACK cannot make product '", name, "': ");
  switch (status) {
    case xnn_status_success:
      return absl::OkStatus();
    case xnn_status_out_of_memory:
      return absl::ResourceExhaustedError(absl::StrCat(message, "no memory"));
    case xnn_status_unsupported_hardware:
      return absl::UnimplementedError(
          absl::StrCat(message,
                       "this processor is not supported (or /proc is "
                       "not mounted)"));
    default:
      return absl::InternalError(
          absl::StrCat(message, "status ", static_cast<int>(status)));
  }
}

// Where XNNPACK puts the packed weights of one operator. It calls this a cache;
// for us it is the way to own that memory.
class PackedWeights {
 public:
  PackedWeights(std::shared_ptr<HugePageArena> arena, absl::string_view name)
      : arena_(arena != nullptr ? std::move(arena)
                                : std::make_shared<HugePageArena>()),
        name_(name) {
    provider_.context = this;
    provider_.look_up = [](void* self, const xnn_weights_cache_look_up_key*) {
      return static_cast<PackedWeights*>(self)->bytes_.empty() ? kNotFound : 0;
    };
    provider_.reserve_space = [](void* self, size_t size) {
      return static_cast<PackedWeights*>(self)->Reserve(size);
    };
    provider_.look_up_or_insert = [](void*,
                                     const xnn_weights_cache_look_up_key*,
                                     void*, size_t) { return size_t{0}; };
    provider_.is_finalized = [](void*) { return true; };
    provider_.offset_to_addr = [](void* self, size_t offset) -> void* {
      return const_cast<std::byte*>(
          static_cast<PackedWeights*>(self)->bytes_.data() + offset);
    };
    provider_.delete_cache = [](void*) { return xnn_status_success; };
  }
  // The provider points here.
  PackedWeights(const PackedWeights&) = delete;
  PackedWeights& operator=(const PackedWeights&) = delete;

  xnn_weights_cache_t provider() { return &provider_; }
  // Weights that were packed before and live elsewhere.
  void Use(absl::Span<const std::byte> bytes) { bytes_ = bytes; }
  // Where room is, if it has any to give; null: in the arena.
  void set_pieces(PackedPieces* pieces) { pieces_ = pieces; }
  absl::Span<const std::byte> bytes() const { return bytes_; }
  int64_t owned_bytes() const { return owned_bytes_; }
  // Why Reserve failed, if it did.
  const absl::Status& status() const { return status_; }

 private:
  static constexpr size_t kNotFound = std::numeric_limits<size_t>::max();

  void* Reserve(size_t size) {
    const bool in_file = pieces_ != nullptr && pieces_->in_file();
    const absl::StatusOr<std::byte*> data =
        in_file ? pieces_->Reserve(size)
                : arena_->Allocate(
                      static_cast<int64_t>(size),
                      absl::StrCat("packed weights of product '", name_, "'"));
    status_ = data.status();
    if (!data.ok()) return nullptr;
    bytes_ = absl::MakeConstSpan(*data, size);
    if (!in_file) owned_bytes_ = static_cast<int64_t>(size);
    return *data;
  }

  const std::shared_ptr<HugePageArena> arena_;
  const std::string name_;
  PackedPieces* pieces_ = nullptr;
  xnn_weights_cache_provider provider_ = {};
  absl::Span<const std::byte> bytes_;  // The arena's, or of Use().
  int64_t owned_bytes_ = 0;
  absl::Status status_;
};

// The data or the scales of several matrices, one behind the other.
class Joined {
 public:
  static absl::StatusOr<Joined> Join(absl::Span<const MatrixView> parts,
                                     const void* MatrixView::*numbers,
                                     int64_t row_bytes,
                                     absl::string_view name) {
    const auto begin = [&](const MatrixView& part) {
      return static_cast<const std::byte*>(part.*numbers);
    };
    Joined joined;
    joined.data_ = begin(parts[0]);
    bool neighbours = true;
    int64_t size = 0;
    for (const MatrixView& part : parts) {
      neighbours = neighbours && begin(part) == begin(parts[0]) + size;
      size += part.rows * row_bytes;
    }
    if (neighbours || row_bytes == 0) return joined;
    DELTAEDGE_ASSIGN_OR_RETURN(
        joined.copy_,
        AlignedBuffer::Allocate(
            size, absl::StrCat("joined matrices of product '", name, "'")));
    std::byte* end = joined.copy_.data();
    joined.data_ = end;
    for (const MatrixView& part : parts) {
      end = std::copy_n(begin(part), part.rows * row_bytes, end);
    }
    return joined;
  }

  // Scales that stand for others: `bytes` of ones.
  static absl::StatusOr<Joined> Ones(WeightType type, int64_t bytes,
                                     absl::string_view name) {
    Joined joined;
    if (bytes == 0) return joined;
    DELTAEDGE_ASSIGN_OR_RETURN(
        joined.copy_,
        AlignedBuffer::Allocate(
            bytes, absl::StrCat("scales of product '", name, "'")));
    joined.data_ = joined.copy_.data();
    if (type == WeightType::kQ4) {
      std::fill_n(reinterpret_cast<uint16_t*>(joined.copy_.data()), bytes / 2,
                  Bfloat16FromFloat(1.0f));
    } else {
      std::fill_n(reinterpret_cast<float*>(joined.copy_.data()), bytes / 4,
                  1.0f);
    }
    return joined;
  }

  template <class T>
  const T* data() const {
    return reinterpret_cast<const T*>(data_);
  }

 private:
  const std::byte* data_ = nullptr;
  AlignedBuffer copy_;
};

xnn_status CreateOperator(WeightType type, size_t in, size_t out,
                          const Joined& kernel, const Joined& scales,
                          xnn_weights_cache_t cache, xnn_operator_t* op) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  switch (type) {
    case WeightType::kF32:
      return xnn_create_fully_connected_nc_f32(
          in, out, /*input_stride=*/in, /*output_stride=*/out,
          kernel.data<float>(), /*bias=*/nullptr, -kInfinity, kInfinity,
          /*flags=*/0, /*code_cache=*/nullptr, cache, op);
    case WeightType::kQ8:
      return xnn_create_fully_connected_nc_qd8_f32_qc8w(
          in, out, /*input_stride=*/in, /*output_stride=*/out,
          scales.data<float>(), kernel.data<int8_t>(), /*bias=*/nullptr,
          -kInfinity, kInfinity, /*flags=*/0, /*code_cache=*/nullptr, cache,
          op);
    case WeightType::kQ4:
      return xnn_create_fully_connected_nc_qd8_f32_qb4w(
          in, out, /*input_stride=*/in, /*output_stride=*/out, kQ4Block,
          /*kernel_zero_point=*/8, scales.data<uint16_t>(),
          kernel.data<uint8_t>(), /*bias=*/nullptr, -kInfinity, kInfinity,
          /*flags=*/0, /*code_cache=*/nullptr, cache, op);
    case WeightType::kQ8W:
      return xnn_create_fully_connected_nc_f32_qc8w(
          in, out, /*input_stride=*/in, /*output_stride=*/out,
          scales.data<float>(), kernel.data<int8_t>(), /*bias=*/nullptr,
          -kInfinity, kInfinity, /*flags=*/0, /*code_cache=*/nullptr, cache,
          op);
    case WeightType::kUnknown:
      break;
  }
  return xnn_status_unsupported_parameter;
}

class XnnLinear final : public Linear {
 public:
  XnnLinear(const Shape& shape, WeightType type,
            std::shared_ptr<HugePageArena> arena, absl::string_view name)
      : Linear(shape),
        takes_int8_(TakesInt8(type)),
        weights_(std::move(arena), name) {}

  static absl::StatusOr<std::unique_ptr<Linear>> Create(
      absl::Span<const MatrixView> parts, absl::string_view name,
      const LinearOptions& options) {
    DELTAEDGE_ASSIGN_OR_RETURN(const Shape shape, CheckParts(parts, name));
    auto linear =
        std::make_unique<XnnLinear>(shape, parts[0].type, options.arena, name);
    DELTAEDGE_RETURN_IF_ERROR(linear->Pack(parts, name, options));
    return linear;
  }

  void RunPart(LinearInput& input, const Part& part) const override {
    Batch batch = Prepare(input, /*pool=*/nullptr);
    batch.rows = part.row + part.rows;
    batch.tile_rows = TileRows(heights_, part.rows);
    for (int32_t row = part.row; row < batch.rows; row += batch.tile_rows) {
      RunTile(batch, row, static_cast<size_t>(part.output),
              static_cast<size_t>(part.outputs),
              part.y + (row - part.row) * part.y_stride, part.y_stride);
    }
  }

  int32_t panel_outputs() const override {
    return static_cast<int32_t>(panel_columns_);
  }

  int32_t PartOutputs(int64_t outputs, int64_t threads) const override {
    return static_cast<int32_t>(ChunkColumns(outputs, kChunkBytes, threads));
  }

 protected:
  void Multiply(LinearInput& input, float* y,
                pthreadpool_t pool) const override {
    Batch batch = Prepare(input, pool);
    batch.y = y;
    ForColumns(RunColumns, &batch, kChunkBytes, pool);
  }

  void MultiplyArgMax(LinearInput& input, ArgMax* best, float* second,
                      pthreadpool_t pool) const override {
    BestBatch batch;
    static_cast<Batch&>(batch) = Prepare(input, pool);
    batch.best = best;
    batch.second = second;
    std::fill_n(best, batch.rows, kNothing);
    if (second != nullptr) std::fill_n(second, batch.rows, kNothing.value);
    ForColumns(RunColumnsArgMax, &batch, kArgMaxChunkBytes, pool);
  }

 private:
  struct Batch {
    const XnnLinear* linear;
    const std::byte* x;
    size_t x_row_bytes;
    const xnn_qd8_quantization_params* quantization;  // Null: x is float.
    int32_t rows, tile_rows;
    float* y;
  };
  struct BestBatch : Batch {
    absl::Mutex mutex;
    ArgMax* best;   // [rows], of the columns that are done
    float* second;  // Likewise; null: not wanted.
  };
  // Loses to whatever there is.
  static constexpr ArgMax kNothing = {std::numeric_limits<int32_t>::max(),
                                      -std::numeric_limits<float>::infinity(),
                                      true};

  Batch Prepare(LinearInput& input, pthreadpool_t pool) const {
    const size_t in = static_cast<size_t>(in_features());
    Batch batch = {};
    batch.linear = this;
    if (takes_int8_) {
      const LinearInput::Quantized quantized = input.Quantize(pool);
      batch.x = reinterpret_cast<const std::byte*>(quantized.q);
      batch.x_row_bytes = in;
      batch.quantization = reinterpret_cast<const xnn_qd8_quantization_params*>(
          quantized.quantization);
    } else {
      batch.x = reinterpret_cast<const std::byte*>(input.x());
      batch.x_row_bytes = in * sizeof(float);
    }
    batch.rows = input.rows();
    batch.tile_rows = input.rows() <= kFewRows
                          ? tile_rows_[input.rows()]
                          : TileRows(heights_, input.rows());
    return batch;
  }

  // Whole panels of about `chunk_bytes`, fewer if that keeps more threads busy.
  int64_t ChunkColumns(int64_t columns, int64_t chunk_bytes,
                       int64_t threads) const {
    const int64_t panels = DivideUp(columns, panel_columns_);
    return panel_columns_ *
           std::clamp(chunk_bytes / (panel_columns_ * column_bytes_),
                      int64_t{1}, DivideUp(panels, threads * kChunksPerThread));
  }

  // Calls run(batch, first column, columns) for all columns, some at a time.
  void ForColumns(pthreadpool_task_1d_tile_1d_t run, Batch* batch,
                  int64_t chunk_bytes, pthreadpool_t pool) const {
    const int64_t threads =
        static_cast<int64_t>(pthreadpool_get_threads_count(pool));
    pthreadpool_parallelize_1d_tile_1d(
        pool, run, batch, static_cast<size_t>(out_features()),
        static_cast<size_t>(ChunkColumns(out_features(), chunk_bytes, threads)),
        PTHREADPOOL_FLAG_DISABLE_DENORMALS);
  }

  static void RunColumns(void* context, size_t begin, size_t columns) {
    const Batch& batch = *static_cast<const Batch*>(context);
    const int64_t out = batch.linear->out_features();
    for (int32_t row = 0; row < batch.rows; row += batch.tile_rows) {
      batch.linear->RunTile(batch, row, begin, columns,
                            batch.y + row * out + begin, out);
    }
  }

  static void RunColumnsArgMax(void* context, size_t begin, size_t columns) {
    BestBatch& batch = *static_cast<BestBatch*>(context);
    const XnnLinear& linear = *batch.linear;
    const size_t panel = static_cast<size_t>(linear.panel_columns_);
    const size_t piece =
        std::max(kPassingFloats / batch.tile_rows / panel, size_t{1}) * panel;
    alignas(64) float y[kPassingFloats];
    ArgMax best[XNN_MAX_MR];
    float second[XNN_MAX_MR];
    for (int32_t row = 0; row < batch.rows; row += batch.tile_rows) {
      const int32_t rows = std::min(batch.tile_rows, batch.rows - row);
      std::fill_n(best, rows, kNothing);
      std::fill_n(second, rows, kNothing.value);
      for (size_t done = 0; done < columns; done += piece) {
        const size_t count = std::min(piece, columns - done);
        linear.RunTile(batch, row, begin + done, count, y,
                       static_cast<int64_t>(count));
        const int32_t dim = static_cast<int32_t>(count);
        const int32_t first = static_cast<int32_t>(begin + done);
        for (int32_t i = 0; i < rows; ++i) {
          const ArgMax part = ArgMaxOfPart(dim, y + i * count, first);
          if (batch.second != nullptr) {
            second[i] =
                SecondTogether(best[i], second[i], part,
                               SecondOfPart(dim, y + i * count, first, part));
          }
          best[i] = Together(best[i], part);
        }
      }
      const absl::MutexLock lock(&batch.mutex);
      for (int32_t i = 0; i < rows; ++i) {
        ArgMax& all = batch.best[row + i];
        if (batch.second != nullptr) {
          float& all_second = batch.second[row + i];
          all_second = SecondTogether(all, all_second, best[i], second[i]);
        }
        all = Together(all, best[i]);
      }
    }
  }

  // One tile of rows, to y, whose rows are `y_stride` floats apart.
  void RunTile(const Batch& batch, int32_t first_row, size_t begin,
               size_t columns, float* y, int64_t y_stride) const {
    const int32_t rows = std::min(batch.tile_rows, batch.rows - first_row);
    const int32_t tile = TileFor(heights_, rows);
    const size_t row = static_cast<size_t>(first_row);
    const std::byte* const x = batch.x + row * batch.x_row_bytes;
    const std::byte* const w =
        weights_.bytes().data() + begin * static_cast<size_t>(column_bytes_);
    const size_t y_row_bytes = static_cast<size_t>(y_stride) * sizeof(float);
    const size_t y_panel_bytes =
        static_cast<size_t>(panel_columns_) * sizeof(float);
    if (batch.quantization == nullptr) {
      reinterpret_cast<xnn_gemm_ukernel_fn>(kernels_[tile])(
          static_cast<size_t>(rows), columns, batch.x_row_bytes, x,
          batch.x_row_bytes, w, y, y_row_bytes, y_panel_bytes, &params_);
      return;
    }
    // For rows that are missing, a kernel computes the last one again, each
    // time with another quantization.
    xnn_qd8_quantization_params quantization[XNN_MAX_MR];
    const auto end = std::copy_n(batch.quantization + row, rows, quantization);
    std::fill(end, quantization + heights_[tile], end[-1]);
    reinterpret_cast<xnn_dqgemm_ukernel_fn>(kernels_[tile])(
        static_cast<size_t>(rows), columns, batch.x_row_bytes, x,
        batch.x_row_bytes, w, y, y_row_bytes, y_panel_bytes, &params_,
        quantization);
  }

  absl::Status Pack(absl::Span<const MatrixView> parts, absl::string_view name,
                    const LinearOptions& options) {
    const absl::Span<const std::byte> packed =
        options.packed == nullptr ? absl::Span<const std::byte>()
                                  : options.packed->Take();
    // XNNPACK then reads the scales, to see whether they make sense, and
    // nothing else. Which kernels it takes depends on the number of outputs
    // only where they are fewer than a panel's.
    int64_t outputs = out_features();
    if (!packed.empty()) {
      parts = parts.first(1);
      outputs = std::min(outputs, kEnoughOutputs);
    }
    weights_.Use(packed);
    weights_.set_pieces(options.packed);
    const absl::Cleanup forget = [&] { weights_.set_pieces(nullptr); };
    DELTAEDGE_ASSIGN_OR_RETURN(
        const Joined kernel,
        Joined::Join(parts, &MatrixView::data, RowBytes(parts[0]), name));
    Joined scales;
    if (packed.empty()) {
      for (const MatrixView& part : parts) {
        const absl::Status sound = CheckScales(
            part.type,
            absl::MakeConstSpan(static_cast<const std::byte*>(part.scales),
                                part.rows * ScaleBytes(part)));
        if (!sound.ok()) {
          return absl::DataLossError(
              absl::StrCat("product '", name, "': ", sound.message()));
        }
      }
      DELTAEDGE_ASSIGN_OR_RETURN(
          scales,
          Joined::Join(parts, &MatrixView::scales, ScaleBytes(parts[0]), name));
    } else {
      DELTAEDGE_ASSIGN_OR_RETURN(
          scales,
          Joined::Ones(parts[0].type, outputs * ScaleBytes(parts[0]), name));
    }
    DELTAEDGE_RETURN_IF_ERROR(
        XnnError(xnn_initialize(/*allocator=*/nullptr), name));
    xnn_operator_t op = nullptr;
    const xnn_status status = CreateOperator(
        parts[0].type, static_cast<size_t>(in_features()),
        static_cast<size_t>(outputs), kernel, scales, weights_.provider(), &op);
    const absl::Cleanup delete_op = [&] { xnn_delete_operator(op); };
    DELTAEDGE_RETURN_IF_ERROR(weights_.status());
    DELTAEDGE_RETURN_IF_ERROR(XnnError(status, name));
    const int64_t needed = DivideUp(out_features(), op->ukernel.gemm.nr) *
                           op->ukernel.gemm.nr *
                           static_cast<int64_t>(op->weights_stride);
    if (static_cast<int64_t>(weights_.bytes().size()) < needed) {
      return absl::DataLossError(
          absl::StrCat("packed weights of product '", name, "' take ", needed,
                       " bytes; there are ", weights_.bytes().size()));
    }
    set_packed_bytes(weights_.owned_bytes());
    if (packed.empty() && options.packed != nullptr) {
      options.packed->Give(weights_.bytes());
    }

    // XNNPACK's own way to run it takes all columns for the first rows, then
    // for the next, and has kernels of two heights.
    params_ = op->params;
    column_bytes_ = static_cast<int64_t>(op->weights_stride);
    panel_columns_ = op->ukernel.gemm.nr;
    // Processors without AVX2 have panels of 4 columns, and kernels that read
    // the beginning of each aligned.
    if (parts[0].type == WeightType::kQ4 &&
        panel_columns_ * column_bytes_ % 16 != 0) {
      return absl::UnimplementedError(absl::StrCat(
          "product '", name, "' has ", in_features(), " inputs; with weights ",
          "of 4 bits a processor without AVX2, as this one, takes multiples ",
          "of ", 2 * kQ4Block, " only; with other weights any number"));
    }
    const int32_t tallest = op->ukernel.gemm.mr;
    const auto kernel_of = [&](int32_t height) {
      return reinterpret_cast<XnnKernel>(
          op->ukernel.gemm.gemm_cases[height - 1].function[0]);
    };
    const auto add = [&](int32_t height, XnnKernel function) {
      heights_.push_back(height);
      kernels_.push_back(function);
    };
    if (!options.one_kernel) {
      if (kernel_of(1) != nullptr && tallest > 1) add(1, kernel_of(1));
      for (const XnnTile& tile : LowerTiles(kernel_of(tallest))) {
        add(tile.rows, tile.kernel);
      }
    }
    add(tallest, kernel_of(tallest));
    for (int32_t rows = 1; rows <= kFewRows; ++rows) {
      tile_rows_[rows] = TileRows(heights_, rows);
    }
    return absl::OkStatus();
  }

  static constexpr size_t kMaxHeights = 8;
  // Products of so many are short enough for TileRows() to count.
  static constexpr int32_t kFewRows = 16;
  // More than any panel has.
  static constexpr int64_t kEnoughOutputs = 256;

  const bool takes_int8_;
  PackedWeights weights_;
  // A column is an output; columns are packed in panels.
  int64_t column_bytes_ = 0;
  int64_t panel_columns_ = 0;
  absl::InlinedVector<int32_t, kMaxHeights> heights_;  // Ascending.
  absl::InlinedVector<XnnKernel, kMaxHeights> kernels_;
  std::array<int32_t, kFewRows + 1> tile_rows_ = {};  // TileRows()
  decltype(xnn_operator::params) params_ = {};
};

}  // namespace

absl::StatusOr<std::unique_ptr<Linear>> Linear::Create(
    absl::Span<const MatrixView> parts, absl::string_view name,
    const LinearOptions& options) {
  return XnnLinear::Create(parts, name, options);
}

}  // namespace deltaedge
