// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_COMM_DIRECT_MEMBERSHIP_H_
#define SHARD_CORE_COMM_DIRECT_MEMBERSHIP_H_

#include <sys/types.h>

#include "core/comm/direct/control_block.h"

namespace shard::direct {

// A rank's membership in a group, from the time when peers wait for the rank
// until the rank leaves. The destructor, without ShutDown before, tells the
// peers that this rank will not come again; so a function that opens a group
// makes the Membership before anything else can fail. Allocates nothing.
//
// In a child forked from the process, a Membership does nothing.
class Membership {
 public:
  Membership() = default;  // In no group.
  // `block` must outlive this.
  Membership(ControlBlock* block, int rank);
  Membership(Membership&& other) noexcept;
  Membership& operator=(Membership&& other) noexcept;
  ~Membership();

  int rank() const { return rank_; }

  // Ends the membership; the rank is not lost when it leaves.
  void ShutDown() { Leave(kShutDown); }

 private:
  void Leave(Presence how);

  ControlBlock* block_ = nullptr;  // Null: has left, or in no group.
  int rank_ = -1;
  pid_t owner_ = 0;
};

}  // namespace shard::direct

#endif  // SHARD_CORE_COMM_DIRECT_MEMBERSHIP_H_
