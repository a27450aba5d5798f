// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_GOLDEN_CHECK_OPERATOR_GOLDEN_H_
#define DELTAEDGE_TOOLS_GOLDEN_CHECK_OPERATOR_GOLDEN_H_

#include "nlohmann/json.hpp"
#include "tools/golden_check/golden_tensors.h"
#include "tools/golden_check/report.h"

namespace deltaedge {

// Whether `golden` holds single operators: sections gdr{n}, conv{n}, norm{n},
// rope{n}, or the gates' tensors.
bool IsOperatorGolden(const GoldenTensors& golden);

// Runs the kernels on every case of `golden`. `meta`: what ops_meta.json beside
// it says (eps of the norms, positions of the rotations), or null.
//
//   gdr{n}   out, final and step states; also, to the bit: token by token
//            against the whole block, and a journal's prefix against the state
//            after that row.
//   conv{n}  update and prefill with the states they leave. A kernel narrower
//            than 4 runs as one of 4 with leading zeros. Cases with a bias are
//            not run: no model of the family has one, and the kernel takes
//            none.
//   norm{n}  gated, zero-centred and L2 norm.
//   gates    g, beta.
//   rope{n}  out.
void CheckOperators(GoldenTensors* golden, const nlohmann::json& meta,
                    Report* report);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_GOLDEN_CHECK_OPERATOR_GOLDEN_H_
