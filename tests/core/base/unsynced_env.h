// SPDX-License-Identifier: Apache-2.0
//
// UnsyncedEnv: real files in a folder, and a record of what of them was synced,
// so that a test can have the folder as it might be after a power cut.
//
// The model is what POSIX promises and no more. A file's bytes and length are
// durable as of its last fsync; a directory's entries as of the directory's.
// Of what came later each directory operation (a rename is one) and each page
// may have survived or not, independently.
//
// It keeps all bytes in memory: small files only. What is not within the folder
// is passed on and not recorded. No links of any kind within it. Thread-safe.

#ifndef SHARD_TESTS_CORE_BASE_UNSYNCED_ENV_H_
#define SHARD_TESTS_CORE_BASE_UNSYNCED_ENV_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/core/base/forwarding_env.h"

namespace shard::testing {

// What becomes of what was not synced.
enum class PowerCut {
  kLost,         // All of it is gone.
  kKept,         // All of it is there: as when only the process died.
  kNamesKept,    // Names and lengths are there, the bytes are zero.
  kTruncated,    // Names are there, files have the length of the last fsync.
  kEntriesLost,  // Bytes are there, directories are as of the last fsync.
  kRandom,       // Any of it, by `seed`.
};

class UnsyncedEnv final : public ForwardingEnv {
 public:
  // What is in `folder` now counts as durable.
  explicit UnsyncedEnv(const std::string& folder,
                       FileEnv* base = FileEnv::Posix());

  // Runs before every call that changes or syncs something, and may call
  // AfterPowerCut; not the file calls of this env. Set it before the first
  // call; after the last one, call it yourself.
  void AtEachCall(std::function<void()> hook) { hook_ = std::move(hook); }

  // Makes the folder `copy`, which must not exist, as `folder` would be if the
  // power went now.
  void AfterPowerCut(PowerCut cut, uint64_t seed,
                     const std::string& copy) const;

  int Open(int dir, const char* path, int flags, mode_t mode) override;
  int Close(int fd) override;
  ssize_t Write(int fd, const void* data, size_t bytes,
                uint64_t offset) override;
  int Sync(int fd) override;
  int Truncate(int fd, uint64_t bytes) override;
  int Allocate(int fd, uint64_t bytes) override;
  int MakeDir(int dir, const char* path, mode_t mode) override;
  int Rename(int from_dir, const char* from, int to_dir, const char* to,
             unsigned flags) override;
  int Unlink(int dir, const char* path, int flags) override;

 private:
  // Inode numbers are used again as soon as they are free; these are not.
  using Id = int64_t;
  static constexpr Id kNone = -1;
  // Which name is what (kNone: nothing) after an operation.
  using Change = std::vector<std::pair<std::string, Id>>;
  using Entries = std::map<std::string, Id>;

  struct Node {
    bool is_directory = false;
    std::string live;  // A file's bytes,
    std::string durable;
    Entries live_entries;  // a directory's entries,
    Entries durable_entries;
    std::vector<Change> unsynced;  // and what leads from durable to live.
  };

  Id AddExisting(const std::string& path);
  // The directory in which `path` is, and its last part. kNone: not recorded.
  std::pair<Id, std::string> Parent(int dir, const char* path) const;
  Id Lookup(Id directory, const std::string& name) const;
  void Apply(Id directory, const Change& change);
  void Resize(int fd, uint64_t bytes, bool shrink);
  void RunHook() const {
    if (hook_) hook_();
  }
  void WriteCopy(Id id, PowerCut cut, std::mt19937_64* random,
                 const std::string& path) const;
  static Entries EntriesAfter(const Node& node, PowerCut cut,
                              std::mt19937_64* random);
  static std::string BytesAfter(const Node& node, PowerCut cut,
                                std::mt19937_64* random);

  const std::string folder_;
  std::function<void()> hook_;
  mutable std::mutex mutex_;
  std::vector<Node> nodes_;                     // By Id; 0 is the folder.
  std::map<std::pair<dev_t, ino_t>, Id> live_;  // Directories that exist.
  std::map<int, Id> open_;                      // By descriptor.
};

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_BASE_UNSYNCED_ENV_H_
