// SPDX-License-Identifier: Apache-2.0
//
// Launches of operations on tensors.

#ifndef SHARD_TESTS_FAKE_NCCL_LAUNCH_H_
#define SHARD_TESTS_FAKE_NCCL_LAUNCH_H_

#include <memory>
#include <vector>

#include "tests/fake_nccl/entry.h"
#include "tests/fake_nccl/work.h"

namespace shard::testing::fake_nccl {

// Launches operations of a communicator as one kernel, in the order of all of
// their streams: now, or after `polls` answers of kInProgress.
Result LaunchWorks(Entry* entry, const std::shared_ptr<Comm>& comm,
                   std::vector<Work> works,
                   const std::vector<cuda::CuStream>& streams, int polls);

}  // namespace shard::testing::fake_nccl

#endif  // SHARD_TESTS_FAKE_NCCL_LAUNCH_H_
