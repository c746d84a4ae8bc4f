// SPDX-License-Identifier: Apache-2.0
//
// Claims of files: runs that are given one path, such as a job and the programs
// that it starts with its environment, do not write over each other. A file
// that somebody has claimed is left alone, and the next one takes the next name
// of the series: "trace.json", "trace.2.json", "trace.3.json".
//
// A claim is a lock of an open file description: it lasts as long as the
// descriptor and its copies in children of fork, and ends with the process,
// however that ends. Two descriptors that were opened apart are strangers, in
// one process as in two. Where a file system has no locks, every claim
// succeeds.

#ifndef SHARD_CORE_OBSERVE_FILE_CLAIM_H_
#define SHARD_CORE_OBSERVE_FILE_CLAIM_H_

#include <string>
#include <string_view>

#include "core/base/fd.h"
#include "core/base/status.h"

namespace shard {

// The locks of a file. Each is a byte beyond all that a file holds, because
// some network file systems keep others from reading a byte that is locked.
enum class FileLock {
  kClaim,    // Exclusive: claimed. Shared: in use by the ranks of a run.
  kWriting,  // Exclusive: a write is in progress.
};

enum class LockResult {
  kLocked,
  kBusy,   // Another descriptor has a lock in the way.
  kError,  // Such as that of a file system without locks: see errno.
};

// Takes, changes or ends (F_WRLCK, F_RDLCK, F_UNLCK) a lock of `fd`. Never
// waits.
LockResult SetLock(int fd, FileLock lock, int type);

// Returns `path` with `text` before its extension: ("run/shard.prom", ".rank0")
// is "run/shard.rank0.prom".
std::string BeforeExtension(std::string_view path, std::string_view text);

// Returns the name of that number in the series of `path`, from 1.
std::string NumberedPath(std::string_view path, int number);

// Returns `path` as seen from the root, for a host that changes its working
// directory later on; `path` itself where the working directory is not known.
std::string FromRoot(const std::string& path);

// Opens or makes a regular file, to read and write. `what` stands for it in
// errors: "the trace".
StatusOr<Fd> OpenRegularFile(std::string_view what, const std::string& path);

struct ClaimedFile {
  Fd fd;  // Holds the claim.
  std::string path;
  int number = 1;  // In the series.
};

// Opens or makes the first file of the series of `path` that nobody has
// claimed, and claims it. kResourceExhausted when a thousand are claimed.
StatusOr<ClaimedFile> ClaimFile(std::string_view what, const std::string& path);

}  // namespace shard

#endif  // SHARD_CORE_OBSERVE_FILE_CLAIM_H_
