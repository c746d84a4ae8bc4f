// SPDX-License-Identifier: Apache-2.0
//
// PendingCheckpoint: a checkpoint that is being written. Its files are made in
// a temporary folder; Commit gives it the name of its step. Whenever the
// process is killed or the power fails, the root resolves (directory.h) to the
// previous checkpoint or to the new one, and either is whole.
//
// One rank begins and commits. The others open the same folder by its name,
// and write and sync their files before that rank commits.
//
// Not thread-safe. Several may be used at once, in one root, too: of two that
// commit the same step, one gets kAlreadyExists.

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
  // Begins a checkpoint. `root` is made if it is missing, but not the folder
  // above it; where the checkpoint is not committed, such a root is removed
  // again, unless others have put something there. Without `overwrite`,
  // kAlreadyExists when there is a checkpoint of this step, before anything is
  // written. kFailedPrecondition when another kind of file has its name. A run
  // that continues from an older checkpoint needs `overwrite`: later steps may
  // be there from the previous run, or from a save that died before LATEST
  // named it. REQUIRES: step >= 0.
  static StatusOr<PendingCheckpoint> Begin(FileEnv* env,
                                           const std::string& root,
                                           int64_t step, bool overwrite);

  PendingCheckpoint(PendingCheckpoint&& other) = default;
  // Abandons a checkpoint that was neither committed nor abandoned.
  ~PendingCheckpoint();

  // Returns the folder in which files are made, until Commit.
  const Directory& directory() const { return directory_; }
  // Returns the temporary folder's name, for OpenPending.
  const std::string& name() const { return name_; }
  int64_t step() const { return step_; }

  // Gives the checkpoint its name, and makes LATEST name it. REQUIRES: every
  // file in the folder is synced, the manifest last; not committed or abandoned
  // before. Errors: kAlreadyExists when another save of the step was faster and
  // `overwrite` is false; kUnimplemented when the file system cannot overwrite;
  // errors of calls on files. After an error, and when an allocation fails,
  // nothing was replaced and LATEST is as it was, unless the message says that
  // the new checkpoint "is complete": then the device failed the undoing too,
  // or the last sync, which makes LATEST durable. Every checkpoint that has its
  // name is whole in either case.
  Status Commit();
  bool pending() const { return directory_.valid(); }

  // Deletes the checkpoint. Files that could not be deleted are stale, for
  // CleanStale. REQUIRES: pending().
  Status Abandon();

 private:
  // The root of a checkpoint. The destructor removes a root that this object
  // has made, if nothing is in it.
  class Root {
   public:
    // Opens `path`, made if it is missing, durably so.
    static StatusOr<Root> Open(FileEnv* env, const std::string& path);

    Root(Root&& other) = default;
    ~Root();

    const Directory& operator*() const { return directory_; }
    const Directory* operator->() const { return &directory_; }

   private:
    Root() = default;

    // Makes the folder, unless another process has just made it.
    Status Make(FileEnv* env, const std::string& path);

    Directory directory_;
    // The folder in which this object has made the root, and the root's name
    // there. Invalid: the root is another's.
    Directory above_;
    std::string name_;
  };

  PendingCheckpoint(Root root, Directory directory, std::string name,
                    int64_t step, std::string final_name, bool overwrite);

  // The checkpoint that had the name before, and has the temporary name now.
  struct Replaced {
    bool any = false;
    bool locked = false;  // So that no process takes it for stale.
    Directory old;        // Holds the lock.
  };
  // Gives the checkpoint its name.
  StatusOr<Replaced> Publish();
  // Undoes Publish. Returns whether that was possible.
  bool Retract(Directory published, const Replaced& replaced);

  Root root_;
  Directory directory_;  // Holds the lock. Invalid: not pending.
  std::string name_;
  int64_t step_;
  std::string final_name_;
  bool overwrite_;
};

// Opens the folder of a PendingCheckpoint that another rank began, to make
// files in it. `name` is its name(). kNotFound when it is gone.
StatusOr<Directory> OpenPending(FileEnv* env, const std::string& root,
                                const std::string& name);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_FOLDER_PENDING_H_
