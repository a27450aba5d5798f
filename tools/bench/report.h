// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_BENCH_REPORT_H_
#define DELTAEDGE_TOOLS_BENCH_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "nlohmann/json.hpp"
#include "tools/bench/measure.h"

namespace deltaedge {

// One line of what the benchmark says.
struct Result {
  std::string test;      // "decode", "prefill", "rows", ...
  std::string way;       // How: "plain", "drafts"; "apart", "together"
  std::string rollback;  // "journal", "slots"
  std::string weights;   // "f32", ...
  int32_t threads = 0;
  std::optional<int32_t> draft_tokens = 0;  // Unset: the engine's choice.
  // Tokens asked for; of "prefill" and "rows", rows; of "sessions" and
  // "serving", how many there are.
  int32_t n = 0;
  Measurement measured;
  // An object with what only this test has to say: numbers, and lists of them.
  nlohmann::ordered_json extra = nlohmann::ordered_json::object();
};

enum class Format { kTable, kJson };

// Adds NAME, NAME_min and NAME_max.
void AddSpread(const char* name, const Spread& spread,
               nlohmann::ordered_json* object);

// What holds for all lines that follow. JSON: `facts`, an object, on a line. A
// table: a line for each member.
std::string Setup(const nlohmann::ordered_json& facts, Format format);
// A line with the names of a table's columns; empty for JSON.
std::string Heading(Format format);
// JSON: an object of its own on its line, with the members of Result and
// "ms_median", "ms_min", "ms_max", "tokens_per_second", "tokens_per_step",
// "ratio", "ratio_min", "ratio_max". A table has the medians.
std::string Line(const Result& result, Format format);

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_BENCH_REPORT_H_
