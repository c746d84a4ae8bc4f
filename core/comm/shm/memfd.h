// SPDX-License-Identifier: Apache-2.0
//
// Shared memory without a name: a memfd, sealed against a change of size, so
// that no peer can turn an access into SIGBUS. Not limited by /dev/shm, and
// gone with its last mapping, crash or not.

#ifndef SHARD_CORE_COMM_SHM_MEMFD_H_
#define SHARD_CORE_COMM_SHM_MEMFD_H_

#include <cstddef>

#include "core/base/fd.h"
#include "core/base/mapping.h"
#include "core/base/status.h"

namespace shard::shm {

// `label` is what /proc/PID/maps shows. REQUIRES: bytes > 0.
StatusOr<Fd> CreateMemory(const char* label, size_t bytes);

// An error when the file is not a sealed one of at least `bytes`.
StatusOr<Mapping> MapMemory(int fd, size_t bytes);

// Takes the pages of a range now, on this thread's NUMA node, so that a lack
// of memory is kResourceExhausted here.
Status CommitMemory(int fd, size_t begin, size_t bytes);

}  // namespace shard::shm

#endif  // SHARD_CORE_COMM_SHM_MEMFD_H_
