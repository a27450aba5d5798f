// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/report.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace deltaedge {

namespace {

std::string Text(const nlohmann::ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) {
    return absl::StrFormat("%.4g", value.get<double>());
  }
  if (!value.is_array()) return value.dump();
  std::string text;
  for (const auto& element : value) {
    absl::StrAppend(&text, text.empty() ? "" : " ", Text(element));
  }
  return text;
}

}  // namespace

void AddSpread(const char* name, const Spread& spread,
               nlohmann::ordered_json* object) {
  (*object)[name] = spread.median;
  (*object)[absl::StrCat(name, "_min")] = spread.min;
  (*object)[absl::StrCat(name, "_max")] = spread.max;
}

std::string Setup(const nlohmann::ordered_json& facts, Format format) {
  if (format == Format::kJson) return absl::StrCat(facts.dump(), "\n");
  std::string lines;
  for (const auto& [name, value] : facts.items()) {
    absl::StrAppend(&lines, name, ": ", Text(value), "\n");
  }
  return lines;
}

std::string Heading(Format format) {
  if (format == Format::kJson) return std::string();
  return absl::StrFormat(
      "%-9s %-9s %-8s %-7s %7s %6s %5s %10s %10s %10s %9s %8s %6s  %s\n",
      "test", "way", "rollback", "weights", "threads", "drafts", "n", "ms",
      "ms min", "ms max", "tokens/s", "tok/step", "ratio", "more");
}

std::string Line(const Result& result, Format format) {
  const Measurement& m = result.measured;
  if (format == Format::kTable) {
    std::string line = absl::StrFormat(
        "%-9s %-9s %-8s %-7s %7d %6s %5d %10.3f %10.3f %10.3f %9.1f %8.2f "
        "%6.2f",
        result.test, result.way, result.rollback, result.weights,
        result.threads,
        result.draft_tokens.has_value() ? absl::StrCat(*result.draft_tokens)
                                        : "auto",
        result.n, m.ms.median, m.ms.min, m.ms.max, m.tokens_per_second,
        m.tokens_per_step, m.ratio.median);
    for (const auto& [name, value] : result.extra.items()) {
      if (absl::EndsWith(name, "_min") || absl::EndsWith(name, "_max")) {
        continue;
      }
      absl::StrAppend(&line, "  ", name, " ", Text(value));
    }
    return absl::StrCat(line, "\n");
  }
  nlohmann::ordered_json line = {{"test", result.test},
                                 {"way", result.way},
                                 {"rollback", result.rollback},
                                 {"weights", result.weights},
                                 {"threads", result.threads},
                                 {"draft_tokens", "auto"},
                                 {"n", result.n},
                                 {"ms_median", m.ms.median},
                                 {"ms_min", m.ms.min},
                                 {"ms_max", m.ms.max},
                                 {"tokens_per_second", m.tokens_per_second},
                                 {"tokens_per_step", m.tokens_per_step}};
  if (result.draft_tokens.has_value()) {
    line["draft_tokens"] = *result.draft_tokens;
  }
  AddSpread("ratio", m.ratio, &line);
  line.update(result.extra);
  return absl::StrCat(line.dump(), "\n");
}

}  // namespace deltaedge
