// SPDX-License-Identifier: Apache-2.0
//
// The meetings of ranks in calls that wait for all of them.

#ifndef SHARD_TESTS_FAKE_NCCL_INIT_H_
#define SHARD_TESTS_FAKE_NCCL_INIT_H_

#include <memory>
#include <vector>

#include "tests/fake_nccl/entry.h"
#include "tests/fake_nccl/segment.h"

namespace shard::testing::fake_nccl {

// Reads the configuration that a caller gives, of whatever version. Leaves
// `is_blocking` where it does not say.
Result ReadConfig(Entry* entry, const Config* config, bool* is_blocking);

// Meets the ranks of a new communicator, whose name, rank and size are known.
Job MeetJob(const std::shared_ptr<Comm>& comm);

// Returns the parts of all ranks in the round to which this rank has come, or
// none while one is missing. Ranks in different calls miss one another.
std::vector<Part> AwaitRound(Comm* comm, RoundKind kind);

}  // namespace shard::testing::fake_nccl

#endif  // SHARD_TESTS_FAKE_NCCL_INIT_H_
