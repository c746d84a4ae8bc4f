// SPDX-License-Identifier: Apache-2.0
//
// DirectExchange: the Exchange of ranks that share memory, for callers whose
// tensors lie in private memory.
//
// Each rank has a staging region that all ranks see, cut into as many slots as
// the Group has cells, n. A collective goes tile by tile: each rank copies a
// tile for its peers into a slot and enters a round of the Group, and once all
// ranks have entered it, every rank reads its part from its peers' slots. So a
// tile costs one round.
//
// A rank enters the rounds of n / 2 tiles before it reads the first of them:
// the next tile is on its way to other hosts while the ranks sum this one. It
// enters round s when it has read the tile of round s - n / 2; where all ranks
// have entered s, they have done so. A rank that writes slot s % n again, for
// round s + n, has seen that all have entered s + n / 2, and so read tile s.
// The same holds for the cells.
//
// Blocks to gather that fit into a round's cell go with the round itself.
//
// Where ranks are on several hosts, each host has a staging region of every
// rank. A rank lists in the round's cell which parts of its slot other hosts
// need (shipments.h): a reduce-scatter ships a rank's blocks to the hosts of
// their owners, or sums of blocks from host to host (host_chain.h), whichever
// is less (Link::sums); an all-gather and a broadcast ship a tile once to each
// host.
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
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/comm/direct/group.h"
#include "core/comm/direct/host_chain.h"
#include "core/comm/direct/hosts.h"
#include "core/comm/direct/link.h"
#include "core/comm/direct/shipments.h"
#include "core/comm/exchange.h"
#include "core/observe/observer.h"

namespace shard::direct {

// Bytes of a staging region. A slot of a half or a quarter is large enough that
// the cost of a round (some us) is small; the regions of some ranks stay in the
// L3 cache.
inline constexpr size_t kStagingBytes = size_t{2} << 20;

class DirectExchange final : public Exchange {
 public:
  // Gives every rank a region of its own that all ranks see. COLLECTIVE.
  using Allocator = std::function<StatusOr<std::shared_ptr<SymmetricBuffer>>(
      std::string_view what, size_t bytes, const Deadline& deadline)>;
  // Called at the entry of each collective; returns why there are none any
  // more.
  using Entrance = std::function<Status(std::string_view what)>;

  // `observer` counts the bytes that this rank ships to other hosts
  // (EventId::kShip) when the rank enters their round: those of a collective
  // that fails, too, though they may never leave. Both pointers must outlive
  // this.
  DirectExchange(Group* group, const Link& link, const Hosts& hosts,
                 Observer* observer, Allocator allocate, Entrance enter);

  // In a set of n ranks.

  // A tile is a slot. Rounds: one per tile / (n - 1) bytes of a block, at least
  // one. Bytes per rank: reads n - 1 blocks and writes them to staging, then
  // reads n blocks and writes one. A null `send` is neither written nor read.
  // Sums on a chain take more rounds of smaller tiles: chained_sums.cc.
  Status ReduceScatter(std::string_view what, const RankSet& set,
                       const ReduceScatterArgs& args,
                       const Deadline& deadline) override;

  // Rounds: one per tile of `bytes`, at least one. Bytes per rank: reads
  // `bytes` and writes them to staging, or to a cell where they are no more
  // than kPayloadBytes; then reads and writes n times as many.
  Status AllGatherBlocks(std::string_view what, const RankSet& set,
                         const void* send, size_t bytes, void* recv,
                         const Deadline& deadline) override;

  // Rounds: as AllGatherBlocks, and one more where there are other hosts: after
  // it, all ranks of this host have copied what they copy. Bytes per rank, with
  // k ranks of the set on its host: reads its block and writes it to staging;
  // then reads and writes 1 / k of the blocks, but for those that are in place.
  Status GatherOnHosts(std::string_view what, const RankSet& set,
                       const void* send, size_t bytes, int block_groups,
                       void* recv, const Deadline& deadline) override;

  // Rounds: one per tile of `bytes`, at least one. Reads and writes
  // `bytes` on every rank.
  Status Broadcast(std::string_view what, int root, void* data, size_t bytes,
                   const Deadline& deadline) override;

  HostWaits* host_waits() override { return &group_->host_waits(); }

 private:
  // Runs a collective of so many tiles: `put` copies a tile into this rank's
  // slot, and returns false when it cannot ship it; `take` reads it from the
  // peers' slots; then waits for the link's time. Without `staged` no data goes
  // through staging. REQUIRES: `call`, `tiles` and `staged` are the same on all
  // ranks whenever the call is.
  Status Run(const Call& call, size_t tiles, bool staged, size_t sent_bytes,
             const std::function<bool(size_t tile)>& put,
             const std::function<void(size_t tile)>& take,
             const Deadline& deadline);

  // Runs a reduce-scatter whose sums pass along a chain. REQUIRES: the set is
  // this rank's, one of those that divide the world, of which some are on
  // several hosts.
  Status ReduceOnChain(const Call& call, const SumShape& shape,
                       const ReduceScatterArgs& args, const Deadline& deadline);
  class ChainedSum;  // One such reduce-scatter.
  // Returns the SumShape of sets of that stride and count.
  const SumShape& ShapeOf(const RankSet& set);

  // Return a slot of `rank`, by default that for the tile that is put or taken,
  // and whether that of round_ holds a part. REQUIRES: within a staged Run.
  std::byte* Slot(int rank, size_t slot) const;
  std::byte* Slot(int rank) const { return Slot(rank, slot_); }
  bool Holds(int rank, Shipments::Part part) const;

  // Adds the parts of this rank's slot for the ranks of other hosts to the
  // shipments. The slot has a part for each rank of the set but this one, whose
  // index is `index`, of `stride` bytes, the first `bytes` of them in use.
  // Returns false when the shipments have no room, with more than kMaxHosts.
  bool ShipParts(const RankSet& set, int index, size_t stride, size_t bytes);
  // Adds the first `bytes` of this rank's slot, for the hosts of a set's ranks,
  // likewise.
  bool ShipSlot(const RankSet& set, size_t bytes);
  uint64_t OffsetOf(const std::byte* place) const {
    return static_cast<uint64_t>(place - staging_->region(0));
  }

  Group* const group_;
  const Link link_;
  const Hosts hosts_;
  const int host_;  // Of this rank.
  Observer* const observer_;
  const size_t slots_;
  const size_t
      lead_;  // The rounds of tiles that are entered before one is read.
  const size_t slot_bytes_;
  const Allocator allocate_;
  const Entrance enter_;
  std::shared_ptr<SymmetricBuffer> staging_;
  // The numbers below are the same on all ranks between collectives.
  size_t next_slot_ = 0;  // Of the next collective's first tile.
  size_t slot_ = 0;       // Of the tile that is put or taken.
  uint64_t round_ = 0;    // Of the tile that is taken, or was taken last.
  Shipments shipments_;   // Of the tile that is put.
  // By stride and count.
  std::vector<std::pair<std::pair<int, int>, SumShape>> shapes_;
};

}  // namespace shard::direct

#endif  // SHARD_CORE_COMM_DIRECT_DIRECT_EXCHANGE_H_
