// SPDX-License-Identifier: Apache-2.0
//
// Liveness: tells a waiting rank whether a peer can still arrive.
//
// Thread-safe: a communicator and its duplicates share one.

#ifndef SHARD_CORE_COMM_DIRECT_LIVENESS_H_
#define SHARD_CORE_COMM_DIRECT_LIVENESS_H_

#include <string>

namespace shard::direct {

class Liveness {
 public:
  virtual ~Liveness() = default;

  // Returns whether `rank` is known to be dead. Does not block.
  virtual bool IsDead(int rank) const = 0;

  // Returns the rank that errors name for one that IsDead: another one where
  // `rank` only cannot be reached.
  virtual int NamedForDead(int rank) const { return rank; }
  // Returns what is known of a dead rank, to follow that name in errors.
  virtual std::string HowDead(int) const { return " died or was killed"; }
  // Returns the rank that is named where the whole host of `rank` is lost: the
  // host's first one.
  virtual int FirstOfHost(int rank) const { return rank; }

  // Returns the name of a rank in errors, such as "rank 2 (process 4711)".
  virtual std::string Name(int rank) const = 0;
};

}  // namespace shard::direct

#endif  // SHARD_CORE_COMM_DIRECT_LIVENESS_H_
