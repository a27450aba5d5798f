// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_BENCH_REPORT_H_
#define DELTAEDGE_TOOLS_BENCH_REPORT_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "tools/bench/measure.h"

namespace deltaedge {

// One line of what the benchmark says.
struct Result {
  std::string test;      // "decode", "spec", "sessions"
  std::string way;       // How: "plain", "drafts"; "apart", "together"
  std::string rollback;  // "journal", "slots"
  std::string weights;   // "f32", ...
  int32_t threads = 0;
  int32_t draft_tokens = 0;
  int32_t n = 0;  // Tokens asked for; of "sessions", how many there are.
  Measurement measured;
};

enum class Format { kTable, kJson };

// A line with the names of a table's columns; empty for JSON.
std::string Heading(Format format);
// JSON: an object of its own on its line, with the members of Result and
// "ms_median", "ms_min", "ms_max", "tokens_per_second", "tokens_per_step",
// "ratio", "ratio_min", "ratio_max".
std::string Line(const Result& result, Format format);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_BENCH_REPORT_H_
