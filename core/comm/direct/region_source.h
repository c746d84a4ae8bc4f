// SPDX-License-Identifier: Apache-2.0
//
// RegionSource: allocates memory that all ranks see. The steps of one
// allocation, called by DirectCommunicator in this order; between them the
// ranks agree that all succeeded, so no step waits for a rank that gave up:
//
//   Create    rank 0 makes the memory; that of a host its first rank
//   Exchange  rank 0 gives it away, the others receive it
//   Take      every rank maps it, and commits its share of the pages if the
//             source can, so that a lack of shared memory is an error here and
//             not a signal later
//
// No source can guarantee memory against a control group's limit or other
// processes of the machine: the kernel kills the process then. CheckHostMemory
// makes that rare.
//
// A source makes one allocation at a time. A duplicate of the communicator has
// a duplicate of the source, which works at the same time, and is made
// likewise:
//
//   CreateDuplicate    rank 0 makes what the ranks need to reach each other
//   ExchangeDuplicate  rank 0 gives it away, the others receive it
//
// Forget ends an allocation or duplication, whether it succeeded or not.

#ifndef SHARD_CORE_COMM_DIRECT_REGION_SOURCE_H_
#define SHARD_CORE_COMM_DIRECT_REGION_SOURCE_H_

#include <cstddef>
#include <memory>

#include "core/base/deadline.h"
#include "core/base/mapping.h"
#include "core/base/status.h"
#include "core/comm/direct/group.h"

namespace shard::direct {

// Memory to allocate, alike on all ranks but for their shares.
struct RegionRequest {
  size_t bytes;
  // The cells of the ControlBlock that the memory becomes; null for memory of
  // tensors. A source that keeps memory alike on several hosts must know.
  const CellRing* ring = nullptr;
  // Whether it is memory of a host's ranks, which other hosts have no part in.
  bool of_host = false;
  // [commit_begin, commit_begin + commit_bytes) is this rank's share to commit,
  // which private memory leaves to the first touch.
  size_t commit_begin = 0;
  size_t commit_bytes = 0;
};

class RegionSource {
 public:
  virtual ~RegionSource() = default;

  virtual Status Create(const RegionRequest& request) = 0;

  // `group` tells a waiting rank that the others have failed.
  virtual Status Exchange(const RegionRequest& request, const Group& group,
                          const Deadline& deadline) = 0;

  virtual StatusOr<std::shared_ptr<Mapping>> Take(
      const RegionRequest& request) = 0;

  virtual Status CreateDuplicate() = 0;

  virtual StatusOr<std::unique_ptr<RegionSource>> ExchangeDuplicate(
      const Group& group, const Deadline& deadline) = 0;

  virtual void Forget() = 0;
};

}  // namespace shard::direct

#endif  // SHARD_CORE_COMM_DIRECT_REGION_SOURCE_H_
