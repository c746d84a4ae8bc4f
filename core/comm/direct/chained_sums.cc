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
#include "core/comm/direct/chain_layout.h"
#include "core/comm/direct/direct_exchange.h"
#include "core/comm/direct/host_chain.h"
#include "kernels/cpu/block_sum.h"
#include "kernels/cpu/partial_sum.h"

namespace shard::direct {

static_assert(kStagingBytes / kExchangeCells.count /
                  (2 * kMaxRanks * sizeof(float)) >=
              kChainLineElements);

// A reduce-scatter of this rank along a chain. Each round puts the gradients
// and the sums that are due into this rank's slot, and takes this rank's block
// of a tile whose sums are complete.
class DirectExchange::ChainedSum {
 public:
  // All arguments must outlive this. REQUIRES: as ReduceOnChain.
  ChainedSum(DirectExchange* exchange, const RankSet& set,
             const SumShape& shape, const ReduceScatterArgs& args)
      : exchange_(*exchange),
        set_(set),
        args_(args),
        chain_(exchange->hosts_, set),
        me_(set.IndexOf(exchange->group_->rank())),
        place_(chain_.PlaceOf(me_)),
        share_(chain_.ShareOf(me_)),
        sizes_(shape, args.dtype),
        tiles_{args.count, sizes_.TileIn(exchange->slot_bytes_),
               exchange->lead_},
        places_{chain_, tiles_.size, sizes_.gradient_bytes,
                sizes_.all_gradients * tiles_.size},
        rounds_(tiles_.number() +
                tiles_.lead * static_cast<size_t>(shape.hosts)) {}

  ChainedSum(const ChainedSum&) = delete;
  ChainedSum& operator=(const ChainedSum&) = delete;

  // Returns the number of rounds, the same on all ranks.
  size_t rounds() const { return rounds_; }

  // Puts what is due in a round into this rank's slot. Returns false when this
  // rank cannot ship its sums.
  bool Put(size_t round) {
    const size_t given = tiles_.DueIn(round, place_);
    if (given < tiles_.number() && args_.send != nullptr) PutGradients(given);
    const size_t summed = tiles_.DueIn(round, place_ + 1);
    if (summed == tiles_.number() || !PutSums(summed)) return true;
    return ShipSums(summed);
  }

  // Takes this rank's block of the tile whose sums have come with a round.
  void Take(size_t round) const {
    const size_t t = tiles_.DueIn(round, chain_.count());
    if (t == tiles_.number()) return;
    const size_t elements = tiles_.ElementsOf(t);
    const int summer = chain_.SummerOf(chain_.count() - 1, me_);
    const bool any = Holds(summer, Shipments::kSums);
    const void* const sum =
        any ? SumIn(exchange_.slot_, summer, me_, t) : nullptr;
    auto* const to = static_cast<std::byte*>(args_.recv) +
                     t * tiles_.size * DTypeSize(args_.recv_dtype);
    SumSources(&sum, any ? 1 : 0, /*zeros=*/!any, DType::kF32, elements, to,
               args_.recv_dtype, args_.add);
  }

 private:
  // Puts this rank's gradients of the blocks that other ranks of the host sum.
  void PutGradients(size_t t) {
    exchange_.shipments_.holds |= Shipments::kGradients;
    std::byte* const slot = exchange_.Slot(set_.rank(me_));
    for (int b = 0; b < set_.count; ++b) {
      if (share_.Contains(b)) continue;
      std::memcpy(slot + places_.GradientsOf(me_, b), OwnGradients(b, t),
                  tiles_.ElementsOf(t) * sizes_.gradient_bytes);
    }
  }

  // Makes this rank's sums of a tile. Returns whether there was anything to
  // sum.
  bool PutSums(size_t t) {
    for (int b = share_.begin; b < share_.end; ++b) {
      const float* const sum = SumBefore(b, t);
      CollectGradients(b, t);
      if (sum == nullptr && sources_.empty()) return false;
      const auto ranks = static_cast<size_t>(chain_.at(place_).ranks());
      const bool zeros =
          (place_ > 0 && sum == nullptr) || sources_.size() < ranks;
      ContinueSum(sum, sources_.data(), sources_.size(), zeros, args_.dtype,
                  tiles_.ElementsOf(t), SumIn(exchange_.slot_, me_, b, t));
    }
    exchange_.shipments_.holds |= Shipments::kSums;
    return true;
  }

  // Returns the sum of a block over the hosts before this one; null where there
  // are none, or none of their ranks has anything to add.
  const float* SumBefore(int block, size_t t) const {
    if (place_ == 0) return nullptr;
    const int summer = chain_.SummerOf(place_ - 1, block);
    if (!Holds(summer, Shipments::kSums)) return nullptr;
    return SumIn(SlotToSum(), summer, block, t);
  }

  // Sets sources_ to the gradients of a block that the ranks of this host have,
  // in rank order.
  void CollectGradients(int block, size_t t) {
    const HostChain::Stop& mine = chain_.at(place_);
    sources_.clear();
    for (int i = mine.begin; i < mine.end; ++i) {
      if (i == me_) {
        if (args_.send != nullptr) sources_.push_back(OwnGradients(block, t));
      } else if (Holds(i, Shipments::kGradients)) {
        sources_.push_back(exchange_.Slot(set_.rank(i), SlotToSum()) +
                           places_.GradientsOf(i, block));
      }
    }
  }

  // Ships this rank's sums of a tile: to the next host, or from the last one to
  // the hosts of the blocks' owners. Returns false when the shipments have no
  // room.
  bool ShipSums(size_t t) {
    if (place_ + 1 < chain_.count()) {
      return ShipTo(chain_.at(place_ + 1).host, share_, t);
    }
    for (int p = 0; p < place_; ++p) {
      const HostChain::Stop& owners = chain_.at(p);
      if (!ShipTo(owners.host, {owners.begin, owners.end}, t)) return false;
    }
    return true;
  }

  // Ships this rank's sums of the blocks in `wanted` to a host, likewise.
  bool ShipTo(int host, const HostChain::Share& wanted, size_t t) {
    const int begin = std::max(wanted.begin, share_.begin);
    const int end = std::min(wanted.end, share_.end);
    if (begin >= end) return true;
    const auto* const first =
        reinterpret_cast<std::byte*>(SumIn(exchange_.slot_, me_, begin, t));
    const size_t bytes =
        static_cast<size_t>(end - begin) * tiles_.ElementsOf(t) * sizeof(float);
    return exchange_.shipments_.Add(
        {exchange_.OffsetOf(first), bytes, host, host + 1});
  }

  // Returns this rank's own gradients of a block.
  const std::byte* OwnGradients(int block, size_t t) const {
    const auto number = static_cast<size_t>(args_.BlockOf(block, set_.count));
    return static_cast<const std::byte*>(args_.send) +
           (number * tiles_.count + t * tiles_.size) * sizes_.gradient_bytes;
  }
  // Returns the sum of a block in a slot of the rank that makes it.
  float* SumIn(size_t slot, int summer, int block, size_t t) const {
    return reinterpret_cast<float*>(
        exchange_.Slot(set_.rank(summer), slot) +
        places_.SumOf(summer, block, tiles_.ElementsOf(t)));
  }
  // Returns the slot of the round that is read, whose gradients and sums this
  // rank's sums of the slot that is put are made of.
  size_t SlotToSum() const {
    const size_t count = exchange_.slots_;
    return (exchange_.slot_ + count - tiles_.lead) % count;
  }
  // Returns whether the slot of a rank holds a part in the round that is read.
  bool Holds(int index, Shipments::Part part) const {
    return exchange_.Holds(set_.rank(index), part);
  }

  DirectExchange& exchange_;
  const RankSet& set_;
  const ReduceScatterArgs& args_;
  const HostChain chain_;
  const int me_;     // This rank's index in the set.
  const int place_;  // The place of its host on the chain.
  const HostChain::Share share_;
  const ChainSizes sizes_;
  const ChainTiles tiles_;
  const ChainSlots places_;
  const size_t rounds_;
  std::vector<const void*> sources_;  // Of the block that is summed.
};

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
  ChainedSum sum(this, set, shape, args);
  return Run(
      call, sum.rounds(), /*staged=*/true,
      static_cast<size_t>(set.count - 1) * args.count * DTypeSize(args.dtype),
      [&](size_t round) { return sum.Put(round); },
      [&](size_t round) { sum.Take(round); }, deadline);
}

}  // namespace shard::direct
