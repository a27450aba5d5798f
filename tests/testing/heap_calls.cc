// SPDX-License-Identifier: Apache-2.0

#include "tests/testing/heap_calls.h"

#include <atomic>
#include <cerrno>
#include <cstddef>

#include "engine/base/allocation_hooks.h"

namespace {

std::atomic<int64_t> calls{0};

void Count() { calls.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

namespace deltaedge::testing {

int64_t HeapCalls() {
  return calls.load(std::memory_order_relaxed) + AllocationCount();
}

}  // namespace deltaedge::testing

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DELTAEDGE_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define DELTAEDGE_SANITIZED 1
#endif
#endif

#ifdef DELTAEDGE_SANITIZED

// Of sanitizer/allocator_interface.h, which not every compiler brings along.
extern "C" int __sanitizer_install_malloc_and_free_hooks(
    void (*malloc_hook)(const volatile void*, size_t),
    void (*free_hook)(const volatile void*));

namespace {

const int installed = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, size_t) { Count(); }, [](const volatile void*) {});

}  // namespace

#else

// operator new comes here as well.
extern "C" {

void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t size) noexcept {
  Count();
  return __libc_malloc(size);
}

void* calloc(size_t count, size_t size) noexcept {
  Count();
  return __libc_calloc(count, size);
}

void* realloc(void* old, size_t size) noexcept {
  Count();
  return __libc_realloc(old, size);
}

void* memalign(size_t alignment, size_t size) noexcept {
  Count();
  return __libc_memalign(alignment, size);
}

void* aligned_alloc(size_t alignment, size_t size) noexcept {
  return memalign(alignment, size);
}

int posix_memalign(void** out, size_t alignment, size_t size) noexcept {
  *out = memalign(alignment, size);
  return *out == nullptr ? ENOMEM : 0;
}

}  // extern "C"

#endif
