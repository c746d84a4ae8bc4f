// SPDX-License-Identifier: Apache-2.0
//
// Commits a checkpoint: the one way in which a save, a reshard and a conversion
// write a manifest.

#ifndef SHARD_CORE_CHECKPOINT_FOLDER_COMMIT_H_
#define SHARD_CORE_CHECKPOINT_FOLDER_COMMIT_H_

#include "core/base/status.h"
#include "core/checkpoint/folder/pending.h"
#include "core/checkpoint/manifest/manifest.h"

namespace shard {

// Writes and syncs the manifest of `contents` in the folder of `pending`, then
// commits. REQUIRES: all data files are synced. Errors: those of
// EncodeManifest, of calls on files, and of PendingCheckpoint::Commit.
Status CommitCheckpoint(const ManifestContents& contents,
                        PendingCheckpoint* pending);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_FOLDER_COMMIT_H_
