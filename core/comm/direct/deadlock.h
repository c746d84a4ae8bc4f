// SPDX-License-Identifier: Apache-2.0
//
// Deadlock: finds ranks whose hosts wait for each other, each in another group
// of one family, so that no round of these groups can ever be complete.
//
// A round waits for another one when it lacks a rank whose host waits for the
// other one (core/comm/host_waits.h), and no thread of the library has work to
// do on the first round's group there. Rounds that wait for each other in a
// cycle wait for ever: each needs all ranks, and the one that it lacks cannot
// come before another round of the cycle is complete. Hosts that share notices
// may wait for different rounds of one group: the earlier one needs less.
//
// No false alarm: the words that ranks publish are read twice, and must be the
// same both times. No word that counts here ever returns to an earlier value,
// so between the two readings all of them were there together. The words of a
// rank on another host are older, and were there together then (mirror.h). A
// host that waits at one moment for a round that is not complete waits until it
// is.

#ifndef SHARD_CORE_COMM_DIRECT_DEADLOCK_H_
#define SHARD_CORE_COMM_DIRECT_DEADLOCK_H_

#include <functional>
#include <vector>

#include "core/base/status.h"
#include "core/comm/direct/control_block.h"

namespace shard::direct {

// Returns kDesync, with the calls of the hosts and their ranks, when `round` of
// `start` waits for such a cycle; else OK. `blocks`: those of the family, of
// the same ranks. `is_dead`: whether a rank has died, whose words then say
// nothing. The message depends on the words alone, and fits into a
// FailureRecord: of many calls it names the first, two of them at least, from
// different groups.
Status FindDeadlock(const std::vector<BlockView>& blocks,
                    const ControlBlock* start, uint64_t round,
                    const std::function<bool(int rank)>& is_dead);

}  // namespace shard::direct

#endif  // SHARD_CORE_COMM_DIRECT_DEADLOCK_H_
