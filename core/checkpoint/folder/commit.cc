// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/folder/commit.h"

#include <cstddef>
#include <vector>

#include "core/base/file.h"

namespace shard {

Status CommitCheckpoint(const ManifestContents& contents,
                        PendingCheckpoint* pending) {
  SHARD_ASSIGN_OR_RETURN(const std::vector<std::byte> manifest,
                         EncodeManifest(contents));
  SHARD_ASSIGN_OR_RETURN(
      File file,
      File::Open(pending->directory(), kManifestName, File::Mode::kCreate));
  SHARD_RETURN_IF_ERROR(file.WriteExactly(0, manifest));
  SHARD_RETURN_IF_ERROR(file.Sync());
  SHARD_RETURN_IF_ERROR(file.Close());
  return pending->Commit();
}

}  // namespace shard
