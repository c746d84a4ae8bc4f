// SPDX-License-Identifier: Apache-2.0
//
// A few threads for the length of one call, for work that waits for a disk.
//
// They block all signals, which are the host's, and let no exception out:
// memory that runs out in one is an error of the call.

#ifndef SHARD_CORE_BASE_PARALLEL_H_
#define SHARD_CORE_BASE_PARALLEL_H_

#include <functional>

#include "core/base/status.h"

namespace shard {

// Runs `work(index)` for each index in [0, threads), the first on the calling
// thread and every other one on a thread of its own, and returns when all have
// returned: the error of the lowest index that has one. Each takes what is next
// from what they share until nothing is left, so where the system gives fewer
// threads the work is done by those there are. REQUIRES: threads > 0.
Status RunOnThreads(int threads, const std::function<Status(int index)>& work);

}  // namespace shard

#endif  // SHARD_CORE_BASE_PARALLEL_H_
