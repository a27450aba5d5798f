// SPDX-License-Identifier: Apache-2.0

#include "tools/cli/interrupts.h"

#include <signal.h>

#include <array>
#include <cstddef>

namespace deltaedge {

namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void Interrupt(int) { interrupted.store(true); }

}  // namespace

const std::atomic<bool>& Interrupted() { return interrupted; }

ScopedInterrupts::ScopedInterrupts() {
  for (size_t i = 0; i < kSignals.size(); ++i) {
    const int number = kSignals[i];
    sigaction(number, nullptr, &before_[i]);
    struct sigaction action = {};
    if (before_[i].sa_handler == SIG_IGN || number == SIGPIPE ||
        number == SIGXFSZ) {
      action.sa_handler = SIG_IGN;
    } else {
      action.sa_handler = Interrupt;
      action.sa_flags = SA_RESTART | SA_RESETHAND;
    }
    sigaction(number, &action, nullptr);
  }
}

ScopedInterrupts::~ScopedInterrupts() {
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &before_[i], nullptr);
  }
}

}  // namespace deltaedge
