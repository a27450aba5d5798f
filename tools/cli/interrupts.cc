// SPDX-License-Identifier: Apache-2.0

#include "tools/cli/interrupts.h"

#include <signal.h>

#include <initializer_list>

namespace deltaedge {

namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void Interrupt(int) { interrupted.store(true); }

}  // namespace

const std::atomic<bool>& Interrupted() { return interrupted; }

ScopedInterrupts::ScopedInterrupts() {
  struct sigaction action = {};
  action.sa_handler = Interrupt;
  action.sa_flags = SA_RESTART | SA_RESETHAND;
  for (const int number : {SIGINT, SIGTERM}) {
    sigaction(number, &action, nullptr);
  }
  for (const int number : {SIGPIPE, SIGXFSZ}) signal(number, SIG_IGN);
}

ScopedInterrupts::~ScopedInterrupts() {
  for (const int number : {SIGINT, SIGTERM, SIGPIPE, SIGXFSZ}) {
    signal(number, SIG_DFL);
  }
}

}  // namespace deltaedge
