// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_BENCH_LAUNCH_TIME_H_
#define DELTAEDGE_TOOLS_BENCH_LAUNCH_TIME_H_

#include <cstdint>

#include "absl/time/time.h"

namespace deltaedge {

// How long this process spends inside of launches while one of these lives:
// the functions of pthreadpool through which all products and nearly all
// kernels run, with a pool or without. What steps take beside that is the
// engine's own work.
//
// The linker puts wrappers around those functions (BUILD), so that no other
// binary pays for it, and this one a look at a pointer when none lives. A
// function that the engine does not use has no wrapper.
//
// At most one at a time, with launches from one thread at a time.
class LaunchTime {
 public:
  LaunchTime();
  ~LaunchTime();
  LaunchTime(const LaunchTime&) = delete;
  LaunchTime& operator=(const LaunchTime&) = delete;

  int64_t launches() const { return launches_; }
  absl::Duration inside() const { return inside_; }
  // What looking at the clock took beside that, as measured on launches of
  // nothing.
  absl::Duration own() const { return launches_ * own_; }

  void Add(absl::Duration inside) {
    ++launches_;
    inside_ += inside;
  }

 private:
  int64_t launches_ = 0;
  absl::Duration inside_, own_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_BENCH_LAUNCH_TIME_H_
