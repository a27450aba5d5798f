// SPDX-License-Identifier: Apache-2.0

#include "tools/bench/micro/fixture.h"

#include <map>
#include <memory>

#include "engine/base/thread_pool.h"

namespace deltaedge {

pthreadpool_t Pool(int threads) {
  static auto& pools = *new std::map<int, std::unique_ptr<ThreadPool>>;
  std::unique_ptr<ThreadPool>& pool = pools[threads];
  if (pool == nullptr) pool = OrDie(ThreadPool::Create(threads));
  return pool->get();
}

AlignedArray<float> RandomFloats(int64_t count, float limit) {
  Numbers numbers;
  auto result = OrDie(AlignedArray<float>::Allocate(count, "random numbers"));
  for (float& value : result) value = limit * numbers.Float();
  return result;
}

}  // namespace deltaedge
