// SPDX-License-Identifier: Apache-2.0

#include "engine/base/partial_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "engine/base/log.h"

namespace deltaedge {
namespace {

constexpr char kPartial[] = ".partial-";

// The process that made `name`, a partial file of `file`; 0: it is none.
pid_t MakerOf(absl::string_view name, absl::string_view file) {
  if (!absl::ConsumePrefix(&name, file) ||
      !absl::ConsumePrefix(&name, kPartial)) {
    return 0;
  }
  const size_t dash = name.find('-');
  pid_t maker;
  unsigned number;
  const bool sound = dash != absl::string_view::npos &&
                     absl::SimpleAtoi(name.substr(0, dash), &maker) &&
                     absl::SimpleAtoi(name.substr(dash + 1), &number) &&
                     name == absl::StrCat(maker, "-", number);
  return sound && maker > 0 ? maker : 0;
}

// Unless somebody has it open for writing, or it is no regular file.
void RemoveLeftOver(const std::string& path) {
  const int file =
      open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  if (file < 0) return;
  const absl::Cleanup close_file = [file] { close(file); };
  struct stat info;
  if (flock(file, LOCK_EX | LOCK_NB) != 0 || fstat(file, &info) != 0 ||
      !S_ISREG(info.st_mode) || info.st_nlink == 0 ||
      unlink(path.c_str()) != 0) {
    return;
  }
  Log(LogLevel::kWarning,
      absl::StrCat("removed '", path, "' of ", info.st_size,
                   " bytes, which a process that was killed had left"));
}

void RemoveLeftOvers(const std::string& path) {
  const size_t name = path.rfind('/') + 1;  // 0: there is no slash.
  const std::string folder = name == 0 ? "./" : path.substr(0, name);
  const absl::string_view file = absl::string_view(path).substr(name);
  DIR* const entries = opendir(folder.c_str());
  if (entries == nullptr) return;
  while (const dirent* const entry = readdir(entries)) {
    const pid_t maker = MakerOf(entry->d_name, file);
    if (maker == 0) continue;
    // In a container this one may have the number of one that was killed.
    const bool gone =
        maker == getpid() || (kill(maker, 0) != 0 && errno == ESRCH);
    if (gone) RemoveLeftOver(folder + entry->d_name);
  }
  closedir(entries);
}

}  // namespace

absl::StatusOr<int> CreatePartialFile(const std::string& path,
                                      std::string* partial) {
  RemoveLeftOvers(path);
  constexpr int kTries = 1000;
  for (int i = 0; i < kTries; ++i) {
    *partial = absl::StrCat(path, kPartial, getpid(), "-", i);
    const int file =
        open(partial->c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0) {
      if (errno == EEXIST) continue;
      break;
    }
    // Who looks for left-overs may have been faster. Without locks in this
    // file system, nobody takes it for one.
    struct stat info;
    const bool taken =
        flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (!taken && fstat(file, &info) == 0 && info.st_nlink > 0) return file;
    close(file);
  }
  return absl::ErrnoToStatus(errno,
                             absl::StrCat("cannot create '", *partial, "'"));
}

}  // namespace deltaedge
