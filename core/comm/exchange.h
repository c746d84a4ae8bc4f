// SPDX-License-Identifier: Apache-2.0
//
// Exchange: moves and sums tensors between the ranks of a communicator, in
// memory of the host. Collectives (core/collectives/collectives.h) put it into
// the order of streams.
//
// An exchange has a sequence of collectives of its own, beside that of the
// communicator which opened it: control data and tensors may be under way at
// the same time, each driven by a thread of its own. Every rank of the world
// takes part in each collective, in the same order, with the ranks of its own
// set. "Sent" is the number of bytes per rank that a ring would send.
//
// Calls block. Errors are those of a Communicator: calls that differ are
// kDesync on all ranks, and an error that ends one of a family ends all.
//
// Threads: one thread at a time drives an exchange, not always the same.

#ifndef SHARD_CORE_COMM_EXCHANGE_H_
#define SHARD_CORE_COMM_EXCHANGE_H_

#include <cstddef>
#include <string_view>

#include "core/base/deadline.h"
#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/comm/host_waits.h"
#include "core/comm/rank_set.h"

namespace shard {

// The tensors of a reduce-scatter over a set of ranks. Both dtypes are f32,
// bf16 or f16.
struct ReduceScatterArgs {
  // A block of `count` elements of `dtype` for each rank of the set. Null: this
  // rank has nothing to add, which stands for zeros.
  const void* send = nullptr;
  // Whether no rank of the world has a null `send`; the same on all ranks.
  // False: a rank may.
  bool all_send = false;
  DType dtype = DType::kF32;
  size_t count = 0;
  // `count` elements of `recv_dtype`: this rank's own block in `send`, with
  // dtypes that are equal, or memory that overlaps no part of `send`.
  void* recv = nullptr;
  DType recv_dtype = DType::kF32;
  // Whether the old value of `recv` is added to the sum.
  bool add = false;
  // The order of the blocks in `send`. With 1, block i is that of the i-th rank
  // of the set. Else the set is cut into so many groups of S consecutive ranks,
  // and the blocks of ranks at the same place in their groups are adjacent: the
  // i-th rank has block (i % S) * block_groups + i / S, as its range in
  // Plan::RangeOf. Divides the number of ranks.
  int block_groups = 1;

  // Returns the number of the block of the `index`-th rank of a set of `ranks`.
  int BlockOf(int index, int ranks) const {
    const int size = ranks / block_groups;
    return index % size * block_groups + index / size;
  }
};

class Exchange {
 public:
  virtual ~Exchange() = default;

  // Sums blocks over the ranks of a set. COLLECTIVE. Element j of `recv`
  // becomes the sum of element j of this rank's block over the set: in rank
  // order, in fp32, rounded once, to nearest, to the dtype of `recv`. An old
  // value is added to that sum before it is rounded. Sent: set.count - 1
  // blocks.
  virtual Status ReduceScatter(std::string_view what, const RankSet& set,
                               const ReduceScatterArgs& args,
                               const Deadline& deadline) = 0;

  // Gathers blocks from the ranks of a set. COLLECTIVE. The `bytes` bytes of
  // the i-th rank of the set become recv[i * bytes, (i + 1) * bytes) on all its
  // ranks. Sent: set.count - 1 times `bytes`. REQUIRES: `send` is its own place
  // in `recv`, or overlaps no part of it.
  virtual Status AllGatherBlocks(std::string_view what, const RankSet& set,
                                 const void* send, size_t bytes, void* recv,
                                 const Deadline& deadline) = 0;

  // Gathers blocks from the ranks of a set as AllGatherBlocks, but into memory
  // that the ranks of a host share (SymmetricKind::kPerHost), once on each
  // host. COLLECTIVE. `recv` gets the blocks in the order of
  // ReduceScatterArgs::block_groups. `send`: this rank's block, of `bytes`
  // bytes, either in its own place in `recv` on all ranks, or apart from it on
  // all. No rank of the host uses from its call on what the call writes there:
  // `recv`, but for the host's own blocks where they are in it. REQUIRES: the
  // ranks of a host that have the same `recv` are in one set.
  virtual Status GatherOnHosts(std::string_view what, const RankSet& set,
                               const void* send, size_t bytes, int block_groups,
                               void* recv, const Deadline& deadline) = 0;

  // Copies `data` of rank `root` to all ranks. COLLECTIVE. Sent: `bytes`,
  // nothing in a world of one rank. REQUIRES: 0 <= root < world size.
  virtual Status Broadcast(std::string_view what, int root, void* data,
                           size_t bytes, const Deadline& deadline) = 0;

  // Returns where this rank counts the collectives that threads of the library
  // were given to run here, never null: a rank with such work is not waited for
  // in vain, whatever its host does.
  virtual HostWaits* host_waits() = 0;
};

}  // namespace shard

#endif  // SHARD_CORE_COMM_EXCHANGE_H_
