// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TESTS_TESTING_THREAD_POOL_H_
#define DELTAEDGE_TESTS_TESTING_THREAD_POOL_H_

#include <cstddef>
#include <memory>

#include "pthreadpool.h"

namespace deltaedge::testing {

// A pool for one test, gone with it. No threads: null, which kernels take too.
class ThreadPool {
 public:
  explicit ThreadPool(size_t threads)
      : pool_(threads == 0 ? nullptr : pthreadpool_create(threads),
              pthreadpool_destroy) {}

  pthreadpool_t get() const { return pool_.get(); }

 private:
  std::unique_ptr<pthreadpool, decltype(&pthreadpool_destroy)> pool_;
};

}  // namespace deltaedge::testing

#endif  // DELTAEDGE_TESTS_TESTING_THREAD_POOL_H_
