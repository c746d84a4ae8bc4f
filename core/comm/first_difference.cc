// SPDX-License-Identifier: Apache-2.0

#include "core/comm/first_difference.h"

namespace shard {

Status AwaitFirstDifference(Notices* notices, const CompareFirst& compare,
                            uint64_t* number, void* recv,
                            const Deadline& deadline) {
  // Notices of other ranks may differ before these. Once all ranks have posted
  // this number, this rank knows those, too.
  for (;;) {
    uint64_t first = *number;
    SHARD_RETURN_IF_ERROR(
        notices->Await(*number, compare(&first), recv, deadline));
    if (first == *number) return Status();
    *number = first;
  }
}

}  // namespace shard
