// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace deltaedge {

std::string Heading(Format format) {
  if (format == Format::kJson) return std::string();
  return absl::StrFormat(
      "%-9s %-9s %-8s %-7s %7s %6s %5s %10s %10s %10s %9s %8s %6s\n", "test",
      "way", "rollback", "weights", "threads", "drafts", "n", "ms", "ms min",
      "ms max", "tokens/s", "tok/step", "ratio");
}

std::string Line(const Result& result, Format format) {
  const Measurement& m = result.measured;
  if (format == Format::kTable) {
    return absl::StrFormat(
        "%-9s %-9s %-8s %-7s %7d %6d %5d %10.3f %10.3f %10.3f %9.1f %8.2f "
        "%6.2f\n",
        result.test, result.way, result.rollback, result.weights,
        result.threads, result.draft_tokens, result.n, m.ms.median, m.ms.min,
        m.ms.max, m.tokens_per_second, m.tokens_per_step, m.ratio.median);
  }
  const nlohmann::ordered_json line = {
      {"test", result.test},
      {"way", result.way},
      {"rollback", result.rollback},
      {"weights", result.weights},
      {"threads", result.threads},
      {"draft_tokens", result.draft_tokens},
      {"n", result.n},
      {"ms_median", m.ms.median},
      {"ms_min", m.ms.min},
      {"ms_max", m.ms.max},
      {"tokens_per_second", m.tokens_per_second},
      {"tokens_per_step", m.tokens_per_step},
      {"ratio", m.ratio.median},
      {"ratio_min", m.ratio.min},
      {"ratio_max", m.ratio.max}};
  return absl::StrCat(line.dump(), "\n");
}

}  // namespace deltaedge
