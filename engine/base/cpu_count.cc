// SPDX-License-Identifier: Apache-2.0

#include "engine/base/cpu_count.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace deltaedge {
namespace {

// Empty if the file cannot be read.
std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::optional<int> Least(std::optional<int> a, std::optional<int> b) {
  if (!a || !b) return a ? a : b;
  return std::min(*a, *b);
}

std::optional<int> QuotaCpus(absl::string_view quota_us,
                             absl::string_view period_us) {
  int64_t quota = 0;
  int64_t period = 0;
  if (!absl::SimpleAtoi(quota_us, &quota) || quota <= 0 ||
      !absl::SimpleAtoi(period_us, &period) || period <= 0) {
    return std::nullopt;
  }
  const int64_t cpus = (quota - 1) / period + 1;
  return static_cast<int>(
      std::min<int64_t>(cpus, std::numeric_limits<int>::max()));
}

// One file, "QUOTA PERIOD" or "max PERIOD".
std::optional<int> GroupCpusV2(const std::string& folder) {
  const std::string text = ReadFile(absl::StrCat(folder, "/cpu.max"));
  const std::vector<absl::string_view> words =
      absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  return words.size() == 2 ? QuotaCpus(words[0], words[1]) : std::nullopt;
}

// One file each; a quota of -1 stands for none.
std::optional<int> GroupCpusV1(const std::string& folder) {
  return QuotaCpus(ReadFile(absl::StrCat(folder, "/cpu.cfs_quota_us")),
                   ReadFile(absl::StrCat(folder, "/cpu.cfs_period_us")));
}

// Over `group` and all groups above it. In a container `group` may be the
// host's name of a folder that is mounted as the top, so missing folders on the
// way are no error.
std::optional<int> CpusUpwards(const std::string& mount,
                               absl::string_view group,
                               std::optional<int> (*cpus)(const std::string&)) {
  std::optional<int> least = cpus(mount);
  if (absl::c_linear_search(absl::StrSplit(group, '/'), "..")) return least;
  for (; !group.empty() && group != "/";
       group = group.substr(0, group.rfind('/'))) {
    least = Least(least, cpus(absl::StrCat(mount, group)));
  }
  return least;
}

// Processors that the scheduler may put this thread on.
int AffinityCpus() {
  // The kernel refuses a mask with fewer bits than it has processors.
  for (int bits = CPU_SETSIZE; bits <= (1 << 20); bits *= 2) {
    cpu_set_t* const set = CPU_ALLOC(bits);
    if (set == nullptr) break;
    const size_t size = CPU_ALLOC_SIZE(bits);
    const bool ok = sched_getaffinity(0, size, set) == 0;
    const bool too_small = !ok && errno == EINVAL;
    const int count = ok ? CPU_COUNT_S(size, set) : 0;
    CPU_FREE(set);
    if (ok) return std::max(count, 1);
    if (!too_small) break;
  }
  return std::max(static_cast<int>(std::thread::hardware_concurrency()), 1);
}

}  // namespace

int AvailableCpus() { return Least(AffinityCpus(), CgroupCpus()).value_or(1); }

std::optional<int> CgroupCpus(const std::string& root) {
  const std::string mount = absl::StrCat(root, "/sys/fs/cgroup");
  const std::string groups = ReadFile(absl::StrCat(root, "/proc/self/cgroup"));
  std::optional<int> least;
  for (absl::string_view line : absl::StrSplit(groups, '\n')) {
    const std::vector<absl::string_view> fields =
        absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const absl::string_view controllers = fields[1];
    const absl::string_view group = fields[2];
    if (controllers.empty()) {
      least = Least(least, CpusUpwards(mount, group, GroupCpusV2));
    } else if (absl::c_linear_search(absl::StrSplit(controllers, ','), "cpu")) {
      for (absl::string_view name : {controllers, absl::string_view("cpu")}) {
        least = Least(least, CpusUpwards(absl::StrCat(mount, "/", name), group,
                                         GroupCpusV1));
      }
    }
  }
  return least;
}

}  // namespace deltaedge
