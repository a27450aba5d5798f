// SPDX-License-Identifier: Apache-2.0

#include "engine/base/log.h"

#include <utility>

#include "absl/base/const_init.h"
#include "absl/base/no_destructor.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace deltaedge {
namespace {

ABSL_CONST_INIT absl::Mutex g_mutex(absl::kConstInit);

LogSink& Sink() ABSL_EXCLUSIVE_LOCKS_REQUIRED(g_mutex) {
  static absl::NoDestructor<LogSink> sink;
  return *sink;
}

}  // namespace

void SetLogSink(LogSink sink) {
  {
    absl::MutexLock lock(&g_mutex);
    Sink().swap(sink);
  }
  // The old sink dies here, outside the lock: what it captured may do anything.
}

void Log(LogLevel level, absl::string_view message) {
  absl::MutexLock lock(&g_mutex);
  if (Sink()) Sink()(level, message);
}

}  // namespace deltaedge
