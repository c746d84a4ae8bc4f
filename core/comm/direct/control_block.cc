// SPDX-License-Identifier: Apache-2.0

#include "core/comm/direct/control_block.h"

#include "core/comm/direct/futex.h"

namespace shard::direct {

void ControlBlock::Announce() {
  event.fetch_add(1, std::memory_order_seq_cst);
  if (waiters.load(std::memory_order_seq_cst) > 0) FutexWakeAll(&event);
}

}  // namespace shard::direct
