// SPDX-License-Identifier: Apache-2.0
//
// The first notice at which ranks differ: all ranks come to the same one,
// whichever of them they have found.

#ifndef SHARD_CORE_COMM_FIRST_DIFFERENCE_H_
#define SHARD_CORE_COMM_FIRST_DIFFERENCE_H_

#include <cstdint>
#include <functional>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/notices.h"

namespace shard {

// Returns what notices are compared with, which lowers `*first` to the number
// of each notice that is not that of another rank.
using CompareFirst = std::function<Notices::Compare(uint64_t* first)>;

// Waits until all ranks have posted the first notice at which they differ, sets
// `*number` to its number, and copies the notices of that number, by rank, into
// `recv`. `*number`: that of a notice which differs from one that this rank has
// compared. Another rank may have found others. Errors: those of Await, also
// kDeadlineExceeded where a rank is stuck before that notice.
Status AwaitFirstDifference(Notices* notices, const CompareFirst& compare,
                            uint64_t* number, void* recv,
                            const Deadline& deadline);

}  // namespace shard

#endif  // SHARD_CORE_COMM_FIRST_DIFFERENCE_H_
