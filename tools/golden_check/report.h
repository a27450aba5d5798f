// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_GOLDEN_CHECK_REPORT_H_
#define DELTAEDGE_TOOLS_GOLDEN_CHECK_REPORT_H_

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace deltaedge {

// Relative errors that a float implementation may have against a golden in
// double: max |ours - golden| / max |golden|.
inline constexpr double kModelLimit = 2e-4;  // Logits, hidden, states, k, v.
inline constexpr double kDeltaRuleLimit = 2e-6;  // The recurrence alone.
inline constexpr double kOperatorLimit = 1e-6;   // Any other operator alone.

// max |ours - golden| / scale, where `scale` 0 stands for max |golden|. Scales
// below the smallest normal float count as that, since denormals are taken as
// zero. NaN if either side holds NaN or infinities. Same sizes; 0 if empty.
double RelativeError(absl::Span<const float> ours,
                     absl::Span<const float> golden, double scale = 0);

// max |values|; NaN if one of them is.
double MaxAbs(absl::Span<const float> values);

// Prints one line for each check and counts them. A check with nothing in it is
// no check: it fails.
//
// Thread-compatible.
class Report {
 public:
  // Borrows `out`; null: counts only.
  explicit Report(std::FILE* out) : out_(out) {}

  // Passes if the relative error is at most `limit` (see RelativeError).
  // Returns it; infinite where sizes differ.
  double Close(absl::string_view name, absl::Span<const float> ours,
               absl::Span<const float> golden, double limit, double scale = 0);

  // Passes if all elements are equal.
  bool Equal(absl::string_view name, absl::Span<const int64_t> ours,
             absl::Span<const int64_t> golden);

  // Passes if both are the same bits.
  bool SameBits(absl::string_view name, absl::Span<const float> ours,
                absl::Span<const float> others);

  // Whatever else: passes if `ok` and values > 0. `detail` is added to a line
  // that failed.
  bool Check(absl::string_view name, bool ok, int64_t values,
             absl::string_view detail);

  // Could not be done, which counts as a failure.
  void Fail(absl::string_view name, absl::string_view why);
  void Fail(absl::string_view name, const absl::Status& status);

  // Was not done, which counts as neither.
  void NotRun(absl::string_view name, absl::string_view why);

  // Something worth knowing.
  void Note(absl::string_view text);

  // The last line: "N passed, N failed".
  void Summary();

  int64_t passed() const { return passed_; }
  int64_t failed() const { return failed_; }
  int64_t not_run() const { return not_run_; }
  // Whether there were checks and none of them failed.
  bool ok() const { return passed_ > 0 && failed_ == 0; }

  // Names of the checks that failed, in order.
  const std::vector<std::string>& failures() const { return failures_; }

 private:
  void Line(bool ok, absl::string_view name, absl::string_view error,
            absl::string_view limit, int64_t values, absl::string_view detail);

  std::FILE* const out_;
  int64_t passed_ = 0;
  int64_t failed_ = 0;
  int64_t not_run_ = 0;
  std::vector<std::string> failures_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_GOLDEN_CHECK_REPORT_H_
