// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/measure.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "engine/base/status_macros.h"

namespace deltaedge {

Spread SpreadOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  const double median = values.size() % 2 == 1
                            ? values[half]
                            : (values[half - 1] + values[half]) / 2;
  return {median, values.front(), values.back()};
}

Spread TimeRatio(const Measurement& a, const Measurement& b) {
  std::vector<double> ratios;
  for (size_t i = 0; i < a.seconds.size(); ++i) {
    ratios.push_back(a.seconds[i] / b.seconds[i]);
  }
  return SpreadOf(std::move(ratios));
}

absl::StatusOr<std::vector<Measurement>> Alternate(
    absl::Span<const Candidate> candidates, int32_t repetitions,
    const std::atomic<bool>* stop) {
  const size_t count = candidates.size();
  std::vector<std::vector<Sample>> samples(count);
  for (int32_t repetition = -1; repetition < repetitions; ++repetition) {
    for (size_t i = 0; i < count; ++i) {
      if (stop != nullptr && stop->load()) {
        return absl::CancelledError("interrupted");
      }
      const size_t which = (i + repetition + 1) % count;
      DELTAEDGE_ASSIGN_OR_RETURN(const Sample sample, candidates[which]());
      if (repetition >= 0) samples[which].push_back(sample);
    }
  }
  const auto speed = [](const Sample& sample) {
    return sample.tokens / absl::ToDoubleSeconds(sample.time);
  };
  std::vector<Measurement> measurements;
  for (size_t i = 0; i < count; ++i) {
    std::vector<double> seconds, ms, speeds, ratios;
    int64_t tokens = 0, steps = 0;
    for (int32_t r = 0; r < repetitions; ++r) {
      const Sample& sample = samples[i][r];
      seconds.push_back(absl::ToDoubleSeconds(sample.time));
      ms.push_back(absl::ToDoubleMilliseconds(sample.time));
      speeds.push_back(speed(sample));
      ratios.push_back(speed(sample) / speed(samples[0][r]));
      tokens += sample.tokens;
      steps += sample.steps;
    }
    measurements.push_back(
        {std::move(seconds), SpreadOf(ms), SpreadOf(speeds).median,
         steps == 0 ? 0.0 : 1.0 * tokens / steps, SpreadOf(ratios)});
  }
  return measurements;
}

}  // namespace deltaedge
