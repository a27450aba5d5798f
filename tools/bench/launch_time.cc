// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/launch_time.h"

#include <cassert>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"
#include "pthreadpool.h"

namespace deltaedge {

namespace {

using Clock = std::chrono::steady_clock;

LaunchTime* alive = nullptr;

template <class Launch, class... Arguments>
void Timed(Launch* launch, Arguments... arguments) {
  if (alive == nullptr) return launch(arguments...);
  const Clock::time_point start = Clock::now();
  launch(arguments...);
  alive->Add(absl::FromChrono(Clock::now() - start));
}

}  // namespace

LaunchTime::LaunchTime() {
  assert(alive == nullptr);
  alive = this;
  constexpr int kEmpty = 1000;
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < kEmpty; ++i) {
    pthreadpool_parallelize_1d(
        /*threadpool=*/nullptr, [](void*, size_t) {}, /*context=*/nullptr,
        /*range=*/1, /*flags=*/0);
  }
  own_ = (absl::FromChrono(Clock::now() - start) - inside_) / kEmpty;
  launches_ = 0;
  inside_ = absl::ZeroDuration();
}

LaunchTime::~LaunchTime() { alive = nullptr; }

}  // namespace deltaedge

extern "C" {

// What ld's --wrap=f makes of f: callers get __wrap_f, __real_f is f.
#define DELTAEDGE_WRAP(f, parameters, ...) \
  void __real_##f parameters;              \
  void __wrap_##f parameters { deltaedge::Timed(__real_##f, __VA_ARGS__); }

DELTAEDGE_WRAP(pthreadpool_parallelize_1d,
               (pthreadpool_t pool, pthreadpool_task_1d_t task, void* context,
                size_t range, uint32_t flags),
               pool, task, context, range, flags)
DELTAEDGE_WRAP(pthreadpool_parallelize_1d_tile_1d,
               (pthreadpool_t pool, pthreadpool_task_1d_tile_1d_t task,
                void* context, size_t range, size_t tile, uint32_t flags),
               pool, task, context, range, tile, flags)
DELTAEDGE_WRAP(pthreadpool_parallelize_2d,
               (pthreadpool_t pool, pthreadpool_task_2d_t task, void* context,
                size_t range_i, size_t range_j, uint32_t flags),
               pool, task, context, range_i, range_j, flags)
DELTAEDGE_WRAP(pthreadpool_parallelize_2d_tile_1d,
               (pthreadpool_t pool, pthreadpool_task_2d_tile_1d_t task,
                void* context, size_t range_i, size_t range_j, size_t tile_j,
                uint32_t flags),
               pool, task, context, range_i, range_j, tile_j, flags)
DELTAEDGE_WRAP(pthreadpool_parallelize_3d,
               (pthreadpool_t pool, pthreadpool_task_3d_t task, void* context,
                size_t range_i, size_t range_j, size_t range_k, uint32_t flags),
               pool, task, context, range_i, range_j, range_k, flags)

#undef DELTAEDGE_WRAP

}  // extern "C"
