// SPDX-License-Identifier: Apache-2.0
//
// A few threads for the length of one call, for work that waits for a disk, or
// that takes much longer than a thread's start.
//
// The threads block all signals, which are the host's, and let no exception
// out: it becomes the error of the call, kResourceExhausted where memory has
// run out and kInternal otherwise.

#ifndef SHARD_CORE_BASE_PARALLEL_H_
#define SHARD_CORE_BASE_PARALLEL_H_

#include <cstddef>
#include <functional>

#include "core/base/status.h"

namespace shard {

// Runs `work(index, thread)` for every index in [0, count), on the calling
// thread and up to `threads` - 1 others, and blocks until all have ended. The
// indices are begun in ascending order; `thread`, in [0, threads), names the
// thread, for scratch memory of its own. After the first error, calls in
// progress are finished, and no others are begun. Where several calls fail,
// returns the error of the lowest index, but kCancelled only where all that
// failed were cancelled: a host may cancel because of the error of another
// call. Where the system gives fewer threads, those that exist do all of the
// work. `threads` below 1 means 1.
Status ParallelFor(size_t count, int threads,
                   const std::function<Status(size_t index, int thread)>& work);

// Runs `work(index)` for each index in [0, threads), the first on the calling
// thread and every other one on a thread of its own. Returns when all have
// returned, with the error of the lowest index that has one. Where the system
// gives fewer threads, the work of the others is not run. REQUIRES:
// threads > 0.
Status RunOnThreads(int threads, const std::function<Status(int index)>& work);

}  // namespace shard

#endif  // SHARD_CORE_BASE_PARALLEL_H_
