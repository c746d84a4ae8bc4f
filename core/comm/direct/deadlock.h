// SPDX-License-Identifier: Apache-2.0
//
// Deadlock: finds ranks whose hosts wait for each other, each in another group
// of one family, so that no round of these groups can ever be complete.
//
// A group waits for another one when its round lacks a rank whose host waits in
// the other group (core/comm/host_waits.h), and no thread of the library has
// work to do on the first group there. Groups that wait for each other in a
// cycle wait for ever: each round needs all ranks, and the one that it lacks
// cannot come before another round of the cycle is complete.
//
// No false alarm: the words that ranks publish are read twice, and must be the
// same both times. No word that counts here ever returns to an earlier value,
// so all of them were true at once, at the moment between the two readings. A
// host that waits at one moment for a round that is not complete waits until it
// is.

#ifndef SHARD_CORE_COMM_DIRECT_DEADLOCK_H_
#define SHARD_CORE_COMM_DIRECT_DEADLOCK_H_

#include <functional>
#include <vector>

#include "core/base/status.h"
#include "core/comm/direct/control_block.h"

namespace shard::direct {

// Returns kDesync, with the calls of the hosts and their ranks, when a round of
// `start` waits for such a cycle; else OK. `blocks`: those of the family, of
// `world_size` ranks each. `is_dead`: whether a rank has died, whose words then
// say nothing. The message depends on the words alone, and fits into a
// FailureRecord: of many calls it names the first, two of them at least, from
// different groups.
Status FindDeadlock(const std::vector<ControlBlock*>& blocks,
                    const ControlBlock* start, int world_size,
                    const std::function<bool(int rank)>& is_dead);

}  // namespace shard::direct

#endif  // SHARD_CORE_COMM_DIRECT_DEADLOCK_H_
