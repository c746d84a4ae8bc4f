// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/folder/cleanup.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "core/base/strings.h"
#include "core/checkpoint/folder/directory.h"
#include "core/checkpoint/manifest/manifest.h"

namespace shard {

namespace {

// The deepest folder that is deleted. A checkpoint has no folders, but the host
// may have put some into it. Each level takes a descriptor.
constexpr int kMaxDepth = 16;

// Number of attempts to delete a folder. A rank that does not know yet that a
// save has failed may make its one file there meanwhile.
constexpr int kAttempts = 8;

bool IsGone(const Status& status) {
  return status.code() == StatusCode::kNotFound;
}

Status UnlinkIfThere(const Directory& in, const std::string& name) {
  const Status status = in.Unlink(name);
  return IsGone(status) ? Status() : status;
}

Status RemoveTreeAt(const Directory& in, const std::string& name, int depth);

Status RemoveEntries(const Directory& directory, int depth) {
  if (depth == 0) {
    SHARD_RETURN_IF_ERROR(UnlinkIfThere(directory, kManifestName));
  }
  SHARD_ASSIGN_OR_RETURN(const auto entries, directory.List());
  for (const std::string& entry : entries) {
    SHARD_ASSIGN_OR_RETURN(const auto found, directory.Stat(entry));
    if (!found) continue;
    SHARD_RETURN_IF_ERROR(S_ISDIR(found->st_mode)
                              ? RemoveTreeAt(directory, entry, depth + 1)
                              : UnlinkIfThere(directory, entry));
  }
  return Status();
}

Status RemoveTreeAt(const Directory& in, const std::string& name, int depth) {
  if (depth == kMaxDepth) {
    return FailedPrecondition("'", in.PathOf(name), "' is ", depth,
                              " folders deep; delete it yourself");
  }
  Status removed;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    {
      const StatusOr<Directory> opened = in.OpenDirectory(name);
      if (!opened.ok()) {
        return IsGone(opened.status()) ? Status() : opened.status();
      }
      SHARD_RETURN_IF_ERROR(RemoveEntries(*opened, depth));
    }
    removed = in.RemoveDirectory(name);
    if (IsGone(removed)) return Status();
    // The code of a folder that is not empty.
    if (removed.code() != StatusCode::kFailedPrecondition) break;
  }
  return removed;
}

// Deletes `name` unless a process works on it. Returns whether it did.
StatusOr<bool> RemoveIfStale(const Directory& root, const std::string& name) {
  SHARD_ASSIGN_OR_RETURN(const auto found, root.Stat(name));
  if (!found) return false;
  if (S_ISDIR(found->st_mode) && *ParseTemporaryName(name) != kLatestName) {
    const StatusOr<Directory> opened = root.OpenDirectory(name);
    if (!opened.ok()) return opened.status();
    SHARD_ASSIGN_OR_RETURN(const Claim claim,
                           ClaimEntry(root, name, opened->fd()));
    if (claim != Claim::kOurs) return false;
    SHARD_RETURN_IF_ERROR(RemoveTree(root, name));
    return true;
  }
  if (S_ISREG(found->st_mode) && *ParseTemporaryName(name) == kLatestName) {
    const StatusOr<File> opened = File::Open(root, name, File::Mode::kRead);
    if (!opened.ok()) return opened.status();
    SHARD_ASSIGN_OR_RETURN(const Claim claim,
                           ClaimEntry(root, name, opened->fd()));
    if (claim != Claim::kOurs) return false;
    SHARD_RETURN_IF_ERROR(UnlinkIfThere(root, name));
    return true;
  }
  return false;  // Not a name of this library.
}

}  // namespace

StatusOr<Claim> ClaimEntry(const Directory& in, const std::string& name,
                           int fd) {
  FileEnv* const env = in.env();
  Claim claim = Claim::kOurs;
  int locked = env->Lock(fd);
  while (locked == -EINTR) locked = env->Lock(fd);
  switch (-locked) {
    case 0:
      break;
    case EWOULDBLOCK:
      return Claim::kBusy;
    // NFS needs a descriptor for writing, which a directory does not have
    // (EBADF); other file systems have errors of their own that say that there
    // are no locks.
    case EBADF:
    case EINVAL:
    case ENOLCK:
    case ENOSYS:
    case EOPNOTSUPP:
      claim = Claim::kUnknown;
      break;
    default:
      return ErrnoStatus(StrCat("locking '", in.PathOf(name), "'"), -locked);
  }
  // With the lock held the entry keeps its name: a process that deletes it
  // takes the lock, too.
  struct stat ours;
  int result = env->Stat(fd, &ours);
  while (result == -EINTR) result = env->Stat(fd, &ours);
  if (result != 0) {
    return ErrnoStatus(StrCat("looking at '", in.PathOf(name), "'"), -result);
  }
  SHARD_ASSIGN_OR_RETURN(const auto named, in.Stat(name));
  if (!named || named->st_dev != ours.st_dev || named->st_ino != ours.st_ino) {
    return Claim::kGone;
  }
  return claim;
}

Status RemoveTree(const Directory& in, const std::string& name) {
  return RemoveTreeAt(in, name, 0);
}

int RenameToFree(const Directory& in, const std::string& from,
                 const std::string& to) {
  int result = in.Rename(from, to, RENAME_NOREPLACE);
  // Without that flag, a folder still replaces nothing but an empty folder.
  if (result == -EINVAL || result == -ENOSYS) result = in.Rename(from, to, 0);
  return result == -ENOTEMPTY || result == -ENOTDIR ? -EEXIST : result;
}

StatusOr<std::vector<std::string>> CleanStale(const Directory& root) {
  SHARD_ASSIGN_OR_RETURN(auto names, root.List());
  std::erase_if(names, [](const std::string& name) {
    return !ParseTemporaryName(name).has_value();
  });
  if (names.empty()) return names;
  // The folder may have been a complete checkpoint until a process renamed it
  // and died: that rename must be durable before files are deleted.
  SHARD_RETURN_IF_ERROR(root.Sync());
  Status first_error;
  std::vector<std::string> removed;
  for (std::string& name : names) {
    const StatusOr<bool> result = RemoveIfStale(root, name);
    if (result.ok() && *result) removed.push_back(std::move(name));
    // An entry that is gone was deleted by another process.
    if (first_error.ok() && !result.ok() && !IsGone(result.status())) {
      first_error = result.status();
    }
  }
  SHARD_RETURN_IF_ERROR(first_error);
  return removed;
}

StatusOr<std::vector<int64_t>> RetainCheckpoints(const Directory& root,
                                                 const RetainOptions& options) {
  if (options.keep_last < 1 || options.keep_every < 0) {
    return InvalidArgument("keep_last is ", options.keep_last,
                           " and keep_every ", options.keep_every,
                           "; the first must be at least 1, the second at "
                           "least 0");
  }
  SHARD_ASSIGN_OR_RETURN(std::vector<int64_t> steps, ListCheckpoints(root));
  SHARD_ASSIGN_OR_RETURN(const auto latest, ReadLatest(root));
  const auto count = static_cast<int64_t>(steps.size());
  steps.resize(
      static_cast<size_t>(std::max<int64_t>(0, count - options.keep_last)));
  std::erase_if(steps, [&](int64_t step) {
    return step == latest ||
           (options.keep_every > 0 && step % options.keep_every == 0);
  });

  std::vector<std::string> doomed;
  std::vector<int64_t> removed;
  for (const int64_t step : steps) {
    const std::string name = CheckpointName(step);
    SHARD_ASSIGN_OR_RETURN(std::string temporary, TemporaryName(name));
    const int result = RenameToFree(root, name, temporary);
    if (result == -ENOENT) continue;  // Another process was faster.
    if (result != 0) {
      return ErrnoStatus(StrCat("deleting '", root.PathOf(name), "'"), -result);
    }
    doomed.push_back(std::move(temporary));
    removed.push_back(step);
  }
  if (doomed.empty()) return removed;
  SHARD_RETURN_IF_ERROR(root.Sync());
  for (const std::string& name : doomed) {
    SHARD_RETURN_IF_ERROR(RemoveTree(root, name));
  }
  return removed;
}

}  // namespace shard
