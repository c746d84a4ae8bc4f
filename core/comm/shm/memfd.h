// SPDX-License-Identifier: Apache-2.0
//
// Shared memory without a name: a memfd, sealed against a change of size, so
// that no peer can turn an access into SIGBUS. The memory is not limited by
// /dev/shm, and is freed with its last mapping, also in a crash.

#ifndef SHARD_CORE_COMM_SHM_MEMFD_H_
#define SHARD_CORE_COMM_SHM_MEMFD_H_

#include <cstddef>

#include "core/base/fd.h"
#include "core/base/mapping.h"
#include "core/base/status.h"

namespace shard::shm {

// Creates shared memory. `label` is the name in /proc/PID/maps. REQUIRES: bytes
// > 0.
StatusOr<Fd> CreateMemory(const char* label, size_t bytes);

// Maps shared memory, and allocates the pages of [commit_begin, commit_begin +
// commit_bytes) now, on this thread's NUMA node, so that a lack of memory is
// kResourceExhausted here. An error when the file is not a sealed one of at
// least `bytes`. REQUIRES: the range lies in the mapping and begins at a page.
StatusOr<Mapping> MapMemory(int fd, size_t bytes, size_t commit_begin,
                            size_t commit_bytes);

}  // namespace shard::shm

#endif  // SHARD_CORE_COMM_SHM_MEMFD_H_
