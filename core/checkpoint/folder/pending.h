// SPDX-License-Identifier: Apache-2.0
//
// PendingCheckpoint: a checkpoint that is being written. Its files are made in
// a temporary folder; Commit gives it the name of its step. Whenever the
// process is killed or the power goes, the root resolves (directory.h) to the
// checkpoint that was there before, whole, or to the new one, whole.
//
// One rank begins and commits. The others open the same folder by its name,
// and write and sync their files before that rank commits.
//
// Not thread-safe; different ones may be used at once, in one root, too: of two
// that commit the same step, one gets kAlreadyExists.

#ifndef SHARD_CORE_CHECKPOINT_FOLDER_PENDING_H_
#define SHARD_CORE_CHECKPOINT_FOLDER_PENDING_H_

#include <cstdint>
#include <string>

#include "core/base/file.h"
#include "core/base/file_env.h"
#include "core/base/status.h"

namespace shard {

class PendingCheckpoint {
 public:
  // `root` is made if it is missing, but not the folder above it. Without
  // `overwrite`, kAlreadyExists when there is a checkpoint of this step: before
  // anything is written. kFailedPrecondition when something else has its name.
  // Whoever goes on from an older checkpoint overwrites: the steps after it may
  // be there, of before, or of a save that died before LATEST named it.
  // REQUIRES: step >= 0.
  static StatusOr<PendingCheckpoint> Begin(FileEnv* env,
                                           const std::string& root,
                                           int64_t step, bool overwrite);

  PendingCheckpoint(PendingCheckpoint&& other) = default;
  // Abandons what was neither committed nor abandoned.
  ~PendingCheckpoint();

  // To make files in, until Commit.
  const Directory& directory() const { return directory_; }
  // The temporary folder's, for OpenPending.
  const std::string& name() const { return name_; }
  int64_t step() const { return step_; }

  // Makes it complete, and LATEST name it.
  // REQUIRES: every file in it is synced, the manifest last; not committed or
  // abandoned before.
  // Errors: kAlreadyExists when another was faster and `overwrite` is false;
  // kUnimplemented when the file system cannot overwrite; what a call on files
  // returned. After an error, and when an allocation fails, nothing was
  // replaced and LATEST is as it was, unless the message says that the new
  // checkpoint "is complete": then the device failed the undoing too, or the
  // last sync, which makes LATEST durable. Every checkpoint that has its name
  // is whole in either case.
  Status Commit();
  bool pending() const { return directory_.valid(); }

  // Deletes it. What could not be deleted is stale, for CleanStale.
  // REQUIRES: pending().
  Status Abandon();

 private:
  PendingCheckpoint(Directory root, Directory directory, std::string name,
                    int64_t step, bool overwrite);

  // The checkpoint that had the name before and then has the temporary one.
  struct Replaced {
    bool any = false;
    bool locked = false;  // So that nobody takes it for stale.
    Directory old;        // Holds the lock.
  };
  // Gives it its name.
  StatusOr<Replaced> Publish();
  // Undoes Publish. Whether that was possible.
  bool Retract(Directory published, const Replaced& replaced);

  Directory root_;
  Directory directory_;  // Holds the lock. Invalid: not pending.
  std::string name_;
  int64_t step_;
  std::string final_name_;
  bool overwrite_;
};

// The folder of a PendingCheckpoint that another rank began, to make files in.
// `name` is its name(). kNotFound when it is gone.
StatusOr<Directory> OpenPending(FileEnv* env, const std::string& root,
                                const std::string& name);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_FOLDER_PENDING_H_
