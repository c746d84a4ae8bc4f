// SPDX-License-Identifier: Apache-2.0
//
// Communicator: a fixed group of ranks that meet, agree, exchange control data,
// and share memory where they can. Tensors are moved beside it, by an Exchange
// (core/comm/exchange.h) or, in the order of streams, by Collectives
// (core/collectives/collectives.h).
//
// Every call marked COLLECTIVE must be made by all ranks in the same order.
// Each carries a fingerprint of the call (operation, sizes, dtypes, sequence
// number). Where ranks make different calls, all of them get kDesync, with the
// two calls and the first differing rank in the message, and never hang.
//
// Failure is sticky. After a lost rank, a passed deadline or an Abort, every
// rank's current and later collective returns the same code: kRankLost stays
// kRankLost with the same rank, any other error is returned as kPoisoned with
// the first error in its message. Nothing is retried; the host closes the
// communicator and opens another one.
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
#include "core/base/status.h"
#include "core/comm/host_waits.h"
#include "core/comm/notices.h"
#include "core/observe/observer.h"
#include "core/observe/settings.h"

namespace shard {

// The regions of memory that all ranks allocate together, of the same size on
// every rank.
//
// kPerRank: each rank has a region of its own, and sees its peers' regions.
// kPerHost: one region for all ranks that share a host. Ranks on several hosts
// have one on each.
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

  // Returns the bytes of one region, as requested.
  virtual size_t size() const = 0;

  // Returns the region of `rank` in this process's address space. For kPerHost
  // every rank has the same region. REQUIRES: 0 <= rank < world size.
  virtual std::byte* region(int rank) const = 0;

  // Returns the bytes of the machine that this rank's region takes, page
  // rounding included; for kPerHost, the first rank of the host returns all
  // bytes and its other ranks 0.
  virtual size_t resident_bytes() const = 0;
};

class Exchange;

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // Return this rank's number among the ranks of its host, and the number of
  // ranks there.
  virtual int local_rank() const { return rank(); }
  virtual int local_world_size() const { return world_size(); }

  // Returns whether peers' SymmetricBuffer regions are directly addressable. If
  // not, there are none of kPerRank, and tensors are moved by an Exchange.
  virtual bool direct() const = 0;

  // Returns whether the ranks of each host share regions of kPerHost, the same
  // on all ranks: also on several hosts, where some host has several ranks.
  virtual bool shares_host() const { return direct(); }

  // Returns one line for people: "shm:job-17 rank 1 of 2 (from SHARD_*
  // variables)".
  virtual std::string Describe() const = 0;

  // Returns what records the events of this rank: the same observer for a
  // communicator and its duplicates, never null.
  virtual Observer* observer() const = 0;

  // Returns the default of a wait in seconds, when the host gives none.
  virtual double timeout() const = 0;

  // Returns where this rank publishes what its host waits for, never null.
  // Ranks whose hosts wait for each other, each in a communicator of one family
  // (Duplicate), get kDesync with the names of both calls, instead of waiting
  // for their deadlines.
  virtual HostWaits* host_waits() = 0;

  // Waits until every rank has entered. COLLECTIVE. Writes to symmetric memory
  // before the barrier are visible to all ranks after it. `what` names the
  // phase in errors and must be the same on all ranks, such as "step: gradients
  // ready".
  virtual Status Barrier(std::string_view what, const Deadline& deadline) = 0;

  // Gathers `bytes` bytes (the same on every rank, any size) of every rank, in
  // rank order, into `recv` of world_size * bytes. COLLECTIVE, and also a
  // barrier. Meant for control data, not for tensors.
  virtual Status AllGather(std::string_view what, const void* send,
                           size_t bytes, void* recv,
                           const Deadline& deadline) = 0;

  // Allocates symmetric memory. COLLECTIVE. `bytes` must be the same on every
  // rank; 0 is allowed. kResourceExhausted on all ranks when one of them does
  // not have enough memory; kUnimplemented on all ranks where direct() is
  // false, for kPerHost where shares_host() is.
  virtual StatusOr<std::shared_ptr<SymmetricBuffer>> Allocate(
      std::string_view what, size_t bytes, SymmetricKind kind,
      const Deadline& deadline) = 0;

  // Copies `data`, memory of the host, of rank `root` to all ranks. COLLECTIVE.
  // Works whatever direct() returns. REQUIRES: 0 <= root < world size.
  virtual Status Broadcast(std::string_view what, int root, void* data,
                           size_t bytes, const Deadline& deadline) = 0;

  // Makes another communicator over the same ranks, with a sequence of
  // collectives of its own: an engine's thread works on it, while the host uses
  // this one in an order of its own. COLLECTIVE. `what` names it in Describe.
  // Rank, timeout, observer, phase_hook and link are this one's; the hook is
  // called by either thread. direct() and shares_host() of the duplicate are
  // true where they are here and `direct` is true, which is the same on all
  // ranks.
  //
  // A family is a communicator, its duplicates, exchanges and notices, and
  // theirs. An error that ends one of a family (a lost rank, a passed deadline,
  // a desync, an Abort) ends all, with the same code and rank; a wait in
  // progress ends after 50 ms at most. When two of a family fail at once, each
  // keeps its own first error.
  //
  // The communicators of a family can be freed in any order. A rank leaves, and
  // is lost without Shutdown, when it frees its last one of the family; until
  // then, a peer in a collective of a communicator that is freed here waits for
  // its deadline.
  //
  // Shutdown of a duplicate ends it alone. Shutdown of the first, the one that
  // was opened, ends all: collectives of a duplicate, also one in progress,
  // then return kFailedPrecondition, and its Shutdown OK.
  virtual StatusOr<std::shared_ptr<Communicator>> Duplicate(
      std::string_view what, bool direct, const Deadline& deadline) = 0;

  // Opens an exchange of tensors between the ranks, of the same family as this
  // communicator. COLLECTIVE. `what` names the exchange in errors. The
  // phase_hook is called by whichever thread drives it.
  virtual StatusOr<std::shared_ptr<Exchange>> OpenExchange(
      std::string_view what, const Deadline& deadline) = 0;

  // Opens notices of `bytes` bytes over the same ranks, with a sequence of
  // their own. COLLECTIVE. `what` names a notice in errors. Works whatever
  // direct() returns. kResourceExhausted on all ranks when one of them does not
  // have enough memory. REQUIRES: 0 < bytes <= 8192.
  virtual StatusOr<std::unique_ptr<Notices>> OpenNotices(
      std::string_view what, size_t bytes, const Deadline& deadline) = 0;

  // Ends the group: peers waiting now or later return kPoisoned with `reason`.
  // Any thread. Local and idempotent: the first reason stays.
  virtual void Abort(const Status& reason) = 0;

  // As Abort, but does not call the host's log function: for threads of the
  // library for which others wait, as that function may wait for a lock of the
  // host's. The end is logged by a later Abort, or when the communicator is
  // freed.
  virtual void AbortUnlogged(const Status& reason) { Abort(reason); }

  // Ends the communicator: a last barrier, after which a peer that leaves is
  // not lost. COLLECTIVE. Without Shutdown, freeing a Communicator is a lost
  // rank to the others.
  virtual Status Shutdown(const Deadline& deadline) = 0;
};

// The options with which a host opens a communicator.
struct CommOptions {
  int rank = -1;        // -1: from the URL or the environment.
  int world_size = 0;   // 0: from the URL or the environment.
  double timeout = 60;  // Seconds to meet, and the default of every wait.
  Logger logger;
  // The log, trace and metrics of this rank. The environment's settings, which
  // are read when the communicator is opened, override these.
  ObserverSettings observe;
  // Made by OpenCommunicator, from the two above.
  std::shared_ptr<Observer> observer = nullptr;

  // Called at the entry of every collective with its `what`; for tests that
  // kill a rank at a named phase. Not reachable through the C ABI.
  std::function<void(std::string_view what)> phase_hook;

  // Publish a wait and look for deadlocks at once, and not only after the wait
  // has lasted 100 ms; for tests. Not reachable through the C ABI.
  bool find_deadlocks_at_once = false;
};

// Opens a communicator and meets the other ranks. COLLECTIVE. URLs (grammar:
// core/base/spec.h):
//   local:            one rank, this one
//   threads:N         N threads of this process; ?name=x keeps groups apart.
//                     A name is of one group, whatever N its ranks say: two
//                     that differ are kInvalidArgument on all. Without a name,
//                     groups of different N are different groups.
//   shm:NAME          processes of this host and user that give the same NAME
//   env:              rank, size and rendezvous point from the environment
// `?timeout=SECONDS` overrides CommOptions::timeout on all of them.
//
// `?direct=0` on all of them: the ranks act as if they shared no memory.
// direct() is false, and tensors move through an Exchange, which is how ranks
// on several hosts do it. A slow link between the ranks is simulated with
// `delay=SECONDS` and `bandwidth=BYTES_PER_SECOND` (0: none): once all ranks
// have entered it, a collective of an Exchange, or a Broadcast, takes at least
// delay + bytes sent per rank / bandwidth. Every rank should give the same
// values.
//
// The ranks open their trace and metrics once they have met, and agree on the
// errors: a file that one of them cannot open is the error of all.
StatusOr<std::shared_ptr<Communicator>> OpenCommunicator(
    std::string_view url, const CommOptions& options);

// Sums one double per element over the ranks, in rank order, so that every rank
// holds the same bits. COLLECTIVE.
Status AllReduceSum(Communicator* comm, std::string_view what, double* values,
                    size_t count, const Deadline& deadline);

// Turns a local result into a common one. COLLECTIVE. Returns OK when every
// rank's `local` is OK; else, on every rank, the code and message of the lowest
// rank that failed, with that rank in the message and in Status::rank().
Status AgreeOnStatus(Communicator* comm, std::string_view what,
                     const Status& local, const Deadline& deadline);

}  // namespace shard

#endif  // SHARD_CORE_COMM_COMMUNICATOR_H_
