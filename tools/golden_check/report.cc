// SPDX-License-Identifier: Apache-2.0

#include "tools/golden_check/report.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace deltaedge {

double MaxAbs(absl::Span<const float> values) {
  double max = 0;
  for (const float value : values) {
    if (std::isnan(value)) return std::numeric_limits<double>::quiet_NaN();
    max = std::max(max, std::abs(double{value}));
  }
  return max;
}

double RelativeError(absl::Span<const float> ours,
                     absl::Span<const float> golden, double scale) {
  double error = 0;
  for (size_t i = 0; i < golden.size(); ++i) {
    if (!std::isfinite(ours[i]) || !std::isfinite(golden[i])) {
      return std::numeric_limits<double>::quiet_NaN();
    }
    error = std::max(error, std::abs(double{ours[i]} - double{golden[i]}));
  }
  if (scale == 0) scale = MaxAbs(golden);
  return error / std::max<double>(scale, std::numeric_limits<float>::min());
}

double Report::Close(absl::string_view name, absl::Span<const float> ours,
                     absl::Span<const float> golden, double limit,
                     double scale) {
  if (ours.size() != golden.size()) {
    Fail(name,
         absl::StrCat(ours.size(), " values; the golden has ", golden.size()));
    return std::numeric_limits<double>::infinity();
  }
  const double error = RelativeError(ours, golden, scale);
  const bool ok = error <= limit;
  std::string detail;
  if (!ok) {
    size_t worst = 0;
    double most = -1;
    for (size_t i = 0; i < golden.size(); ++i) {
      const double difference = std::abs(double{ours[i]} - double{golden[i]});
      if (!std::isfinite(difference)) {
        worst = i;
        break;
      }
      if (difference > most) {
        most = difference;
        worst = i;
      }
    }
    if (!golden.empty()) {
      detail = absl::StrFormat("element %d is %.9g, golden %.9g", worst,
                               ours[worst], golden[worst]);
    }
  }
  Line(ok, name, absl::StrFormat("%.2e", error), absl::StrFormat("%.0e", limit),
       static_cast<int64_t>(golden.size()), detail);
  return error;
}

bool Report::Equal(absl::string_view name, absl::Span<const int64_t> ours,
                   absl::Span<const int64_t> golden) {
  if (ours.size() != golden.size()) {
    Fail(name,
         absl::StrCat(ours.size(), " values; the golden has ", golden.size()));
    return false;
  }
  int64_t different = 0;
  std::string detail;
  for (size_t i = 0; i < golden.size(); ++i) {
    if (ours[i] == golden[i]) continue;
    if (++different == 1) {
      detail =
          absl::StrCat("element ", i, " is ", ours[i], ", golden ", golden[i]);
    }
  }
  Line(different == 0, name, absl::StrCat(different, " different"), "0",
       static_cast<int64_t>(golden.size()), detail);
  return different == 0;
}

bool Report::SameBits(absl::string_view name, absl::Span<const float> ours,
                      absl::Span<const float> others) {
  if (ours.size() != others.size()) {
    Fail(name, absl::StrCat(ours.size(), " values and ", others.size()));
    return false;
  }
  int64_t different = 0;
  std::string detail;
  for (size_t i = 0; i < ours.size(); ++i) {
    if (std::memcmp(&ours[i], &others[i], sizeof(float)) == 0) continue;
    if (++different == 1) {
      detail =
          absl::StrFormat("element %d is %.9g and %.9g", i, ours[i], others[i]);
    }
  }
  Line(different == 0, name, absl::StrCat(different, " different"), "0 bits",
       static_cast<int64_t>(ours.size()), detail);
  return different == 0;
}

bool Report::Check(absl::string_view name, bool ok, int64_t values,
                   absl::string_view detail) {
  ok = ok && values > 0;
  Line(ok, name, ok ? "0 different" : "different", "0", values, detail);
  return ok;
}

void Report::Fail(absl::string_view name, absl::string_view why) {
  Line(false, name, "-", "-", 0, why);
}

void Report::Fail(absl::string_view name, const absl::Status& status) {
  Fail(name, absl::string_view(status.ToString()));
}

void Report::NotRun(absl::string_view name, absl::string_view why) {
  ++not_run_;
  if (out_ != nullptr)
    absl::FPrintF(out_, "----  %-40s not run: %s\n", name, why);
}

void Report::Note(absl::string_view text) {
  if (out_ != nullptr) absl::FPrintF(out_, "note  %s\n", text);
}

void Report::Summary() {
  if (out_ == nullptr) return;
  absl::FPrintF(out_, "%d passed, %d failed", passed_, failed_);
  if (not_run_ > 0) absl::FPrintF(out_, ", %d not run", not_run_);
  absl::FPrintF(out_, "\n");
  std::fflush(out_);
}

void Report::Line(bool ok, absl::string_view name, absl::string_view error,
                  absl::string_view limit, int64_t values,
                  absl::string_view detail) {
  ok = ok && values > 0;
  ++(ok ? passed_ : failed_);
  if (!ok) failures_.emplace_back(name);
  if (out_ == nullptr) return;
  absl::FPrintF(out_, "%s  %-40s error %-12s limit %-7s %8d values",
                ok ? "pass" : "FAIL", name, error, limit, values);
  if (!ok && !detail.empty()) absl::FPrintF(out_, "  %s", detail);
  if (!ok && detail.empty() && values == 0) {
    absl::FPrintF(out_, "  nothing to compare");
  }
  absl::FPrintF(out_, "\n");
}

}  // namespace deltaedge
