// SPDX-License-Identifier: Apache-2.0
//
// Deleting in a root of checkpoints: what old ones there are too many of, and
// what a process that died left behind.
//
// A checkpoint that is deleted first gets a temporary name, which is synced
// before its first file goes: what is half deleted is never taken for complete.
// Who writes under a temporary name holds a lock on it, which ends with the
// process: without one, it is stale.
//
// Thread-safe, and safe beside processes that commit and clean. Where the file
// system has no locks on directories, stale folders cannot be told and stay.

#ifndef SHARD_CORE_CHECKPOINT_FOLDER_CLEANUP_H_
#define SHARD_CORE_CHECKPOINT_FOLDER_CLEANUP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/file.h"
#include "core/base/status.h"

namespace shard {

// What taking the lock on an entry of a directory found.
enum class Claim {
  kOurs,     // Until `fd` and what was forked with it is closed.
  kBusy,     // Another has it.
  kGone,     // `name` is not, or no longer, what `fd` is.
  kUnknown,  // There are no locks here.
};

// Takes the lock on what `fd` is, which was opened as `name`.
StatusOr<Claim> ClaimEntry(const Directory& in, const std::string& name,
                           int fd);

// Deletes the folder `name` with all that is in it, the manifest first. OK when
// it is gone already, also when another deletes it at the same time.
Status RemoveTree(const Directory& in, const std::string& name);

// Deletes stale temporary folders and files: of saves that died, and of
// deletions and overwrites that did not end. Goes on after an error and returns
// the first. The names of those deleted.
StatusOr<std::vector<std::string>> CleanStale(const Directory& root);

struct RetainOptions {
  // The highest this many steps stay. At least 1.
  int64_t keep_last = 1;
  // So do those whose step is a multiple of this; 0: none.
  int64_t keep_every = 0;
};

// Deletes the other complete checkpoints, but never the one that LATEST names.
// What could not be deleted for good keeps a temporary name, for CleanStale.
// Returns the steps that went, ascending.
// REQUIRES: nobody overwrites a checkpoint in this root at the same time.
StatusOr<std::vector<int64_t>> RetainCheckpoints(const Directory& root,
                                                 const RetainOptions& options);

// Renames a folder to a name that is free. 0, -EEXIST, or another -errno.
int RenameToFree(const Directory& in, const std::string& from,
                 const std::string& to);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_FOLDER_CLEANUP_H_
