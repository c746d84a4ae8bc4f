// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/folder/pending.h"

#include <stdio.h>
#include <sys/stat.h>

#include <cerrno>
#include <span>
#include <utility>

#include "core/base/out_of_memory.h"
#include "core/base/strings.h"
#include "core/checkpoint/folder/cleanup.h"
#include "core/checkpoint/folder/directory.h"
#include "core/checkpoint/manifest/manifest.h"

namespace shard {

namespace {

// Number of attempts. Names are random, so a name that is in use, or whose
// folder was cleaned up before it was locked, is rare; several in a row have
// another cause.
constexpr int kAttempts = 8;

Status NotAFolder(const Directory& root, const std::string& name) {
  return FailedPrecondition("'", root.PathOf(name),
                            "' is not a folder, and no checkpoint can have "
                            "its name; move it away");
}

Status Exists(const Directory& root, const std::string& name) {
  return AlreadyExists("'", root.PathOf(name),
                       "' exists; set overwrite, delete it, or save another "
                       "step");
}

// Returns whether `name` is a folder. kFailedPrecondition when it is something
// else.
StatusOr<bool> IsFolder(const Directory& root, const std::string& name) {
  SHARD_ASSIGN_OR_RETURN(const auto found, root.Stat(name));
  if (found && !S_ISDIR(found->st_mode)) return NotAFolder(root, name);
  return found.has_value();
}

// Returns whether `name` is the folder that `directory` has open.
bool IsNamed(const Directory& root, const std::string& name,
             const Directory& directory) {
  const auto named = root.Stat(name);
  const auto open = directory.Stat(".");
  return named.ok() && open.ok() && named->has_value() && open->has_value() &&
         (*named)->st_dev == (*open)->st_dev &&
         (*named)->st_ino == (*open)->st_ino;
}

// The next LATEST under a temporary name: its text is durable, and its lock
// tells other processes that it is in use. The destructor deletes the file
// unless Rename has succeeded.
class NextLatest {
 public:
  static StatusOr<NextLatest> Write(const Directory& root, int64_t step);

  NextLatest(NextLatest&& other) noexcept
      : root_(std::exchange(other.root_, nullptr)),
        name_(std::move(other.name_)),
        file_(std::move(other.file_)) {}
  ~NextLatest() {
    if (root_ == nullptr) return;
    // Memory may have run out: what stays is stale, for the next save to clean.
    try {
      (void)root_->Unlink(name_).ok();
    } catch (...) {  // NOLINT: a destructor lets nothing out
    }
  }

  // Replaces LATEST.
  Status Rename() {
    const int result = root_->Rename(name_, kLatestName, 0);
    if (result == 0) {
      root_ = nullptr;
      return Status();
    }
    return ErrnoStatus(StrCat("replacing '", root_->PathOf(kLatestName), "'"),
                       -result);
  }

 private:
  NextLatest(const Directory* root, std::string name, File file)
      : root_(root), name_(std::move(name)), file_(std::move(file)) {}

  const Directory* root_;  // Null: renamed, or moved from.
  std::string name_;
  File file_;
};

StatusOr<NextLatest> NextLatest::Write(const Directory& root, int64_t step) {
  const std::string text = StrCat(CheckpointName(step), "\n");
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    SHARD_ASSIGN_OR_RETURN(std::string name, TemporaryName(kLatestName));
    StatusOr<File> file = File::Open(root, name, File::Mode::kCreate);
    if (file.status().code() == StatusCode::kAlreadyExists) continue;
    if (!file.ok()) return file.status();
    NextLatest latest(&root, std::move(name), *std::move(file));
    SHARD_ASSIGN_OR_RETURN(const Claim claim,
                           ClaimEntry(root, latest.name_, latest.file_.fd()));
    if (claim == Claim::kBusy || claim == Claim::kGone) continue;
    SHARD_RETURN_IF_ERROR(
        latest.file_.WriteExactly(0, std::as_bytes(std::span(text))));
    SHARD_RETURN_IF_ERROR(latest.file_.Sync());
    return latest;
  }
  return Internal("'", root.PathOf(kLatestName),
                  "' could not be replaced: ", kAttempts,
                  " temporary files were deleted by another");
}

}  // namespace

StatusOr<PendingCheckpoint::Root> PendingCheckpoint::Root::Open(
    FileEnv* env, const std::string& path) {
  if (path.empty()) {
    return InvalidArgument(
        "the path of the folder for checkpoints is empty; name one, such as "
        "'.'");
  }
  Root root;
  StatusOr<Directory> opened = Directory::Open(env, path);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (opened.status().code() != StatusCode::kNotFound) break;
    SHARD_RETURN_IF_ERROR(root.Make(env, path));
    // kNotFound: another save has made the root, failed and removed it.
    opened = Directory::Open(env, path);
  }
  SHARD_RETURN_IF_ERROR(opened.status());
  root.directory_ = *std::move(opened);
  if (root.above_.valid()) {
    SHARD_RETURN_IF_ERROR(root.above_.Sync());
    return root;
  }
  // Syncs also an existing root: the process that made it may have died before
  // syncing it.
  const StatusOr<Directory> above = root->OpenDirectory("..");
  if (above.ok()) {
    SHARD_RETURN_IF_ERROR(above->Sync());
  } else if (above.status().code() != StatusCode::kPermissionDenied) {
    return above.status();
  }
  return root;
}

Status PendingCheckpoint::Root::Make(FileEnv* env, const std::string& path) {
  // A root that an earlier attempt has made is gone.
  above_ = Directory();
  std::string name = LastPart(path);
  const size_t at = path.rfind(name);
  const std::string parent = at == 0 ? std::string(".") : path.substr(0, at);
  // Opened first: a root that could not be synced or removed is not made.
  StatusOr<Directory> above = Directory::Open(env, parent);
  if (above.status().code() == StatusCode::kNotFound) {
    return NotFound("the directory '", path,
                    "' cannot be made; make the folder above it first");
  }
  SHARD_RETURN_IF_ERROR(above.status());
  const Status made = above->MakeDirectory(name);
  // Another save may have been faster, whose root it is then.
  if (made.code() == StatusCode::kAlreadyExists) return Status();
  SHARD_RETURN_IF_ERROR(made);
  name_ = std::move(name);
  above_ = *std::move(above);
  return Status();
}

PendingCheckpoint::Root::~Root() {
  if (!above_.valid()) return;
  try {
    // A user may have moved the root away, and made another folder of its name.
    if (directory_.valid() && !IsNamed(above_, name_, directory_)) return;
    // The kernel keeps a folder that has something in it.
    (void)above_.RemoveDirectory(name_).ok();
  } catch (...) {  // NOLINT: a destructor lets nothing out
  }
}

PendingCheckpoint::PendingCheckpoint(Root root, Directory directory,
                                     std::string name, int64_t step,
                                     std::string final_name, bool overwrite)
    : root_(std::move(root)),
      directory_(std::move(directory)),
      name_(std::move(name)),
      step_(step),
      final_name_(std::move(final_name)),
      overwrite_(overwrite) {}

PendingCheckpoint::~PendingCheckpoint() {
  if (!pending()) return;
  // Memory may have run out: what stays is stale, for the next save to clean.
  try {
    (void)Abandon().ok();
  } catch (...) {  // NOLINT: a destructor lets nothing out
  }
}

StatusOr<PendingCheckpoint> PendingCheckpoint::Begin(FileEnv* env,
                                                     const std::string& path,
                                                     int64_t step,
                                                     bool overwrite) {
  std::string final_name = CheckpointName(step);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    SHARD_ASSIGN_OR_RETURN(Root root, Root::Open(env, path));
    SHARD_ASSIGN_OR_RETURN(const auto manifest, root->Stat(kManifestName));
    if (manifest) {
      return InvalidArgument("'", path,
                             "' is itself a checkpoint; give the folder that "
                             "checkpoints are to lie in");
    }
    SHARD_ASSIGN_OR_RETURN(const bool exists, IsFolder(*root, final_name));
    if (exists && !overwrite) return Exists(*root, final_name);

    SHARD_ASSIGN_OR_RETURN(std::string name, TemporaryName(final_name));
    const Status made = root->MakeDirectory(name);
    // kNotFound: the root was removed by another save, which had made it.
    if (made.code() == StatusCode::kAlreadyExists ||
        made.code() == StatusCode::kNotFound) {
      continue;
    }
    SHARD_RETURN_IF_ERROR(made);
    Directory directory;
    Claim claim = Claim::kGone;
    const Status claimed = CatchOutOfMemory([&]() -> Status {
      SHARD_ASSIGN_OR_RETURN(directory, root->OpenDirectory(name));
      SHARD_ASSIGN_OR_RETURN(claim, ClaimEntry(*root, name, directory.fd()));
      return Status();
    });
    // The folder was cleaned up before it was locked, because it looked stale.
    if (claimed.code() == StatusCode::kNotFound) continue;
    if (!claimed.ok()) {
      (void)root->RemoveDirectory(name).ok();
      return claimed;
    }
    if (claim == Claim::kBusy || claim == Claim::kGone) continue;
    return PendingCheckpoint(std::move(root), std::move(directory),
                             std::move(name), step, std::move(final_name),
                             overwrite);
  }
  return Internal("no temporary folder for '", final_name, "' in '", path,
                  "': ", kAttempts, " were deleted by another");
}

StatusOr<PendingCheckpoint::Replaced> PendingCheckpoint::Publish() {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    int result = RenameToFree(*root_, name_, final_name_);
    if (result == 0) return Replaced();
    if (result == -EEXIST) {
      SHARD_ASSIGN_OR_RETURN(const bool exists, IsFolder(*root_, final_name_));
      if (!exists) continue;  // Deleted meanwhile.
      if (!overwrite_) return Exists(*root_, final_name_);
      StatusOr<Directory> old = root_->OpenDirectory(final_name_);
      if (old.status().code() == StatusCode::kNotFound) continue;
      SHARD_RETURN_IF_ERROR(old.status());
      SHARD_ASSIGN_OR_RETURN(const Claim claim,
                             ClaimEntry(*root_, final_name_, old->fd()));
      if (claim == Claim::kGone) continue;
      result = root_->Rename(name_, final_name_, RENAME_EXCHANGE);
      if (result == 0) {
        return Replaced{true, claim != Claim::kBusy, *std::move(old)};
      }
      // The next attempt finds which of the two is gone.
      if (result == -ENOENT) continue;
      if (result == -EINVAL || result == -ENOSYS) {
        return Unimplemented(
            "'", root_->PathOf(final_name_),
            "' cannot be overwritten: the file system cannot swap two folders "
            "(RENAME_EXCHANGE); delete it, or save another step");
      }
    }
    return ErrnoStatus(
        StrCat("renaming '", root_->PathOf(name_), "' to '", final_name_, "'"),
        -result);
  }
  return Internal("'", root_->PathOf(final_name_), "' was made and deleted ",
                  kAttempts, " times while it was to be replaced");
}

bool PendingCheckpoint::Retract(Directory published, const Replaced& replaced) {
  bool renamed = false;
  const Status status = CatchOutOfMemory([&] {
    const bool ours = IsNamed(*root_, final_name_, published) &&
                      (!replaced.any || (replaced.locked &&
                                         IsNamed(*root_, name_, replaced.old)));
    if (!ours) return Status();
    renamed =
        0 == (replaced.any ? root_->Rename(final_name_, name_, RENAME_EXCHANGE)
                           : RenameToFree(*root_, final_name_, name_));
    return renamed ? root_->Sync() : Status();
  });
  // The files must not be deleted before the rename is durable: CleanStale
  // syncs the root first.
  if (renamed && status.ok()) directory_ = std::move(published);
  return renamed;
}

Status PendingCheckpoint::Commit() {
  SHARD_ASSIGN_OR_RETURN(const auto manifest, directory_.Stat(kManifestName));
  if (!manifest || !S_ISREG(manifest->st_mode)) {
    return FailedPrecondition("'", root_->PathOf(name_), "' has no '",
                              kManifestName, "', and is no checkpoint");
  }
  SHARD_RETURN_IF_ERROR(directory_.Sync());
  // All allocations of space or memory come before any change.
  SHARD_ASSIGN_OR_RETURN(NextLatest latest, NextLatest::Write(*root_, step_));
  const std::string complete =
      StrCat("'", root_->PathOf(final_name_), "' is complete, but '",
             root_->PathOf(kLatestName), "' may name another");
  const Status no_memory = OutOfMemoryStatus().WithContext(complete);
  const auto is_complete = [&](const Status& reason) {
    try {
      return reason.WithContext(complete);
    } catch (const std::bad_alloc&) {
      return no_memory;
    }
  };
  SHARD_ASSIGN_OR_RETURN(const Replaced replaced, Publish());
  // The old checkpoint may have the temporary name now. While this object holds
  // no directory it is not abandoned, not even when memory runs out below.
  Directory published = std::move(directory_);
  // The sync comes before LATEST, which must not name a missing checkpoint; and
  // before the old one is deleted, which a power failure would bring back.
  Status status = CatchOutOfMemory([&] {
    SHARD_RETURN_IF_ERROR(root_->Sync());
    return latest.Rename();
  });
  if (!status.ok()) {
    const bool undone = Retract(std::move(published), replaced);
    return undone ? status : is_complete(status);
  }
  // Under the new name the lock is not needed.
  published = Directory();
  status = CatchOutOfMemory([&] { return root_->Sync(); });
  if (!status.ok()) return is_complete(status);
  // An error in deleting is not an error of this checkpoint: the remains of the
  // old one are stale.
  if (replaced.any) {
    (void)CatchOutOfMemory([&] { return RemoveTree(*root_, name_); }).ok();
  }
  return Status();
}

Status PendingCheckpoint::Abandon() {
  const Status status = RemoveTree(*root_, name_);
  directory_ = Directory();
  return status;
}

StatusOr<Directory> OpenPending(FileEnv* env, const std::string& root,
                                const std::string& name) {
  const auto base = ParseTemporaryName(name);
  if (!base || *base == kLatestName) {
    return InvalidArgument("'", name,
                           "' is not the name of a pending checkpoint");
  }
  SHARD_ASSIGN_OR_RETURN(const Directory opened, Directory::Open(env, root));
  return opened.OpenDirectory(name);
}

}  // namespace shard
