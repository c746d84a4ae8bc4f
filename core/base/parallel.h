// SPDX-License-Identifier: Apache-2.0
//
// A few threads for the length of one call, for work that waits for a disk.
//
// The threads block all signals, which are the host's, and let no exception
// out: where memory runs out in a thread, the call returns an error.

#ifndef SHARD_CORE_BASE_PARALLEL_H_
#define SHARD_CORE_BASE_PARALLEL_H_

#include <functional>

#include "core/base/status.h"

namespace shard {

// Runs `work(index)` for each index in [0, threads), the first on the calling
// thread and every other one on a thread of its own. Returns when all have
// returned, with the error of the lowest index that has one. Each thread takes
// the next piece of their shared work until none is left, so where the system
// gives fewer threads, those that exist do all of it. REQUIRES: threads > 0.
Status RunOnThreads(int threads, const std::function<Status(int index)>& work);

}  // namespace shard

#endif  // SHARD_CORE_BASE_PARALLEL_H_
