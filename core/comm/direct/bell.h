// SPDX-License-Identifier: Apache-2.0
//
// Bell: wakes the process that copies what this rank writes into ControlBlocks
// to the other hosts (core/comm/network/helper/mirror.h). Ranks that are all on
// one host have none.

#ifndef SHARD_CORE_COMM_DIRECT_BELL_H_
#define SHARD_CORE_COMM_DIRECT_BELL_H_

#include <sys/eventfd.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <utility>

#include "core/comm/direct/control_block.h"

namespace shard::direct {

class Bell {
 public:
  // `block` is the origin of the family and `eventfd` does not block; both must
  // outlive this, to which end `owner` is held.
  Bell(ControlBlock* block, int eventfd, std::shared_ptr<const void> owner)
      : block_(block), eventfd_(eventfd), owner_(std::move(owner)) {}

  // Called after a change: of a rank that changes a word and then reads
  // `mirror_sleeps`, and a mirror that sets it and then reads all words, at
  // least one sees the other. Keeps errno.
  void Ring() const {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (block_->mirror_sleeps.load(std::memory_order_seq_cst) == 0) return;
    const int error = errno;
    ::eventfd_write(eventfd_, 1);
    errno = error;
  }

 private:
  ControlBlock* const block_;
  const int eventfd_;
  const std::shared_ptr<const void> owner_;
};

}  // namespace shard::direct

#endif  // SHARD_CORE_COMM_DIRECT_BELL_H_
