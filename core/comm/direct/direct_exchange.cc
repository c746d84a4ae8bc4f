// SPDX-License-Identifier: Apache-2.0

#include "core/comm/direct/direct_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "kernels/cpu/block_sum.h"

namespace shard::direct {

namespace {

// Tiles of a reduce-scatter begin at cache lines.
constexpr size_t kLineElements = 32;
static_assert(kStagingBytes / kExchangeCells.count /
                  (kMaxRanks * sizeof(float)) >=
              kLineElements);

size_t TilesOf(size_t size, size_t tile) {
  return size / tile + (size % tile != 0 ? 1 : 0);
}

// A rank's index in its set, and the number of other ranks in it: none when the
// set does not contain this rank or its blocks have no order, because the first
// round then fails and no peer is read.
struct Place {
  int index = 0;
  size_t peers = 0;
};

Place PlaceIn(const RankSet& set, int block_groups, const Group& group) {
  if (!set.Divides(group.world_size()) || set.IndexOf(group.rank()) < 0 ||
      block_groups < 1 || set.count % block_groups != 0) {
    return {};
  }
  return {set.IndexOf(group.rank()), static_cast<size_t>(set.count) - 1};
}

}  // namespace

DirectExchange::DirectExchange(Group* group, const Link& link,
                               const Hosts& hosts, Observer* observer,
                               Allocator allocate, Entrance enter)
    : group_(group),
      link_(link),
      hosts_(hosts),
      host_(hosts_.HostOf(group->rank())),
      observer_(observer),
      slots_(group->ring().count),
      lead_(slots_ / 2),
      slot_bytes_(kStagingBytes / slots_),
      allocate_(std::move(allocate)),
      enter_(std::move(enter)) {}

std::byte* DirectExchange::Slot(int rank, size_t slot) const {
  return staging_->region(rank) + slot * slot_bytes_;
}

bool DirectExchange::Holds(int rank, Shipments::Part part) const {
  uint32_t holds;
  static_assert(offsetof(Shipments, holds) == 0);
  std::memcpy(&holds, group_->payload(rank, round_), sizeof(holds));
  return (holds & part) != 0;
}

bool DirectExchange::ShipParts(const RankSet& set, int index, size_t stride,
                               size_t bytes) {
  const std::byte* const slot = Slot(group_->rank());
  for (int h = 0; h < hosts_.count(); ++h) {
    if (h == host_) continue;
    const auto [begin, end] = IndicesOn(set, hosts_, h);
    if (begin == end) continue;
    // The parts of a host are neighbours; this rank has none of its own.
    const auto count = static_cast<size_t>(end - begin);
    const auto first = static_cast<size_t>(begin < index ? begin : begin - 1);
    const std::byte* const place = slot + first * stride;
    // Each of the hosts to come needs an entry at least.
    const auto to_come = static_cast<size_t>(hosts_.count() - 1 - h);
    if (bytes == stride ||
        shipments_.count + count + to_come > Shipments::kMost) {
      if (!shipments_.Add(
              {OffsetOf(place), (count - 1) * stride + bytes, h, h + 1})) {
        return false;
      }
      continue;
    }
    for (size_t i = 0; i < count; ++i) {
      if (!shipments_.Add({OffsetOf(place + i * stride), bytes, h, h + 1})) {
        return false;
      }
    }
  }
  return true;
}

bool DirectExchange::ShipSlot(const RankSet& set, size_t bytes) {
  const uint64_t offset = OffsetOf(Slot(group_->rank()));
  for (int h = 0; h < hosts_.count(); ++h) {
    const auto [begin, end] = IndicesOn(set, hosts_, h);
    if (h == host_ || begin == end) continue;
    // Neighbours share an entry: there may be more hosts than entries.
    if (shipments_.count > 0 &&
        shipments_.list[shipments_.count - 1].end_host == h) {
      ++shipments_.list[shipments_.count - 1].end_host;
    } else if (!shipments_.Add({offset, bytes, h, h + 1})) {
      return false;
    }
  }
  return true;
}

Status DirectExchange::Run(const Call& call, size_t tiles, bool staged,
                           size_t sent_bytes,
                           const std::function<bool(size_t tile)>& put,
                           const std::function<void(size_t tile)>& take,
                           const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(enter_(call.what));
  shipments_.Clear();
  // Slots of a collective that failed may be on their way to other hosts.
  if (group_->failed()) {
    return group_->Begin(call, &shipments_, shipments_.bytes(), deadline);
  }
  Deadline link = Deadline::After(0);
  if (!staged || staging_ == nullptr) {
    SHARD_RETURN_IF_ERROR(
        group_->Begin(call, &shipments_, shipments_.bytes(), deadline));
    link = Deadline::After(link_.Seconds(sent_bytes));
  }
  if (!staged) {
    for (size_t t = 0; t < tiles; ++t) take(t);
    return group_->SleepUntil(call, link, deadline);
  }
  if (staging_ == nullptr) {
    // The ranks' calls agree, so all of them allocate.
    SHARD_ASSIGN_OR_RETURN(staging_, allocate_(StrCat(call.what, ": staging"),
                                               kStagingBytes, deadline));
  }
  const size_t first_slot = next_slot_;
  uint64_t first_round = 0;
  size_t posted = 0;
  for (size_t t = 0; t < tiles; ++t) {
    for (; posted < std::min(tiles, t + lead_); ++posted) {
      slot_ = (first_slot + posted) % slots_;
      shipments_.Clear();
      if (!put(posted)) {
        const Status error = Internal("'", call.what, "': ", hosts_.count(),
                                      " hosts need more parts of a tile than "
                                      "a round can name");
        group_->Fail(error);
        return error;
      }
      SHARD_RETURN_IF_ERROR(
          posted == 0
              ? group_->Post(call, &shipments_, shipments_.bytes(), deadline)
              : group_->PostNext(call, &shipments_, shipments_.bytes(),
                                 deadline));
      if (posted == 0) first_round = group_->round();
      const uint64_t shipped = shipments_.BytesFrom(host_);
      if (shipped > 0) observer_->Count(EventId::kShip, shipped);
    }
    round_ = first_round + t;
    SHARD_RETURN_IF_ERROR(group_->Await(call, round_, deadline));
    if (t == 0) {
      SHARD_RETURN_IF_ERROR(group_->CompareCalls(round_));
      link = Deadline::After(link_.Seconds(sent_bytes));
    }
    slot_ = (first_slot + t) % slots_;
    take(t);
  }
  next_slot_ = (first_slot + tiles) % slots_;
  return group_->SleepUntil(call, link, deadline);
}

Status DirectExchange::ReduceScatter(std::string_view what, const RankSet& set,
                                     const ReduceScatterArgs& args,
                                     const Deadline& deadline) {
  Call call{Operation::kReduceScatter, what, args.count, link_.direct};
  call.tensor = {set,
                 0,
                 static_cast<int32_t>(args.dtype),
                 static_cast<int32_t>(args.recv_dtype),
                 args.add ? 1 : 0,
                 args.block_groups};
  const size_t count = args.count;
  const size_t size = DTypeSize(args.dtype);
  const auto* from = static_cast<const std::byte*>(args.send);
  auto* to = static_cast<std::byte*>(args.recv);
  const Place me = PlaceIn(set, args.block_groups, *group_);
  const bool staged = me.peers > 0 && count > 0;
  if (staged && hosts_.count() > 1) {
    const SumShape& shape = ShapeOf(set);
    if (shape.UsesChain(link_.sums, size)) {
      return ReduceOnChain(call, shape, args, deadline);
    }
  }
  // A slot holds a part of the block of each peer, in rank order.
  const size_t tile =
      staged ? slot_bytes_ / (me.peers * size) / kLineElements * kLineElements
             : std::max<size_t>(count, 1);
  // Returns the place, in the slot of the rank with index `owner`, of the data
  // for the rank with index `reader`.
  const auto part = [&](int owner, int reader) {
    const int place = reader < owner ? reader : reader - 1;
    return Slot(set.rank(owner)) + static_cast<size_t>(place) * tile * size;
  };
  const auto block = [&](int index, size_t t) {
    const auto number = static_cast<size_t>(args.BlockOf(index, set.count));
    return from + (number * count + t * tile) * size;
  };
  const auto elements = [&](size_t t) {
    return std::min(count - t * tile, tile);
  };
  std::vector<const void*> sources;
  return Run(
      call, TilesOf(count, tile), staged, me.peers * count * size,
      [&](size_t t) {
        if (from == nullptr) return true;
        shipments_.holds = Shipments::kGradients;
        for (int i = 0; i < set.count; ++i) {
          if (i == me.index) continue;
          std::memcpy(part(me.index, i), block(i, t), elements(t) * size);
        }
        return ShipParts(set, me.index, tile * size, elements(t) * size);
      },
      [&](size_t t) {
        sources.clear();
        for (int i = 0; i < set.count; ++i) {
          if (i == me.index) {
            if (from != nullptr) sources.push_back(block(i, t));
          } else if (Holds(set.rank(i), Shipments::kGradients)) {
            sources.push_back(part(i, me.index));
          }
        }
        SumSources(sources.data(), sources.size(),
                   /*zeros=*/sources.size() <= me.peers, args.dtype,
                   elements(t), to + t * tile * DTypeSize(args.recv_dtype),
                   args.recv_dtype, args.add);
      },
      deadline);
}

Status DirectExchange::AllGatherBlocks(std::string_view what,
                                       const RankSet& set, const void* send,
                                       size_t bytes, void* recv,
                                       const Deadline& deadline) {
  Call call{Operation::kAllGatherBlocks, what, bytes, link_.direct};
  call.tensor.set = set;
  const auto* from = static_cast<const std::byte*>(send);
  auto* to = static_cast<std::byte*>(recv);
  const Place me = PlaceIn(set, 1, *group_);
  if (bytes <= kPayloadBytes) {
    SHARD_RETURN_IF_ERROR(enter_(what));
    SHARD_RETURN_IF_ERROR(group_->Begin(call, from, bytes, deadline));
    const Deadline link = Deadline::After(link_.Seconds(me.peers * bytes));
    for (int i = 0; bytes > 0 && i < set.count; ++i) {
      std::memcpy(to + static_cast<size_t>(i) * bytes,
                  group_->payload(set.rank(i)), bytes);
    }
    return group_->SleepUntil(call, link, deadline);
  }
  const auto length = [&](size_t t) {
    return std::min(bytes - t * slot_bytes_, slot_bytes_);
  };
  return Run(
      call, TilesOf(bytes, slot_bytes_), me.peers > 0, me.peers * bytes,
      [&](size_t t) {
        std::memcpy(Slot(group_->rank()), from + t * slot_bytes_, length(t));
        return ShipSlot(set, length(t));
      },
      [&](size_t t) {
        const std::byte* own = from + t * slot_bytes_;
        for (int i = 0; i < set.count; ++i) {
          std::byte* place =
              to + static_cast<size_t>(i) * bytes + t * slot_bytes_;
          if (i != me.index) {
            std::memcpy(place, Slot(set.rank(i)), length(t));
          } else if (place != own) {
            std::memcpy(place, own, length(t));
          }
        }
      },
      deadline);
}

Status DirectExchange::GatherOnHosts(std::string_view what, const RankSet& set,
                                     const void* send, size_t bytes,
                                     int block_groups, void* recv,
                                     const Deadline& deadline) {
  Call call{Operation::kGatherOnHosts, what, bytes, link_.direct};
  call.tensor.set = set;
  call.tensor.block_groups = block_groups;
  const Place me = PlaceIn(set, block_groups, *group_);
  if (me.peers == 0 && set.count != 1) {
    // An error of all ranks.
    SHARD_RETURN_IF_ERROR(enter_(what));
    return group_->Begin(call, nullptr, 0, deadline);
  }
  const auto* const own = static_cast<const std::byte*>(send);
  const ReduceScatterArgs order = {.block_groups = block_groups};
  const auto block = [&](int index) {
    return static_cast<std::byte*>(recv) +
           static_cast<size_t>(order.BlockOf(index, set.count)) * bytes;
  };
  const bool in_place = own == block(me.index);
  const auto [begin, end] = IndicesOn(set, hosts_, host_);
  // The ranks of a host take turns with the tiles of the blocks.
  const auto copies = [&, here = begin, ranks = end - begin](int index,
                                                             size_t t) {
    if (in_place && here <= index && index < here + ranks) return false;
    const auto turn =
        (static_cast<size_t>(index) + t) % static_cast<size_t>(ranks);
    return turn == static_cast<size_t>(me.index - here);
  };
  const bool is_there = in_place && hosts_.count() == 1;
  if (bytes <= kPayloadBytes || is_there) {
    SHARD_RETURN_IF_ERROR(enter_(what));
    shipments_.Clear();
    SHARD_RETURN_IF_ERROR(
        bytes <= kPayloadBytes
            ? group_->Begin(call, own, bytes, deadline)
            : group_->Begin(call, &shipments_, shipments_.bytes(), deadline));
    for (int i = 0; bytes > 0 && i < set.count; ++i) {
      if (copies(i, 0)) {
        std::memcpy(block(i), group_->payload(set.rank(i)), bytes);
      }
    }
  } else {
    const auto length = [&](size_t t) {
      return std::min(bytes - t * slot_bytes_, slot_bytes_);
    };
    SHARD_RETURN_IF_ERROR(Run(
        call, TilesOf(bytes, slot_bytes_), /*staged=*/true, /*sent_bytes=*/0,
        [&](size_t t) {
          std::memcpy(Slot(group_->rank()), own + t * slot_bytes_, length(t));
          return ShipSlot(set, length(t));
        },
        [&](size_t t) {
          for (int i = 0; i < set.count; ++i) {
            if (!copies(i, t)) continue;
            std::memcpy(block(i) + t * slot_bytes_, Slot(set.rank(i)),
                        length(t));
          }
        },
        deadline));
  }
  if (is_there) return Status();
  shipments_.Clear();
  return group_->Continue(call, &shipments_, shipments_.bytes(), deadline);
}

Status DirectExchange::Broadcast(std::string_view what, int root, void* data,
                                 size_t bytes, const Deadline& deadline) {
  Call call{Operation::kBroadcast, what, bytes, link_.direct};
  call.tensor.root = root;
  auto* at = static_cast<std::byte*>(data);
  const bool alone = group_->world_size() == 1;
  const bool is_root = group_->rank() == root;
  const auto length = [&](size_t t) {
    return std::min(bytes - t * slot_bytes_, slot_bytes_);
  };
  return Run(
      call, alone ? 0 : TilesOf(bytes, slot_bytes_), !alone && bytes > 0,
      alone ? 0 : bytes,
      [&](size_t t) {
        if (!is_root) return true;
        std::memcpy(Slot(root), at + t * slot_bytes_, length(t));
        return ShipSlot(RankSet::All(group_->world_size()), length(t));
      },
      [&](size_t t) {
        if (is_root) return;
        std::memcpy(at + t * slot_bytes_, Slot(root), length(t));
      },
      deadline);
}

}  // namespace shard::direct
