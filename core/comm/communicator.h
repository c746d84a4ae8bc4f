// SPDX-License-Identifier: Apache-2.0
//
// Communicator: a fixed group of ranks that meet, agree, share memory where
// they can, and move tensors where they cannot.
//
// Every call marked COLLECTIVE must be made by all ranks in the same order.
// Each carries a fingerprint of what is called (operation, sizes, dtypes,
// sequence number); ranks that call different things get kDesync, all of them,
// with the two calls and the first differing rank in the message, and never a
// hang.
//
// Failure is sticky. After a lost rank, a passed deadline or an Abort, every
// rank's current and later collective returns the same code: kRankLost stays
// kRankLost with the same rank, anything else comes back as kPoisoned with the
// first error in its message. Nothing is retried; the host closes and reopens.
//
// Threads: one thread at a time drives the collectives of one Communicator, not
// always the same; Abort, rank, world_size and Describe may be called from any
// thread. A communicator and its duplicates may be driven at the same time,
// each by a thread of its own.

#ifndef SHARD_CORE_COMM_COMMUNICATOR_H_
#define SHARD_CORE_COMM_COMMUNICATOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/dtype.h"
#include "core/base/logging.h"
#include "core/base/status.h"

namespace shard {

// Memory that all ranks allocate together, the same size on every rank.
//
// kPerRank: each rank has a region of its own, and sees its peers' regions.
// kPerHost: one region for all ranks that share a host.
//
// Regions are zero-filled, aligned to kSymmetricAlignment, and stay mapped
// until the last reference on this rank is gone; freeing is local. A buffer
// may outlive its Communicator.
enum class SymmetricKind : int32_t { kPerRank = 1, kPerHost = 2 };

// One page, so that no two regions share a page or a cache line.
inline constexpr size_t kSymmetricAlignment = 4096;

class SymmetricBuffer {
 public:
  virtual ~SymmetricBuffer() = default;

  // Bytes of one region, as asked for.
  virtual size_t size() const = 0;

  // The region of `rank` as this process sees it. For kPerHost every rank has
  // the same region. REQUIRES: 0 <= rank < world size.
  virtual std::byte* region(int rank) const = 0;

  // Bytes this rank's region costs the machine, page rounding included; of a
  // kPerHost region, rank 0 reports all and the other ranks 0.
  virtual size_t resident_bytes() const = 0;
};

// Which ranks exchange tensors with each other: first, first + stride, ...,
// `count` of them. A collective cuts the whole world into sets of one stride
// and count, and every rank names its own: with stride 1 they are neighbours
// (shard groups), else they lie across such groups (replicas).
struct RankSet {
  int first = 0;
  int stride = 1;
  int count = 1;

  static RankSet All(int world_size) { return {0, 1, world_size}; }

  // The set of that stride and count with `rank` in it.
  static RankSet Of(int rank, int stride, int count) {
    return {rank - rank / stride % count * stride, stride, count};
  }

  // Its `index`-th rank.
  int rank(int index) const { return first + index * stride; }

  // The index of `rank`, -1 when it is not in the set. REQUIRES: stride > 0.
  int IndexOf(int rank) const {
    const int64_t steps = (int64_t{rank} - first) / stride;
    return rank >= first && steps < count && first + steps * stride == rank
               ? static_cast<int>(steps)
               : -1;
  }

  // Whether it is one of the sets that stride and count cut such a world into.
  // Their product divides the world size; alone, a rank has any stride.
  bool Divides(int world_size) const {
    if (first < 0 || first >= world_size || stride < 1 || count < 1) {
      return false;
    }
    const int64_t span = int64_t{stride} * count;
    return count == 1 || (world_size % span == 0 && first % span < stride);
  }
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // True when peers' SymmetricBuffer regions are directly addressable. Without,
  // Allocate fails, and tensors go through the tensor collectives.
  virtual bool direct() const = 0;

  // One line for people: "shm:job-17 rank 1 of 2 (from SHARD_* variables)".
  virtual std::string Describe() const = 0;

  virtual const Logger& logger() const = 0;

  // Seconds, the default of a wait when the host gives none.
  virtual double timeout() const = 0;

  // COLLECTIVE. Returns once every rank has entered; what a rank wrote to
  // symmetric memory before is visible to all after. `what` names the phase in
  // errors and must be the same on all ranks, such as "step: gradients ready".
  virtual Status Barrier(std::string_view what, const Deadline& deadline) = 0;

  // COLLECTIVE. Gathers `bytes` bytes (the same on every rank, any size) of
  // every rank, in rank order, into `recv` of world_size * bytes. Meant for
  // control data, not for tensors. It is also a barrier.
  virtual Status AllGather(std::string_view what, const void* send,
                           size_t bytes, void* recv,
                           const Deadline& deadline) = 0;

  // COLLECTIVE. `bytes` must be the same on every rank; 0 is allowed.
  // kResourceExhausted on all ranks when one of them has not enough memory;
  // kUnimplemented on all ranks where direct() is false.
  virtual StatusOr<std::shared_ptr<SymmetricBuffer>> Allocate(
      std::string_view what, size_t bytes, SymmetricKind kind,
      const Deadline& deadline) = 0;

  // The tensor collectives. Every rank of the world takes part, each with the
  // ranks of its own set. They work whatever direct() says. "Sent" is what a
  // ring would send per rank.

  // COLLECTIVE. `send` holds set.count blocks of `count` elements of `dtype`,
  // block i for the i-th rank of the set. Element j of `recv` becomes the sum
  // of element j of this rank's block over the set: in rank order, in fp32,
  // rounded once, to nearest, to `recv_dtype`. With `add` the old value of
  // recv[j] is added to that sum before it is rounded. A rank that has nothing
  // to add gives nullptr, which stands for zeros, whatever its peers give.
  // Sent: set.count - 1 blocks.
  // REQUIRES: both dtypes are f32, bf16 or f16. `recv` is this rank's own block
  // in `send`, with dtypes that are equal, or overlaps no part of `send`.
  virtual Status ReduceScatter(std::string_view what, const RankSet& set,
                               const void* send, DType dtype, size_t count,
                               void* recv, DType recv_dtype, bool add,
                               const Deadline& deadline) = 0;

  // COLLECTIVE. The `bytes` bytes of the i-th rank of the set become
  // recv[i * bytes, (i + 1) * bytes) on all its ranks. Sent: set.count - 1
  // times `bytes`. REQUIRES: `send` is its own place in `recv`, or overlaps no
  // part of it.
  virtual Status AllGatherBlocks(std::string_view what, const RankSet& set,
                                 const void* send, size_t bytes, void* recv,
                                 const Deadline& deadline) = 0;

  // COLLECTIVE. Rank `root`'s `data` becomes everyone's. Sent: `bytes`, nothing
  // in a world of one rank. REQUIRES: 0 <= root < world size.
  virtual Status Broadcast(std::string_view what, int root, void* data,
                           size_t bytes, const Deadline& deadline) = 0;

  // COLLECTIVE. Another communicator over the same ranks, with a sequence of
  // collectives of its own: an engine's thread works on it, while the host goes
  // on with this one in an order of its own. `what` names it in Describe. Rank,
  // direct(), timeout, logger, phase_hook and link are this one's; the hook is
  // called by either thread.
  //
  // All of a family, a communicator and its duplicates and theirs, live and die
  // together. What ends one (a lost rank, a passed deadline, a desync, an
  // Abort) ends all, with that code and rank, in a wait that is going on after
  // 50 ms at most. When two of them fail at once, each keeps its own first
  // error.
  //
  // They can be freed in any order. A rank leaves, and is lost without
  // Shutdown, when the last that it has of the family is freed; until then a
  // peer in a collective of one that is freed here waits for its deadline.
  //
  // Shutdown of a duplicate ends it alone. Shutdown of the first, the one that
  // was opened, ends all: a duplicate's collectives, one that is going on too,
  // then return kFailedPrecondition, its Shutdown OK.
  virtual StatusOr<std::shared_ptr<Communicator>> Duplicate(
      std::string_view what, const Deadline& deadline) = 0;

  // Ends the group: peers waiting now or later return kPoisoned with `reason`.
  // Any thread. Local and idempotent: the first reason stays.
  virtual void Abort(const Status& reason) = 0;

  // COLLECTIVE. A last barrier, after which a peer that leaves is not lost.
  // Without it, freeing a Communicator looks like a lost rank to the others.
  virtual Status Shutdown(const Deadline& deadline) = 0;
};

// What a host says when it opens a communicator.
struct CommOptions {
  int rank = -1;        // -1: from the URL or the environment.
  int world_size = 0;   // 0: from the URL or the environment.
  double timeout = 60;  // Seconds to meet, and the default of every wait.
  Logger logger;

  // Called at the entry of every collective with its `what`; for tests that
  // kill a rank at a named phase. Not reachable through the C ABI.
  std::function<void(std::string_view what)> phase_hook;
};

// COLLECTIVE. Meets the other ranks. URLs (grammar: core/base/spec.h):
//   local:            one rank, this one
//   threads:N         N threads of this process; ?name=x keeps groups apart.
//                     A name is of one group, whatever N its ranks say: two
//                     that differ are kInvalidArgument on all. Without a name,
//                     groups of different N are different groups.
//   shm:NAME          processes of this host and user that give the same NAME
//   env:              rank, size and meeting point from the environment
// `?timeout=SECONDS` overrides CommOptions::timeout on all of them.
//
// `?direct=0` on all of them: the ranks act as if they shared no memory.
// direct() is false, and tensors move through the tensor collectives, which is
// how ranks on several hosts do it. A slow link between them is simulated with
// `delay=SECONDS` and `bandwidth=BYTES_PER_SECOND` (0: none): from the moment
// when all ranks have entered it, a tensor collective takes at least
// delay + bytes sent per rank / bandwidth. Every rank should give the same.
StatusOr<std::shared_ptr<Communicator>> OpenCommunicator(
    std::string_view url, const CommOptions& options);

// COLLECTIVE. Sums one double per element over the ranks, in rank order, so
// that every rank holds the same bits.
Status AllReduceSum(Communicator* comm, std::string_view what, double* values,
                    size_t count, const Deadline& deadline);

// COLLECTIVE. Turns a local result into a common one: OK when every rank's
// `local` is OK; else, on every rank, the code and message of the lowest rank
// that failed, with that rank in the message and in Status::rank().
Status AgreeOnStatus(Communicator* comm, std::string_view what,
                     const Status& local, const Deadline& deadline);

}  // namespace shard

#endif  // SHARD_CORE_COMM_COMMUNICATOR_H_
