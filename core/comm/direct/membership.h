// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_COMM_DIRECT_MEMBERSHIP_H_
#define SHARD_CORE_COMM_DIRECT_MEMBERSHIP_H_

#include <sys/types.h>

#include "core/comm/direct/control_block.h"

namespace shard::direct {

// A rank's part in a group, from when its peers count on the rank until the
// rank leaves. Destroyed without ShutDown, wherever that happens, it tells the
// peers that this rank will not come again; so whoever opens a group makes one
// before anything else can fail. Allocates nothing.
//
// A child forked from the process does not speak in its parent's name.
class Membership {
 public:
  Membership() = default;  // In no group.
  // `block` outlives this.
  Membership(ControlBlock* block, int rank);
  Membership(Membership&& other) noexcept;
  Membership& operator=(Membership&& other) noexcept;
  ~Membership();

  int rank() const { return rank_; }

  // To leave is no loss from here on.
  void ShutDown() { Leave(kShutDown); }

 private:
  void Leave(Presence how);

  ControlBlock* block_ = nullptr;  // Null: has left, or in no group.
  int rank_ = -1;
  pid_t owner_ = 0;
};

}  // namespace shard::direct

#endif  // SHARD_CORE_COMM_DIRECT_MEMBERSHIP_H_
