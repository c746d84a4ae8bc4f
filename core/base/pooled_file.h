// SPDX-License-Identifier: Apache-2.0
//
// PooledFile: a File whose descriptors are closed while the file is unused and
// other files need them, and opened again at the next use. For code that holds
// many files: a process has few descriptors (1024 unless somebody raised ulimit
// -n), and they are the host's.
//
// The pooled files of a process share a pool. The pool keeps at most a quarter
// of the process's limit open, and closes the file that was unused longest
// first. Where core/base/file.h opens anything and finds no descriptor left, it
// has the pool close some, down to none.
//
// A file that is opened again must be the same file, or the call fails:
// kNotFound when it was deleted meanwhile, kFailedPrecondition when another
// file has its name or it was changed. A file that was written is synced before
// it is closed, so that no error of the device is lost; Sync returns that
// error.
//
// A child of fork cannot use a file of its parent (kFailedPrecondition),
// because threads that held locks do not exist there; destroying such a file
// leaves its descriptor open. Files that the child opens have a pool of their
// own.
//
// Threads: as File. The owner moves or destroys it while no thread uses it.

#ifndef SHARD_CORE_BASE_POOLED_FILE_H_
#define SHARD_CORE_BASE_POOLED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/base/file.h"
#include "core/base/file_env.h"
#include "core/base/status.h"

namespace shard {

class PooledFile {
 public:
  // Opens as File::Open does. `in` must outlive the result.
  static StatusOr<PooledFile> Open(const Directory& in, const std::string& name,
                                   File::Mode mode,
                                   File::Cache cache = File::Cache::kBuffered);
  // Opens a file at a path. REQUIRES: `path` is absolute, or the working
  // directory does not change.
  static StatusOr<PooledFile> Open(FileEnv* env, const std::string& path,
                                   File::Mode mode,
                                   File::Cache cache = File::Cache::kBuffered);

  PooledFile(PooledFile&& other) noexcept;
  PooledFile& operator=(PooledFile&& other) noexcept;
  ~PooledFile();

  const std::string& path() const;

  // Do what those of File do. All also return the errors of opening the file
  // again; Close also those of Sync.
  Status ReadExactly(uint64_t offset, std::span<std::byte> to) const;
  Status WriteExactly(uint64_t offset, std::span<const std::byte> from) const;
  Status Allocate(uint64_t bytes) const;
  StatusOr<uint64_t> Size() const;
  Status Sync();
  Status Close();

 private:
  friend class FilePool;
  struct Entry;

  explicit PooledFile(std::unique_ptr<Entry> entry);
  void Drop() noexcept;
  static StatusOr<PooledFile> Adopt(std::unique_ptr<Entry> entry);

  std::unique_ptr<Entry> entry_;  // Null when moved from.
};

// Closes the pooled file that was unused longest. Where all open ones are in
// use, waits until one no longer is. Returns true when a descriptor may be free
// now. For core/base/file.cc.
bool ClosePooledFile();

}  // namespace shard

#endif  // SHARD_CORE_BASE_POOLED_FILE_H_
