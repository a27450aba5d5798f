// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_OPS_ROW_CHECK_H_
#define DELTAEDGE_ENGINE_OPS_ROW_CHECK_H_

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/model/weights.h"
#include "engine/ops/linear.h"
#include "pthreadpool.h"

namespace deltaedge {

// Linear::Create, or a stand-in.
using LinearFactory = absl::FunctionRef<absl::StatusOr<std::unique_ptr<Linear>>(
    absl::Span<const MatrixView> parts, absl::string_view name,
    const LinearOptions& options)>;

// Whether rows come out of `linear` with the same bits alone and in batches of
// 2 to 17, for random rows. A "no" is certain; a "yes" is as good as 17 rows
// can tell, which is enough to notice kernels that add up in different orders.
// ResourceExhausted: no memory.
absl::StatusOr<bool> RowsAreIndependent(const Linear& linear,
                                        pthreadpool_t pool);

// What Linear::Create needs on this machine for its promise to hold with
// weights of these types, which may repeat; found out with two small random
// products of each, one of them narrower than any kernel, in about two
// milliseconds a type. The default options where kernels agree, as they should;
// else one kernel for all batches, with a warning in the log. Internal if that
// does not help either: lossless speculation is then impossible here. Other
// errors are those of the factory and of RowsAreIndependent.
absl::StatusOr<LinearOptions> FindLinearOptions(
    absl::Span<const WeightType> weight_types, pthreadpool_t pool,
    LinearFactory factory = Linear::Create);

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_OPS_ROW_CHECK_H_
