// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_CLI_INTERRUPTS_H_
#define DELTAEDGE_TOOLS_CLI_INTERRUPTS_H_

#include <atomic>

namespace deltaedge {

// Whether a SIGINT or SIGTERM came while there was a ScopedInterrupts. For work
// that looks at it now and then.
const std::atomic<bool>& Interrupted();

// While it exists, work ends by itself and removes what it has made: the first
// SIGINT or SIGTERM only sets Interrupted(), the next one of its kind ends the
// program; a pipe that nobody reads any more and a file that grows too large
// are errors of writing. One at a time.
class ScopedInterrupts {
 public:
  ScopedInterrupts();
  ~ScopedInterrupts();
  ScopedInterrupts(const ScopedInterrupts&) = delete;
  ScopedInterrupts& operator=(const ScopedInterrupts&) = delete;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_CLI_INTERRUPTS_H_
