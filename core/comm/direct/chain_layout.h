// SPDX-License-Identifier: Apache-2.0
//
// The layout of a reduce-scatter along a chain of hosts (chained_sums.cc): when
// a tile is due on a host, and where its parts lie in the slots of ranks. Pure
// functions: all ranks compute the same.

#ifndef SHARD_CORE_COMM_DIRECT_CHAIN_LAYOUT_H_
#define SHARD_CORE_COMM_DIRECT_CHAIN_LAYOUT_H_

#include <algorithm>
#include <cstddef>

#include "core/base/dtype.h"
#include "core/comm/direct/host_chain.h"

namespace shard::direct {

// Parts of a slot begin at cache lines.
inline constexpr size_t kChainLineElements = 32;

// The sizes of a slot's parts. They are those of the rank that needs most room,
// so that all ranks have tiles of the same size, whatever the hosts of their
// sets.
struct ChainSizes {
  size_t gradient_bytes;  // Of an element.
  // The bytes of all parts of the kind, for one element of a tile.
  size_t all_gradients;
  size_t all_sums;

  ChainSizes(const SumShape& shape, DType dtype)
      : gradient_bytes(DTypeSize(dtype)),
        all_gradients(static_cast<size_t>(shape.left_blocks) * gradient_bytes),
        all_sums(static_cast<size_t>(shape.summed_blocks) * sizeof(float)) {}

  // Returns the elements of a full tile.
  size_t TileIn(size_t slot_bytes) const {
    return slot_bytes / (all_gradients + all_sums) / kChainLineElements *
           kChainLineElements;
  }
};

// The tiles of a block, and the rounds in which they are due.
struct ChainTiles {
  size_t count;  // Elements of a block.
  size_t size;   // Elements of a tile; the last one may have fewer.
  size_t lead;   // The rounds by which a host is behind the one before it.

  size_t number() const { return (count + size - 1) / size; }
  size_t ElementsOf(size_t t) const { return std::min(count - t * size, size); }
  // Returns the tile whose gradients are due in a round at a place of the
  // chain; number() where none is.
  size_t DueIn(size_t round, int place) const {
    const size_t late = lead * static_cast<size_t>(place);
    return round < late ? number() : std::min(round - late, number());
  }
};

// The places of gradients and sums in slots, by the indices of ranks and blocks
// in the set.
struct ChainSlots {
  const HostChain& chain;
  size_t tile;            // Elements of a full one.
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

}  // namespace shard::direct

#endif  // SHARD_CORE_COMM_DIRECT_CHAIN_LAYOUT_H_
