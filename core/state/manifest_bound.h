// SPDX-License-Identifier: Apache-2.0
//
// Checks that the state an engine trains fits into the manifest of a
// checkpoint: before it trains, by an upper bound that holds for every save.

#ifndef SHARD_CORE_STATE_MANIFEST_BOUND_H_
#define SHARD_CORE_STATE_MANIFEST_BOUND_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/base/status.h"
#include "core/flat/plan.h"

namespace shard {

// The most that the tensors, files and param groups of a checkpoint take.
struct ManifestBound {
  uint64_t tensors = 0;
  uint64_t slices = 0;
  uint64_t bytes = 0;
};

// Returns an upper bound for all saves of a plan, whatever their options.
// O(names + tensors), without listing them.
ManifestBound BoundManifest(const Plan& plan);

// Returns kResourceExhausted, with the numbers and the remedy, when the bound
// and the room for blobs are beyond what a manifest can hold.
Status CheckManifestFits(const Plan& plan);

// Bytes that are reserved for the host's blobs in each manifest.
inline constexpr uint64_t kBlobManifestBytes = uint64_t{64} << 20;

// Returns the most bytes that blobs of that name take, one of each rank.
uint64_t BlobManifestBytes(std::string_view name, int world_size);

}  // namespace shard

#endif  // SHARD_CORE_STATE_MANIFEST_BOUND_H_
