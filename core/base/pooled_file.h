// SPDX-License-Identifier: Apache-2.0
//
// PooledFile: a File whose descriptors are closed while nobody uses it and
// others need them, and opened again when it is used. For those who hold many
// files: a process has few descriptors (1024 unless somebody raised ulimit -n),
// and they are the host's.
//
// The pooled files of a process share a pool. It keeps at most a quarter of the
// process's limit open, and closes the file that was unused longest first.
// Whoever opens anything through core/base/file.h and finds no descriptor left
// has the pool close some, down to none.
//
// A file that is opened again must be the one that it was, or the call fails:
// kNotFound when it was deleted meanwhile, kFailedPrecondition when another has
// its name or it was changed. A file that was written is synced before it is
// closed, so that no error of the device is lost; Sync returns that error.
//
// In a child of fork a file of its parent cannot be used, kFailedPrecondition,
// and destroying it leaves its descriptor open: threads that had locks are not
// there. Files that the child opens have a pool of their own.
//
// Threads: as File. Moved and destroyed by one owner while nobody uses it.

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
  // As File::Open. `in` must outlive the result.
  static StatusOr<PooledFile> Open(const Directory& in, const std::string& name,
                                   File::Mode mode,
                                   File::Cache cache = File::Cache::kBuffered);
  // `path` is absolute, or the working directory does not change.
  static StatusOr<PooledFile> Open(FileEnv* env, const std::string& path,
                                   File::Mode mode,
                                   File::Cache cache = File::Cache::kBuffered);

  PooledFile(PooledFile&& other) noexcept;
  PooledFile& operator=(PooledFile&& other) noexcept;
  ~PooledFile();

  const std::string& path() const;

  // As those of File, and what opening it again returns. Close returns an error
  // of Sync, too.
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

  std::unique_ptr<Entry> entry_;  // Null: moved from.
};

// Closes the pooled file that was unused longest. Where all that are open are
// being used, waits until one no longer is. Returns whether there is a chance
// that a descriptor is free now. For core/base/file.cc.
bool ClosePooledFile();

}  // namespace shard

#endif  // SHARD_CORE_BASE_POOLED_FILE_H_
