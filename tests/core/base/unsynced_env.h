// SPDX-License-Identifier: Apache-2.0
//
// UnsyncedEnv: real files in a folder, and a record of the parts that were
// synced, so that a test can make the folder as it might be after a power cut.
//
// The model is exactly the guarantee of POSIX. A file's bytes and length are
// durable as of its last fsync; a directory's entries as of the directory's.
// Each later directory operation (a rename is one) and each later page may or
// may not survive, independently of the others.
//
// The env keeps all bytes in memory, so files must be small. Calls outside the
// folder are passed on and not recorded. Links of any kind within the folder
// are not supported. Thread-safe.

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

// The fate of changes that were not synced.
enum class PowerCut {
  kLost,         // All of them are lost.
  kKept,         // All of them survive, as when only the process died.
  kNamesKept,    // Names and lengths survive; the bytes are zero.
  kTruncated,    // Names survive; files have the length of the last fsync.
  kEntriesLost,  // Bytes survive; directories are as of the last fsync.
  kRandom,       // Each survives or not, by `seed`.
};

class UnsyncedEnv final : public ForwardingEnv {
 public:
  // Records `folder`, whose present contents count as durable.
  explicit UnsyncedEnv(const std::string& folder,
                       FileEnv* base = FileEnv::Posix());

  // Sets a function that runs before every call that changes or syncs anything.
  // The function may call AfterPowerCut, but not the file calls of this env.
  // Set it before the first call. After the last call, the test calls it
  // itself.
  void AtEachCall(std::function<void()> hook) { hook_ = std::move(hook); }

  // Makes the folder `copy`, which must not exist, with the contents that
  // `folder` would have if the power were cut now.
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
  // An id of a file or directory. Inode numbers are reused as soon as they are
  // free; ids are not.
  using Id = int64_t;
  static constexpr Id kNone = -1;
  // The names that an operation changed, each with its id afterwards; kNone
  // where it has none.
  using Change = std::vector<std::pair<std::string, Id>>;
  using Entries = std::map<std::string, Id>;

  struct Node {
    bool is_directory = false;
    std::string live;  // The bytes of a file.
    std::string durable;
    Entries live_entries;  // The entries of a directory.
    Entries durable_entries;
    std::vector<Change> unsynced;  // The changes from durable to live.
  };

  Id AddExisting(const std::string& path);
  // Returns the directory of `path` and its last component. The directory is
  // kNone when the path is not recorded.
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
