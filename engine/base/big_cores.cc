// SPDX-License-Identifier: Apache-2.0

#include "engine/base/big_cores.h"

#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
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

// The least speed of a big core and the greatest of the others; equal if there
// is no difference to speak of.
struct Cut {
  int64_t big, little;
};

Cut LargestGap(const std::vector<Cpu>& cpus) {
  std::vector<int64_t> speeds;
  for (const Cpu& cpu : cpus) speeds.push_back(cpu.speed);
  std::sort(speeds.begin(), speeds.end(), std::greater<>());
  Cut cut = {speeds.back(), speeds.back()};
  double largest = 1.25;
  for (size_t i = 1; i < speeds.size(); ++i) {
    const double factor =
        static_cast<double>(speeds[i - 1]) / static_cast<double>(speeds[i]);
    if (factor < largest || speeds[i - 1] == speeds[i]) continue;
    largest = factor;
    cut = {speeds[i - 1], speeds[i]};
  }
  return cut;
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
  const Cut cut = LargestGap(cpus);
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
