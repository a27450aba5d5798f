// SPDX-License-Identifier: Apache-2.0

#include "engine/base/big_cores.h"

#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace deltaedge {
namespace {

struct Cpu {
  int number;
  int64_t speed;
};

// Empty if one of them does not say.
std::vector<Cpu> Speeds(const cpu_set_t& allowed, const std::string& root,
                        absl::string_view file) {
  std::vector<Cpu> cpus;
  for (int number = 0; number < CPU_SETSIZE; ++number) {
    if (!CPU_ISSET(number, &allowed)) continue;
    std::ifstream in(
        absl::StrCat(root, "/sys/devices/system/cpu/cpu", number, "/", file));
    int64_t speed = 0;
    if (!(in >> speed) || speed <= 0) return {};
    cpus.push_back({number, speed});
  }
  return cpus;
}

// A kind is this much faster than the next smaller one,
constexpr double kStep = 1.25;
// and the fastest processor this much faster than a little one.
constexpr double kApart = 1.3;

double Factor(int64_t faster, int64_t slower) {
  return static_cast<double>(faster) / static_cast<double>(slower);
}

// The least speed of a big core and the greatest of the others; equal if there
// are no little ones.
struct Cut {
  int64_t big, little;
};

Cut LowestStep(const std::vector<Cpu>& cpus) {
  std::vector<int64_t> speeds;
  for (const Cpu& cpu : cpus) speeds.push_back(cpu.speed);
  std::sort(speeds.begin(), speeds.end());
  for (size_t i = 1; i < speeds.size(); ++i) {
    if (Factor(speeds[i], speeds[i - 1]) >= kStep &&
        Factor(speeds.back(), speeds[i - 1]) >= kApart) {
      return {speeds[i], speeds[i - 1]};
    }
  }
  return {speeds[0], speeds[0]};
}

// "0-3,6".
std::string Ranges(const cpu_set_t& cpus) {
  std::string text;
  for (int first = 0; first < CPU_SETSIZE; ++first) {
    if (!CPU_ISSET(first, &cpus)) continue;
    int last = first;
    while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &cpus)) ++last;
    absl::StrAppend(&text, text.empty() ? "" : ",", first);
    if (last > first) absl::StrAppend(&text, "-", last);
    first = last;
  }
  return text;
}

}  // namespace

BigCores FindBigCores(const cpu_set_t& allowed, const std::string& root) {
  const std::string all = Ranges(allowed);
  const char* unit = "capacity";
  std::vector<Cpu> cpus = Speeds(allowed, root, "cpu_capacity");
  if (cpus.empty()) {
    unit = "kHz";
    cpus = Speeds(allowed, root, "cpufreq/cpuinfo_max_freq");
  }
  if (cpus.empty()) {
    return {allowed,
            absl::StrCat("processors ", all, ", how fast is not known")};
  }
  const Cut cut = LowestStep(cpus);
  if (cut.big == cut.little) {
    return {allowed, absl::StrCat("processors ", all, ", all alike")};
  }
  BigCores found;
  CPU_ZERO(&found.cpus);
  for (const Cpu& cpu : cpus) {
    if (cpu.speed >= cut.big) CPU_SET(cpu.number, &found.cpus);
  }
  found.what = absl::StrCat("processors ", Ranges(found.cpus),
                            ", the big ones of ", all, " (", unit, " at least ",
                            cut.big, ", the others at most ", cut.little, ")");
  return found;
}

}  // namespace deltaedge
