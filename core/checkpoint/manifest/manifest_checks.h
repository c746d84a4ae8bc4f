// SPDX-License-Identifier: Apache-2.0
//
// Checks of a manifest beyond its structure, so that its users need none: names
// are plain and unique, shapes have a size, slices hold every element once,
// files hold slices and blobs and nothing else. docs/checkpoint-format.md lists
// all rules.
//
// Time is O(n log n) in the number of objects, for sorting, and linear in the
// bytes; memory is at most 8 bytes per slice or blob.

#ifndef SHARD_CORE_CHECKPOINT_MANIFEST_MANIFEST_CHECKS_H_
#define SHARD_CORE_CHECKPOINT_MANIFEST_MANIFEST_CHECKS_H_

#include "core/base/status.h"
#include "core/checkpoint/manifest/manifest.h"
#include "core/checkpoint/schema/manifest_generated.h"

namespace shard {

// Checks all rules but those that need an index of the keys. kCorrupt names the
// object. REQUIRES: `manifest` was read by ReadManifestBody.
Status CheckManifest(const schema::Manifest& manifest,
                     const ManifestLimits& limits);

// Checks the files and the places of slices and blobs in them; the last part of
// CheckManifest. REQUIRES: the tensors' shapes and slices are right.
Status CheckExtents(const schema::Manifest& manifest);

// Checks that every q8 tensor has its scales. REQUIRES: the other checks have
// passed.
Status CheckScales(const Manifest& manifest);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_MANIFEST_MANIFEST_CHECKS_H_
