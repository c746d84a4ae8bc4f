// SPDX-License-Identifier: Apache-2.0
//
// Deletion in a root of checkpoints: of old checkpoints, and of the remains of
// processes that died.
//
// A checkpoint is renamed to a temporary name, which is synced, before its
// first file is deleted: a half deleted checkpoint is never taken for a
// complete one. A process that writes under a temporary name holds a lock on
// it, which ends with the process: a temporary name without a lock is stale.
//
// Thread-safe, and safe beside processes that commit and clean. Where the file
// system has no locks on directories, stale folders cannot be recognized, and
// stay.

#ifndef SHARD_CORE_CHECKPOINT_FOLDER_CLEANUP_H_
#define SHARD_CORE_CHECKPOINT_FOLDER_CLEANUP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/file.h"
#include "core/base/status.h"

namespace shard {

// The result of taking the lock on an entry of a directory.
enum class Claim {
  kOurs,     // Until `fd` and its copies in forks are closed.
  kBusy,     // Another process holds the lock.
  kGone,     // `name` no longer names the file of `fd`.
  kUnknown,  // The file system has no locks.
};

// Takes the lock on the file of `fd`, which was opened as `name`.
StatusOr<Claim> ClaimEntry(const Directory& in, const std::string& name,
                           int fd);

// Deletes the folder `name` with all its files, the manifest first. OK when it
// is gone already, also when another process deletes it at the same time.
Status RemoveTree(const Directory& in, const std::string& name);

// Deletes stale temporary folders and files: of saves that died, and of
// deletions and overwrites that did not end. Returns the deleted names.
// Continues after an error, and returns the first one.
StatusOr<std::vector<std::string>> CleanStale(const Directory& root);

struct RetainOptions {
  // The number of checkpoints with the highest steps that are kept. At least 1.
  int64_t keep_last = 1;
  // Checkpoints whose step is a multiple of this are kept, too; 0: none.
  int64_t keep_every = 0;
};

// Deletes the other complete checkpoints, but never the one that LATEST names.
// A folder that could not be deleted completely keeps a temporary name, for
// CleanStale. Returns the deleted steps, ascending. REQUIRES: nobody overwrites
// a checkpoint in this root at the same time.
StatusOr<std::vector<int64_t>> RetainCheckpoints(const Directory& root,
                                                 const RetainOptions& options);

// Renames a folder to a name that is free. Returns 0, -EEXIST, or another
// -errno.
int RenameToFree(const Directory& in, const std::string& from,
                 const std::string& to);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_FOLDER_CLEANUP_H_
