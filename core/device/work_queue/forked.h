// SPDX-License-Identifier: Apache-2.0
//
// Keeps objects that threads of a process share from being destroyed in a child
// of fork: the threads do not exist there, and a condition variable's
// destructor would wait for the threads that were waiting on it.

#ifndef SHARD_CORE_DEVICE_WORK_QUEUE_FORKED_H_
#define SHARD_CORE_DEVICE_WORK_QUEUE_FORKED_H_

#include <unistd.h>

#include <memory>
#include <utility>

namespace shard {

// Makes an object as std::make_shared does, but one that is never destroyed in
// a child of the process that made it.
template <typename T, typename... Args>
std::shared_ptr<T> MakeSharedUnlessForked(Args&&... args) {
  const pid_t owner = ::getpid();
  return std::shared_ptr<T>(new T(std::forward<Args>(args)...), [owner](T* it) {
    if (::getpid() == owner) delete it;
  });
}

}  // namespace shard

#endif  // SHARD_CORE_DEVICE_WORK_QUEUE_FORKED_H_
