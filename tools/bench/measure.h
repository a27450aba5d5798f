// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_BENCH_MEASURE_H_
#define DELTAEDGE_TOOLS_BENCH_MEASURE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace deltaedge {

// What one repetition of one candidate took and brought.
struct Sample {
  absl::Duration time;
  int64_t tokens = 0;
  int64_t steps = 0;  // Of all sessions.
};

struct Spread {
  double median = 0.0, min = 0.0, max = 0.0;
};

// Of at least one value. The median of an even number is the mean of the two in
// the middle.
Spread SpreadOf(std::vector<double> values);

struct Measurement {
  std::vector<double> seconds;  // Of each repetition, in order.
  Spread ms;                    // Of a repetition.
  double tokens_per_second = 0.0;
  double tokens_per_step = 0.0;
  // Tokens per second over those of the first candidate in the same repetition.
  // Machines change their speed from second to second, so that neighbours tell
  // more than medians of either alone.
  Spread ratio;
};

// Time of `a` over that of `b` in the same repetition. Both of one Alternate().
Spread TimeRatio(const Measurement& a, const Measurement& b);

// Does what is to be timed, and only that, between its own two looks at a
// clock.
using Candidate = std::function<absl::StatusOr<Sample>()>;

// Runs all candidates in turn, once to warm up and then `repetitions` >= 1
// times, each time beginning with another one. An error ends it. So does
// `stop`, which may be null, when it is set: Cancelled.
absl::StatusOr<std::vector<Measurement>> Alternate(
    absl::Span<const Candidate> candidates, int32_t repetitions,
    const std::atomic<bool>* stop = nullptr);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_BENCH_MEASURE_H_
