// SPDX-License-Identifier: Apache-2.0
//
// What threads of this process share cannot be destroyed in a child of fork:
// the threads are not there, and a condition variable waits in its destructor
// for those that were waiting on it. So a child leaves it alone.

#ifndef SHARD_CORE_DEVICE_CPU_FORKED_H_
#define SHARD_CORE_DEVICE_CPU_FORKED_H_

#include <unistd.h>

#include <memory>
#include <utility>

namespace shard::cpu {

// As std::make_shared; never destroyed in a child of the process that made it.
template <typename T, typename... Args>
std::shared_ptr<T> MakeSharedUnlessForked(Args&&... args) {
  const pid_t owner = ::getpid();
  return std::shared_ptr<T>(new T(std::forward<Args>(args)...), [owner](T* it) {
    if (::getpid() == owner) delete it;
  });
}

}  // namespace shard::cpu

#endif  // SHARD_CORE_DEVICE_CPU_FORKED_H_
