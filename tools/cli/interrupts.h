// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_CLI_INTERRUPTS_H_
#define DELTAEDGE_TOOLS_CLI_INTERRUPTS_H_

#include <signal.h>

#include <array>
#include <atomic>

namespace deltaedge {

// Whether a SIGINT, SIGTERM or SIGHUP came while there was a ScopedInterrupts.
// For work that looks at it now and then.
const std::atomic<bool>& Interrupted();

// While it exists, work ends by itself and removes what it has made: the first
// SIGINT, SIGTERM or SIGHUP only sets Interrupted(), the next one of its kind
// ends the program; one that whoever started the program ignores, as nohup does
// the last, stays ignored. A pipe that nobody reads any more and a file that
// grows too large are errors of writing. One at a time; then all is as before.
class ScopedInterrupts {
 public:
  ScopedInterrupts();
  ~ScopedInterrupts();
  ScopedInterrupts(const ScopedInterrupts&) = delete;
  ScopedInterrupts& operator=(const ScopedInterrupts&) = delete;

 private:
  static constexpr std::array<int, 5> kSignals = {SIGINT, SIGTERM, SIGHUP,
                                                  SIGPIPE, SIGXFSZ};
  std::array<struct sigaction, kSignals.size()> before_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_CLI_INTERRUPTS_H_
