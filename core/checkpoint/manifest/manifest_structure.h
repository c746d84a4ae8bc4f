// SPDX-License-Identifier: Apache-2.0
//
// Checks that bytes are a FlatBuffer of schema/manifest.fbs that can be read
// without further checks: every object inside of it and aligned, and no byte
// part of two objects (flatbuffer_walk.h).

#ifndef SHARD_CORE_CHECKPOINT_MANIFEST_MANIFEST_STRUCTURE_H_
#define SHARD_CORE_CHECKPOINT_MANIFEST_MANIFEST_STRUCTURE_H_

#include <cstddef>
#include <span>

#include "core/base/status.h"
#include "core/checkpoint/schema/manifest_generated.h"

namespace shard {

// Returns the manifest in `body`. REQUIRES: `body` is aligned to 8 bytes and
// has less than 2 GiB.
StatusOr<const schema::Manifest*> ReadManifestBody(
    std::span<const std::byte> body);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_MANIFEST_MANIFEST_STRUCTURE_H_
