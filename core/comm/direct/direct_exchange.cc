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
static_assert(kTileBytes / (kMaxRanks * sizeof(float)) >= kLineElements);

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
                               Allocator allocate, Entrance enter)
    : group_(group),
      link_(link),
      allocate_(std::move(allocate)),
      enter_(std::move(enter)) {}

std::byte* DirectExchange::Half(int rank) const {
  return staging_->region(rank) + half_ * kTileBytes;
}

uint8_t* DirectExchange::HasData(int rank) const {
  return reinterpret_cast<uint8_t*>(staging_->region(rank) + 2 * kTileBytes +
                                    half_ * kLine);
}

Status DirectExchange::Run(const Call& call, size_t tiles, bool staged,
                           size_t sent_bytes,
                           const std::function<void(size_t tile)>& put,
                           const std::function<void(size_t tile)>& take,
                           const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(enter_(call.what));
  // The first round compares the calls and carries a tile. Where staging is not
  // allocated yet, the allocation comes in between, for calls that agree.
  const bool carries = staged && staging_ != nullptr;
  if (carries) put(0);
  SHARD_RETURN_IF_ERROR(group_->Begin(call, nullptr, 0, deadline));
  const Deadline link = Deadline::After(link_.Seconds(sent_bytes));
  if (staged && !carries) {
    SHARD_ASSIGN_OR_RETURN(staging_, allocate_(StrCat(call.what, ": staging"),
                                               kStagingBytes, deadline));
    put(0);
    // The allocation has made calls of its own, so this call begins anew.
    SHARD_RETURN_IF_ERROR(group_->Begin(call, nullptr, 0, deadline));
  }
  for (size_t t = 0; t < tiles; ++t) {
    if (staged && t > 0) {
      put(t);
      SHARD_RETURN_IF_ERROR(group_->Continue(call, nullptr, 0, deadline));
    }
    take(t);
    if (staged) half_ ^= 1;
  }
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
  // A half holds a part of the block of each peer, in rank order.
  const size_t tile =
      staged ? kTileBytes / (me.peers * size) / kLineElements * kLineElements
             : std::max<size_t>(count, 1);
  // Returns the place, in the half of the rank with index `owner`, of the data
  // for the rank with index `reader`.
  const auto part = [&](int owner, int reader) {
    const int place = reader < owner ? reader : reader - 1;
    return Half(set.rank(owner)) + static_cast<size_t>(place) * tile * size;
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
        *HasData(group_->rank()) = from != nullptr;
        for (int i = 0; from != nullptr && i < set.count; ++i) {
          if (i == me.index) continue;
          std::memcpy(part(me.index, i), block(i, t), elements(t) * size);
        }
      },
      [&](size_t t) {
        sources.clear();
        for (int i = 0; i < set.count; ++i) {
          if (i == me.index) {
            if (from != nullptr) sources.push_back(block(i, t));
          } else if (*HasData(set.rank(i)) != 0) {
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
    return std::min(bytes - t * kTileBytes, kTileBytes);
  };
  return Run(
      call, TilesOf(bytes, kTileBytes), me.peers > 0, me.peers * bytes,
      [&](size_t t) {
        std::memcpy(Half(group_->rank()), from + t * kTileBytes, length(t));
      },
      [&](size_t t) {
        const std::byte* own = from + t * kTileBytes;
        for (int i = 0; i < set.count; ++i) {
          std::byte* place =
              to + static_cast<size_t>(i) * bytes + t * kTileBytes;
          if (i != me.index) {
            std::memcpy(place, Half(set.rank(i)), length(t));
          } else if (place != own) {
            std::memcpy(place, own, length(t));
          }
        }
      },
      deadline);
}

Status DirectExchange::Broadcast(std::string_view what, int root, void* data,
                                 size_t bytes, const Deadline& deadline) {
  Call call{Operation::kBroadcast, what, bytes, link_.direct};
  call.tensor.root = root;
  auto* at = static_cast<std::byte*>(data);
  const bool alone = group_->world_size() == 1;
  const bool is_root = group_->rank() == root;
  const auto length = [&](size_t t) {
    return std::min(bytes - t * kTileBytes, kTileBytes);
  };
  return Run(
      call, alone ? 0 : TilesOf(bytes, kTileBytes), !alone && bytes > 0,
      alone ? 0 : bytes,
      [&](size_t t) {
        if (!is_root) return;
        std::memcpy(Half(root), at + t * kTileBytes, length(t));
      },
      [&](size_t t) {
        if (is_root) return;
        std::memcpy(at + t * kTileBytes, Half(root), length(t));
      },
      deadline);
}

}  // namespace shard::direct
