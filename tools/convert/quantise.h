// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_CONVERT_QUANTISE_H_
#define DELTAEDGE_TOOLS_CONVERT_QUANTISE_H_

#include <cstdint>

#include "absl/types/span.h"

namespace deltaedge {

// How a row of a matrix becomes WeightType::kQ8 (and kQ8W) or kQ4. The same
// bits on every machine. Values are finite; scales come out positive and
// normal. Numbers are rounded to the nearest, even if two are as near, and by
// the scale as it is stored.
//
// Relative errors, root of the mean square, of normally distributed values and
// of the weights of examples/chat/model:
//   q8, rows of 256                0.0069   0.0070
//   q4                             0.0859   0.0863
//   q4, no number cut off          0.0917   0.0921
//   q4, scale of any sign (1)      0.0858   0.0862
// (1) largest magnitude / -8, sign and all: a rule that many use, and that
// XNNPACK's products cannot follow since they want positive scales.

// q [row.size()] in -127 .. 127, so that row[i] is about scale * q[i]: scale =
// max |row| / 127, 1 if all are zero. Returns the scale.
float QuantiseQ8(absl::Span<const float> row, int8_t* q);

// row[i] is about scale * (q[i] - 8) with a bfloat16 scale for each kQ4Block of
// it: two q to a byte, the even one in the low half. row.size() is a multiple
// of kQ4Block; q [row.size() / 2], scales [row.size() / kQ4Block].
//
// A block's scale is searched for the least sum of squared errors. Let c be the
// least scale that cuts no number off; candidates are eight even steps from
// 0.75 c to 1.1 c, then, twice, the best scale in the sense of least squares
// for the numbers that the best one so far gives.
void QuantiseQ4(absl::Span<const float> row, uint8_t* q, uint16_t* scales);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_CONVERT_QUANTISE_H_
