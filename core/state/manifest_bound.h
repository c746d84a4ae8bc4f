// SPDX-License-Identifier: Apache-2.0
//
// Whether what an engine trains fits into the manifest of a checkpoint: found
// out before it trains, from an upper bound that holds for every save.

#ifndef SHARD_CORE_STATE_MANIFEST_BOUND_H_
#define SHARD_CORE_STATE_MANIFEST_BOUND_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/base/status.h"
#include "core/flat/plan.h"

namespace shard {

// What tensors, files and param groups of a checkpoint take at most.
struct ManifestBound {
  uint64_t tensors = 0;
  uint64_t slices = 0;
  uint64_t bytes = 0;
};

// An upper bound for all saves of a plan, whatever their options. O(names +
// tensors), without listing them.
ManifestBound BoundManifest(const Plan& plan);

// kResourceExhausted when the bound, beside the room for blobs, is beyond what
// a manifest can hold: with the numbers and the remedy.
Status CheckManifestFits(const Plan& plan);

// What is kept for the host's blobs in each manifest.
inline constexpr uint64_t kBlobManifestBytes = uint64_t{64} << 20;

// What blobs of that name take at most, one of each rank.
uint64_t BlobManifestBytes(std::string_view name, int world_size);

}  // namespace shard

#endif  // SHARD_CORE_STATE_MANIFEST_BOUND_H_
