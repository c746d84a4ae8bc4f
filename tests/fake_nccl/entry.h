// SPDX-License-Identifier: Apache-2.0
//
// The common part of all entry points of the fake.

#ifndef SHARD_TESTS_FAKE_NCCL_ENTRY_H_
#define SHARD_TESTS_FAKE_NCCL_ENTRY_H_

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/fake_nccl/comm.h"
#include "tests/fake_nccl/entry_points.h"
#include "tests/fake_nccl/state.h"

namespace shard::testing::fake_nccl {

struct Group;

// A call of an entry point: counts and records it, fails it where it is to
// fail, and notes that its thread uses the communicator, within a group until
// that ends.
class Entry {
 public:
  // `comm`: null for entry points without one.
  Entry(const char* symbol, const Comm* comm, bool takes_comm, int since);
  ~Entry();
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;

  bool ok() const { return result_ == Result::kSuccess; }
  Result result() const { return result_; }
  State* state() const { return state_; }
  const std::shared_ptr<Comm>& comm() const { return comm_; }
  const Options& options() const { return options_; }
  CallRecord* record() { return &record_; }

  // The result that the entry point returns.
  Result Return(Result result) { return result_ = result; }
  // The same, for an error that NCCL describes.
  Result Fail(Result result, const std::string& text);
  // Fails unless the communicator can be used: it has no call in progress, no
  // error, and has not ended.
  Result CheckReady();
  // Records a violation where another context is current than `comm`'s.
  void CheckContext(const Comm& comm);
  // Begins the work of a call that answers kInProgress, or waits for its end
  // where the communicator is blocking. Within a group, its end begins it.
  Result Begin(const std::shared_ptr<Comm>& comm, int polls, const Job& job);
  // The same outside of groups.
  Result BeginNow(const std::shared_ptr<Comm>& comm, int polls, const Job& job);
  // Returns how often the call answers kInProgress: `polls`, unless the test
  // wants other numbers.
  int PollsOf(const Comm& comm, int polls);
  // Runs jobs until they end, the deadline passes, or one of the communicators
  // is aborted. Others can call meanwhile.
  Result Wait(const std::vector<std::shared_ptr<Comm>>& comms,
              std::vector<Job> jobs);
  // The same for a condition.
  Result WaitUntil(const std::function<bool()>& condition);
  // The same for the end of one, with which the call hangs.
  Result HangWhile(const std::function<bool()>& condition);

  // Notes that the call uses a communicator that is not its argument.
  void Uses(const std::shared_ptr<Comm>& comm);
  // Notes that the uses by the calls of a group end with this call.
  void EndUses(Group* group);
  // Lets others call for the rest of this call.
  void Unlock() { lock_.unlock(); }
  void CountBytes(size_t bytes) { bytes_ = bytes; }

 private:
  // Notes that this thread is in a call on a communicator. REQUIRES:
  // State::records_mutex is held.
  void Mark(const std::shared_ptr<Comm>& comm);

  State* const state_;
  const char* const symbol_;
  std::shared_ptr<Comm> comm_;
  // The communicators that this thread did not use before.
  std::vector<std::shared_ptr<Comm>> marked_;
  size_t bytes_ = 0;
  Options options_;
  CallRecord record_;
  std::unique_lock<std::mutex> lock_;
  Result result_ = Result::kSuccess;
};

// Goes on with the call in progress of a communicator. `poll`: this is an
// answer of ncclCommGetAsyncError.
Result Advance(Comm* comm);

// Makes a communicator, which has no segment yet.
std::shared_ptr<Comm> MakeComm(State* state);
// Adds a communicator to those that callers know.
void Publish(State* state, const std::shared_ptr<Comm>& comm);
// Ends a communicator: its kernels do nothing any more, and none runs.
void Stop(Comm* comm);
// Forgets a communicator that `symbol` has ended, but for checks.
void End(Comm* comm, const char* symbol);

// Returns the text of NCCL for a result.
const char* TextOf(Result result);

}  // namespace shard::testing::fake_nccl

// Returns from an entry point what its call is to return. `comm`: of the call,
// checked; SHARD_FAKE_NCCL_ENTER_FREE: without one.
#define SHARD_FAKE_NCCL_ENTER(symbol, comm) \
  Entry entry(#symbol, comm, true, 0);      \
  if (!entry.ok()) return entry.Return(entry.result())
#define SHARD_FAKE_NCCL_ENTER_FREE(symbol) \
  Entry entry(#symbol, nullptr, false, 0); \
  if (!entry.ok()) return entry.Return(entry.result())
#define SHARD_FAKE_NCCL_ENTER_SINCE(symbol, since, comm) \
  Entry entry(#symbol, comm, true, since);               \
  if (!entry.ok()) return entry.Return(entry.result())
// The same, where the communicator must be ready.
#define SHARD_FAKE_NCCL_READY()                                           \
  if (const Result ready = entry.CheckReady(); ready != Result::kSuccess) \
  return ready

#endif  // SHARD_TESTS_FAKE_NCCL_ENTRY_H_
