// SPDX-License-Identifier: Apache-2.0

#include "engine/spec/drafter_wrapper.h"

#include <atomic>
#include <cassert>

namespace deltaedge {

namespace {

std::atomic<const ScopedDrafterWrapper*> alive{nullptr};

}  // namespace

ScopedDrafterWrapper::ScopedDrafterWrapper(Wrap wrap) : wrap_(std::move(wrap)) {
  assert(alive.load() == nullptr);
  alive.store(this);
}

ScopedDrafterWrapper::~ScopedDrafterWrapper() { alive.store(nullptr); }

std::unique_ptr<BlockDrafter> ScopedDrafterWrapper::Apply(
    std::unique_ptr<BlockDrafter> drafter) {
  const ScopedDrafterWrapper* const wrapper = alive.load();
  return wrapper == nullptr ? std::move(drafter)
                            : wrapper->wrap_(std::move(drafter));
}

}  // namespace deltaedge
