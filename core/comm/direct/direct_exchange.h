// SPDX-License-Identifier: Apache-2.0
//
// DirectExchange: the Exchange of ranks that share memory, for callers whose
// tensors lie in private memory.
//
// Each rank has a staging region of two halves that all ranks see. A collective
// goes tile by tile: each rank copies a tile for its peers into one half, a
// round of the Group waits until all have done so, and every rank reads its
// part from its peers' halves. The next tile, of this collective or the next,
// uses the other half: a rank that writes a half again has passed the round in
// between, which the readers entered when they were done. So a tile costs one
// round.
//
// Blocks to gather that fit into a round's cell go with the round itself.
//
// The staging regions, kStagingBytes per rank, are allocated by the first
// collective that needs them, and stay allocated. They belong to the exchange:
// no plan of an engine's memory counts them.

#ifndef SHARD_CORE_COMM_DIRECT_DIRECT_EXCHANGE_H_
#define SHARD_CORE_COMM_DIRECT_DIRECT_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/comm/direct/group.h"
#include "core/comm/direct/link.h"
#include "core/comm/exchange.h"

namespace shard::direct {

// Bytes of a tile: large enough that the cost of a round (some us) is small,
// small enough that two halves of some ranks stay in the L3 cache.
inline constexpr size_t kTileBytes = size_t{1} << 20;
// Bytes of a staging region: the halves, then a line for each that says whether
// the half holds data.
inline constexpr size_t kStagingBytes = 2 * kTileBytes + 2 * kLine;

class DirectExchange final : public Exchange {
 public:
  // Gives every rank a region of its own that all ranks see. COLLECTIVE.
  using Allocator = std::function<StatusOr<std::shared_ptr<SymmetricBuffer>>(
      std::string_view what, size_t bytes, const Deadline& deadline)>;
  // Called at the entry of each collective; returns why there are none any
  // more.
  using Entrance = std::function<Status(std::string_view what)>;

  // `group` must outlive this.
  DirectExchange(Group* group, const Link& link, Allocator allocate,
                 Entrance enter);

  // In a set of n ranks.

  // Rounds: one per kTileBytes / (n - 1) bytes of a block, at least one. Bytes
  // per rank: reads n - 1 blocks and writes them to staging, then reads n
  // blocks and writes one. A null `send` is neither written nor read.
  Status ReduceScatter(std::string_view what, const RankSet& set,
                       const ReduceScatterArgs& args,
                       const Deadline& deadline) override;

  // Rounds: one per kTileBytes of `bytes`, at least one. Bytes per rank: reads
  // `bytes` and writes them to staging, or to a cell where they are no more
  // than kPayloadBytes; then reads and writes n times as many.
  Status AllGatherBlocks(std::string_view what, const RankSet& set,
                         const void* send, size_t bytes, void* recv,
                         const Deadline& deadline) override;

  // Rounds: one per kTileBytes of `bytes`, at least one. Reads and writes
  // `bytes` on every rank.
  Status Broadcast(std::string_view what, int root, void* data, size_t bytes,
                   const Deadline& deadline) override;

  HostWaits* host_waits() override { return &group_->host_waits(); }

 private:
  // Runs a collective of so many tiles: `put` copies a tile into this rank's
  // half, `take` reads it from the peers' halves; then waits for the link's
  // time. Without `staged` no data goes through staging. REQUIRES: `call`,
  // `tiles` and `staged` are the same on all ranks whenever the call is.
  Status Run(const Call& call, size_t tiles, bool staged, size_t sent_bytes,
             const std::function<void(size_t tile)>& put,
             const std::function<void(size_t tile)>& take,
             const Deadline& deadline);

  // Returns the half of `rank` for the current tile. REQUIRES: within a staged
  // Run.
  std::byte* Half(int rank) const;
  // Returns the flag that says whether that half of a reduce-scatter holds
  // data; without, it stands for zeros.
  uint8_t* HasData(int rank) const;

  Group* const group_;
  const Link link_;
  const Allocator allocate_;
  const Entrance enter_;
  std::shared_ptr<SymmetricBuffer> staging_;
  size_t half_ = 0;  // 0 or 1; the same on all ranks between rounds.
};

}  // namespace shard::direct

#endif  // SHARD_CORE_COMM_DIRECT_DIRECT_EXCHANGE_H_
