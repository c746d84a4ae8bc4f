// SPDX-License-Identifier: Apache-2.0
//
// The state of the fake in a process, which its entry points, its kernels and
// its control share.

#ifndef SHARD_TESTS_FAKE_NCCL_STATE_H_
#define SHARD_TESTS_FAKE_NCCL_STATE_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/fake_nccl/comm.h"
#include "tests/fake_nccl/fake_nccl.h"

namespace shard::testing::fake_nccl {

enum class FaultKind { kCall, kStuck, kAsync, kSwap, kSlow };

struct Fault {
  FaultKind kind;
  Target target;
  uint64_t left;  // Events until then; 0: it has come.
  Result result = Result::kSuccess;
  std::string symbol;  // For kCall and kSlow; "": any.
  int polls = 0;       // For kSlow.
  std::string text;    // For kCall; "": the fake's.
  uint64_t every = 0;  // It comes again after so many events; 0: never.
};

struct State {
  // Finds the communicator of a handle, or null.
  std::shared_ptr<Comm> Find(const Comm* handle);
  void Add(ViolationKind kind, const std::string& text);
  // Counts an event that faults of a kind are about. Returns the fault that
  // comes with it.
  std::optional<Fault> Meets(FaultKind kind, const Comm* comm,
                             const std::string& symbol = "");
  bool IsDead(const Comm& comm);
  // Returns whether a call hangs. `comm`: null for calls without one.
  bool Hangs(const std::string& symbol, const Comm* comm);
  void CountLaunch(const Comm& comm);
  void CountEnd(const Comm& comm);
  // Returns whether memory that begins there is registered. REQUIRES: `mutex`
  // is held.
  bool IsRegistered(const void* memory);
  void SetLastError(const std::string& text);

  // Held by entry points, but while they wait.
  std::mutex mutex;
  // GUARDED_BY(mutex):
  std::set<const void*> allocations;
  uint64_t last_window = 0;
  // The unique ids with which ranks have met.
  std::set<std::pair<std::string, int>> used_ids;

  // Never held while the driver or a function of another file is called.
  std::mutex records_mutex;
  // GUARDED_BY(records_mutex):
  Options options;
  std::map<const Comm*, std::shared_ptr<Comm>> comms;
  std::vector<Fault> faults;
  std::set<int> dead;
  std::set<int> dead_met;   // Those whose death something has waited for.
  uint64_t num_faults = 0;  // That have come.
  std::vector<std::pair<std::string, Target>> hangs;  // HangCalls.
  std::vector<Violation> violations;
  std::vector<CallRecord> log;
  std::map<const Comm*, Counts> counts;  // Null: calls without a communicator.
  std::string last_error;
  uint64_t last_id = 0;

  std::atomic<size_t> num_hanging = 0;
  std::atomic<uint64_t> generation = 0;  // The number of Resets.
};

// Returns the state of the process, which is never destroyed.
State* TheState();

// Returns the version that a library was built to tell, such as 22809
// for 2.28.9.
int LibraryVersion();
// Returns the version that ncclGetVersion tells.
int VersionOf(const Options& options);

}  // namespace shard::testing::fake_nccl

#endif  // SHARD_TESTS_FAKE_NCCL_STATE_H_
