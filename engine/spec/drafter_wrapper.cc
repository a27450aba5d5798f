// SPDX-License-Identifier: Apache-2.0

#include "engine/spec/drafter_wrapper.h"

#include <cassert>

namespace deltaedge {

namespace {

const ScopedDrafterWrapper* alive = nullptr;

}  // namespace

ScopedDrafterWrapper::ScopedDrafterWrapper(Wrap wrap) : wrap_(std::move(wrap)) {
  assert(alive == nullptr);
  alive = this;
}

ScopedDrafterWrapper::~ScopedDrafterWrapper() { alive = nullptr; }

std::unique_ptr<BlockDrafter> ScopedDrafterWrapper::Apply(
    std::unique_ptr<BlockDrafter> drafter) {
  return alive == nullptr ? std::move(drafter)
                          : alive->wrap_(std::move(drafter));
}

}  // namespace deltaedge
