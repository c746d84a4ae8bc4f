// SPDX-License-Identifier: Apache-2.0
//
// FaultEnv: real files whose system calls fail where a test wants them to, and
// a count of calls and open descriptors. A loop over `at` until calls() is at
// most `at` fails every call of the code that it runs, one at a time:
//     for (int64_t k = 0;; ++k) {
//       FaultEnv env;
//       env.Set({.at = k});
//       Save(&env);
//       EXPECT_EQ(env.open_descriptors(), 0);
//       if (env.calls() <= k) break;
//     }
//
// Thread-safe, except for Set.

#ifndef SHARD_TESTS_CORE_BASE_FAULT_ENV_H_
#define SHARD_TESTS_CORE_BASE_FAULT_ENV_H_

#include <cerrno>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/core/base/forwarding_env.h"

namespace shard::testing {

struct Fault {
  enum class Kind {
    kError,  // Does nothing, except that Close closes.
    kShort,  // Reads and writes transfer half, and at least a byte.
    kZero,   // Reads and writes transfer nothing and return 0.
  };
  int64_t at = -1;         // The number of the call that fails, from 0.
  bool and_after = false;  // Whether all calls after it fail as well.
  int64_t every = 0;       // Fails every `every`-th call; 0 for none.
  // Counts and fails only the calls that take space or change a directory:
  // create, write, sync, resize and rename.
  bool changes_only = false;
  int error = EIO;
  Kind kind = Kind::kError;
};

class FaultEnv final : public ForwardingEnv {
 public:
  explicit FaultEnv(FileEnv* base = FileEnv::Posix()) : ForwardingEnv(base) {}

  // Sets the fault, and counts calls from 0 again.
  void Set(const Fault& fault);

  // Returns the number of calls, failed ones included.
  int64_t calls() const;
  // Returns the number of calls that failed, or transferred less than they were
  // asked for.
  int64_t faults() const;
  int open_descriptors() const;
  // Returns the number of closes of descriptors that this env did not open, or
  // had closed before.
  int wrong_closes() const;

  int Open(int dir, const char* path, int flags, mode_t mode) override;
  int Close(int fd) override;
  ssize_t Read(int fd, void* data, size_t bytes, uint64_t offset) override;
  ssize_t Write(int fd, const void* data, size_t bytes,
                uint64_t offset) override;
  int Sync(int fd) override;
  int Truncate(int fd, uint64_t bytes) override;
  int Allocate(int fd, uint64_t bytes) override;
  int Stat(int fd, struct stat* result) override;
  int StatAt(int dir, const char* path, struct stat* result) override;
  int MakeDir(int dir, const char* path, mode_t mode) override;
  int Rename(int from_dir, const char* from, int to_dir, const char* to,
             unsigned flags) override;
  int Unlink(int dir, const char* path, int flags) override;
  int List(int fd, std::vector<std::string>* names) override;
  int Lock(int fd) override;

 private:
  enum class Call { kChange, kWrite, kRead, kOther };
  // Counts a call and returns true when the call is to fail.
  bool Fails(Call call);
  int Failure() const { return -fault_.error; }

  mutable std::mutex mutex_;
  Fault fault_;
  int64_t calls_ = 0;
  int64_t faults_ = 0;
  int wrong_closes_ = 0;
  std::set<int> open_;
};

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_BASE_FAULT_ENV_H_
