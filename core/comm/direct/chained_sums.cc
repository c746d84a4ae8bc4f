// SPDX-License-Identifier: Apache-2.0
//
// The part of a DirectExchange that sums along a chain of hosts (host_chain.h).
//
// Each host is two rounds behind the one before it, so that its partial sums
// have come when they are needed. In round s, on the host at place p, the ranks
// write into their slots:
//
//   gradients   of tile s - 2p: those that other ranks of the host sum
//   sums        of tile s - 2p - 2: this rank's share, made of the gradients in
//               the slots of round s - 2 and of the partial sums that the host
//               before has shipped with that round
//
// With H hosts, the owners of blocks read the sums of tile s - 2H in round s,
// from the slots of the last host.
//
//   round      0    1    2    3    4    5    6
//   host 0     g0   g1   g2   g3
//                        s0   s1   s2   s3
//   host 1               g0   g1   g2   g3
//                                  s0   s1   s2
//   owners                         r0   r1   r2
//
// A slot is written again two rounds after its readers have entered a round
// behind it, as always (direct_exchange.h): what is read of round s - 2 is read
// before this rank enters s.

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/base/dtype.h"
#include "core/comm/direct/direct_exchange.h"
#include "core/comm/direct/host_chain.h"
#include "kernels/cpu/block_sum.h"
#include "kernels/cpu/partial_sum.h"

namespace shard::direct {

namespace {

// Parts of a slot begin at cache lines.
constexpr size_t kChainLineElements = 32;
static_assert(kStagingBytes / kExchangeCells.count /
                  (2 * kMaxRanks * sizeof(float)) >=
              kChainLineElements);

// Places in the slots of a chain, by the indices of ranks and blocks in the
// set. Elements of a tile: `tile`, fewer in the last one.
struct ChainSlots {
  const HostChain& chain;
  size_t tile;
  size_t gradient_bytes;  // Of an element.
  size_t sums_at;         // Where the sums begin.

  // Returns the place of the gradients that the rank `owner` has of a block.
  // REQUIRES: another rank of its host sums the block.
  size_t GradientsOf(int owner, int block) const {
    const HostChain::Share share = chain.ShareOf(owner);
    const int place = block < share.begin ? block : block - share.size();
    return static_cast<size_t>(place) * tile * gradient_bytes;
  }
  // Returns the place of a block's sum in the slot of the rank that makes it,
  // in a tile of `elements`. Sums have no gaps, so that one shipment takes
  // neighbors.
  size_t SumOf(int summer, int block, size_t elements) const {
    const auto place = static_cast<size_t>(block - chain.ShareOf(summer).begin);
    return sums_at + place * elements * sizeof(float);
  }
};

}  // namespace

const SumShape& DirectExchange::ShapeOf(const RankSet& set) {
  const std::pair<int, int> key(set.stride, set.count);
  const auto found =
      std::find_if(shapes_.begin(), shapes_.end(),
                   [&](const auto& shape) { return shape.first == key; });
  if (found != shapes_.end()) return found->second;
  shapes_.emplace_back(key, SumShapeOf(hosts_, set.stride, set.count));
  return shapes_.back().second;
}

Status DirectExchange::ReduceOnChain(const Call& call, const SumShape& shape,
                                     const ReduceScatterArgs& args,
                                     const Deadline& deadline) {
  const RankSet& set = call.tensor.set;
  const HostChain chain(hosts_, set);
  const int me = set.IndexOf(group_->rank());
  const int place = chain.PlaceOf(me);
  const HostChain::Stop& mine = chain.at(place);
  const HostChain::Share share = chain.ShareOf(me);
  const bool is_last = place + 1 == chain.count();
  const size_t count = args.count;
  const size_t size = DTypeSize(args.dtype);
  const auto* from = static_cast<const std::byte*>(args.send);
  auto* to = static_cast<std::byte*>(args.recv);
  // The same on all ranks, whatever the hosts of their sets.
  const size_t left = static_cast<size_t>(shape.left_blocks) * size;
  const size_t summed =
      static_cast<size_t>(shape.summed_blocks) * sizeof(float);
  const size_t tile =
      slot_bytes_ / (left + summed) / kChainLineElements * kChainLineElements;
  const size_t tiles = (count + tile - 1) / tile;
  const ChainSlots slots{chain, tile, size, left * tile};

  // Returns the tile of a round at a place of the chain; `tiles` where there is
  // none.
  const auto tile_of = [&](size_t round, int at) {
    const size_t late = lead_ * static_cast<size_t>(at);
    return round < late ? tiles : std::min(round - late, tiles);
  };
  const auto elements = [&](size_t t) {
    return std::min(count - t * tile, tile);
  };
  const auto block = [&](int index, size_t t) {
    const auto number = static_cast<size_t>(args.BlockOf(index, set.count));
    return from + (number * count + t * tile) * size;
  };
  const auto sum_in = [&](size_t slot, int summer, int index, size_t t) {
    return reinterpret_cast<float*>(Slot(set.rank(summer), slot) +
                                    slots.SumOf(summer, index, elements(t)));
  };

  const auto put_gradients = [&](size_t t) {
    shipments_.holds |= Shipments::kGradients;
    for (int b = 0; b < set.count; ++b) {
      if (share.Contains(b)) continue;
      std::memcpy(Slot(group_->rank()) + slots.GradientsOf(me, b), block(b, t),
                  elements(t) * size);
    }
  };
  std::vector<const void*> sources;
  // Makes this rank's sums of a tile, of the slots in which round_ was entered.
  // Returns whether there was anything to sum.
  const auto put_sums = [&](size_t t) {
    const size_t read = (slot_ + slots_ - lead_) % slots_;
    for (int b = share.begin; b < share.end; ++b) {
      const float* sum = nullptr;
      bool zeros = false;
      if (place > 0) {
        const int summer = chain.SummerOf(place - 1, b);
        if (Holds(set.rank(summer), Shipments::kSums)) {
          sum = sum_in(read, summer, b, t);
        } else {
          zeros = true;
        }
      }
      sources.clear();
      for (int i = mine.begin; i < mine.end; ++i) {
        if (i == me) {
          if (from != nullptr) sources.push_back(block(b, t));
        } else if (Holds(set.rank(i), Shipments::kGradients)) {
          sources.push_back(Slot(set.rank(i), read) + slots.GradientsOf(i, b));
        }
      }
      const auto ranks = static_cast<size_t>(mine.ranks());
      if (sources.size() < ranks) zeros = true;
      if (sum == nullptr && sources.empty()) return false;
      ContinueSum(sum, sources.data(), sources.size(), zeros, args.dtype,
                  elements(t), sum_in(slot_, me, b, t));
    }
    shipments_.holds |= Shipments::kSums;
    return true;
  };
  // Ships this rank's sums of the blocks that are in `wanted`, too.
  const auto ship = [&](const HostChain::Share& wanted, int host, size_t t) {
    const int begin = std::max(wanted.begin, share.begin);
    const int end = std::min(wanted.end, share.end);
    if (begin >= end) return true;
    const auto* const first =
        reinterpret_cast<std::byte*>(sum_in(slot_, me, begin, t));
    const size_t bytes =
        static_cast<size_t>(end - begin) * elements(t) * sizeof(float);
    return shipments_.Add({OffsetOf(first), bytes, host, host + 1});
  };

  return Run(
      call, tiles + lead_ * static_cast<size_t>(shape.hosts), /*staged=*/true,
      static_cast<size_t>(set.count - 1) * count * size,
      [&](size_t round) {
        const size_t given = tile_of(round, place);
        if (given < tiles && from != nullptr) put_gradients(given);
        const size_t summed_tile = tile_of(round, place + 1);
        if (summed_tile == tiles || !put_sums(summed_tile)) return true;
        if (!is_last) {
          return ship(share, chain.at(place + 1).host, summed_tile);
        }
        for (int p = 0; p < place; ++p) {
          const HostChain::Stop& owners = chain.at(p);
          if (!ship({owners.begin, owners.end}, owners.host, summed_tile)) {
            return false;
          }
        }
        return true;
      },
      [&](size_t round) {
        const size_t t = tile_of(round, chain.count());
        if (t == tiles) return;
        const int summer = chain.SummerOf(chain.count() - 1, me);
        const bool any = Holds(set.rank(summer), Shipments::kSums);
        const void* const sum = any ? sum_in(slot_, summer, me, t) : nullptr;
        SumSources(&sum, any ? 1 : 0, /*zeros=*/!any, DType::kF32, elements(t),
                   to + t * tile * DTypeSize(args.recv_dtype), args.recv_dtype,
                   args.add);
      },
      deadline);
}

}  // namespace shard::direct
