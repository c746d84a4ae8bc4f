// SPDX-License-Identifier: Apache-2.0
//
// PerProcess: a part of a handle that a child of fork makes anew. A thread of
// the parent may have held a lock of the part, or changed the part, when the
// process forked, and no such thread exists in the child.
//
// The part of the parent stays as it was in the child's memory, so that
// pointers into it stay valid; the child never destroys it. Thread-safe.

#ifndef SHARD_API_PER_PROCESS_H_
#define SHARD_API_PER_PROCESS_H_

#include <sys/types.h>
#include <unistd.h>

#include <atomic>

namespace shard::api {

template <typename Part>
class PerProcess {
 public:
  PerProcess() : newest_(new Node()) {}
  ~PerProcess() {
    const pid_t self = ::getpid();
    for (Node* node = newest_; node != nullptr;) {
      Node* const before = node->before;
      if (node->owner == self) delete node;
      node = before;
    }
  }
  PerProcess(const PerProcess&) = delete;
  PerProcess& operator=(const PerProcess&) = delete;

  // Returns the part of this process.
  Part& Get() const {
    const pid_t self = ::getpid();
    Node* node = newest_.load(std::memory_order_acquire);
    while (node->owner != self) {
      Node* const made = new Node();
      made->before = node;
      if (newest_.compare_exchange_strong(node, made,
                                          std::memory_order_acq_rel)) {
        return made->part;
      }
      delete made;  // Another thread of the child was faster.
    }
    return node->part;
  }

 private:
  struct Node {
    const pid_t owner = ::getpid();
    Part part;
    Node* before = nullptr;  // The node of the parent.
  };

  mutable std::atomic<Node*> newest_;
};

}  // namespace shard::api

#endif  // SHARD_API_PER_PROCESS_H_
