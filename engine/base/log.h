// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_BASE_LOG_H_
#define DELTAEDGE_ENGINE_BASE_LOG_H_

#include <functional>

#include "absl/strings/string_view.h"

namespace deltaedge {

// What the engine has to say besides its statuses: which kernels run, what was
// done instead of what was hoped for. Nothing by default; the app that embeds
// the engine decides where it goes.
//
// All functions may be called from any thread.

enum class LogLevel {
  kInfo,     // Facts worth having in a bug report.
  kWarning,  // Works, but slower or otherwise than intended.
};

// One line without a line break, valid during the call.
using LogSink = std::function<void(LogLevel level, absl::string_view message)>;

// Replaces the process's sink; null, the default, drops all messages. Calls of
// a sink never overlap, and the old sink is not running any more when this
// returns. A sink must not call into this library.
void SetLogSink(LogSink sink);

// Hands `message` to the sink, if there is one.
void Log(LogLevel level, absl::string_view message);

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_BASE_LOG_H_
