// SPDX-License-Identifier: Apache-2.0
//
// A fake of NCCL, libnccl.so.2, over the fake of NVIDIA's driver
// (tests/fake_cuda), for tests of several ranks without a GPU. Ranks are
// threads of one process, each with a device of the fake driver, or processes
// of one host. A test that depends on //tests/fake_nccl is linked with the
// fake, so that dlopen("libnccl.so.2") finds it. This header controls the fake;
// fake_nccl_fixture.h checks it at the end of each test.
//
// The abort of a communicator waits for the kernels of others on its device, as
// it does where NCCL frees memory.
//
// A collective is one kernel of its stream, which waits there for the other
// ranks and holds up nothing else. It ends once all that it sends has arrived:
// a send ends with its receive. Kernels of one communicator run in the order of
// their launches, on whatever streams. The calls of a group are one kernel per
// communicator.
//
// Sums are those of a ring: element e of rank b's block is
//
//   ((x[s] + x[s + 1]) + x[s + 2]) + ... , s = b + 1 + e / slice_elements
//
// with ranks modulo their number, and a rounding to the type after each
// addition. An all-reduce has one block, b = 0. So sums of three ranks or more
// differ from sums in the order of ranks, and from slice to slice.
//
// With blocking = 0 nothing happens behind the caller's back: a call that
// answers ncclInProgress goes on in ncclCommGetAsyncError. What it is to launch
// is not in the stream before that has answered ncclSuccess. Only the place of
// a window's handle is still written by an abort, however late, as by the
// thread of NCCL that makes it.
//
// Ranks that call different operations hang until they abort, as with NCCL, and
// the fake records a Violation. The fake checks more than NCCL does: see
// ViolationKind.
//
// Thread-safe, but for Reset. Not for children of fork, unless they are forked
// before the first call of the driver. Programs that are not linked with this
// header are controlled by the environment: see environment.cc.

#ifndef SHARD_TESTS_FAKE_NCCL_FAKE_NCCL_H_
#define SHARD_TESTS_FAKE_NCCL_FAKE_NCCL_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/device/cuda/driver_api.h"
#include "tests/fake_nccl/abi.h"

#define SHARD_FAKE_NCCL_API __attribute__((visibility("default")))

namespace shard::testing::fake_nccl {

// Numbers of answers ncclInProgress by ncclCommGetAsyncError after a call of a
// communicator with blocking = 0, beyond the time in which other ranks come.
struct Polls {
  int init = 2;
  int split = 2;  // And ncclCommShrink.
  int finalize = 2;
  int window = 2;
  int collective = 0;
  int group = 0;
};

struct Options {
  // The answer of ncclGetVersion; 0: the library's own version, 22809 for the
  // one that tests are linked with.
  int version = 0;
  Polls polls;
  // Elements of a block that are summed in one order of ranks.
  size_t slice_elements = 512;
  // Sums begin with rank 0, s = 0: for tests that compare bits with sums in the
  // order of ranks, and so see all but the order.
  bool sums_in_rank_order = false;
  // ncclMemAlloc takes a whole number of so many bytes.
  size_t memory_piece = 1;
  // False: ncclCommRegister gives no handle, as with NCCL_LOCAL_REGISTER=0.
  bool registers = true;
  // False: ncclCommWindowRegister gives no window, as with NCCL_WIN_ENABLE=0.
  // It does so at once, whatever the other ranks do.
  bool makes_windows = true;
  // A rank that alone gets no window; -1: none.
  int rank_without_windows = -1;
  // The number of consecutive ranks that reach each other's memory, as those of
  // one host do; 0: all. Ranks of other processes never do.
  int ranks_in_reach = 0;
  // A call that waits for other ranks longer fails, so that a test ends.
  std::chrono::milliseconds deadline{60000};
  // The least time of a call on a communicator, so that two at once are seen.
  std::chrono::microseconds call_delay{0};
};

// Forgets all communicators, faults and records. REQUIRES: no other thread
// calls NCCL; the fake driver was reset before, so that no kernel runs.
SHARD_FAKE_NCCL_API void Reset(const Options& options = {});

// ---- Faults ----

// The communicators and ranks that something is about.
struct Target {
  // The rank in the communicator that ncclCommInitRank made, also in those that
  // were split from it; -1: all.
  int rank = -1;
  // The number of ranks of the communicator; 0: any.
  int size = 0;
};

// Makes the `call`-th call from now on (1 is the next) of an entry point, or of
// all for "", return `result` and do nothing, but for ncclGroupEnd, which drops
// its group. Calls without a communicator are those of any target. `text`:
// NCCL's last error from then on.
SHARD_FAKE_NCCL_API void FailCall(const std::string& symbol, uint64_t call,
                                  Result result, const Target& target = {},
                                  const std::string& text = "");
// The same for each `every`-th call of them: 1 is all.
SHARD_FAKE_NCCL_API void FailEveryCall(const std::string& symbol,
                                       uint64_t every, Result result,
                                       const Target& target = {});
// Makes the `collective`-th collective, send or receive from now on never end
// at this rank, until the communicator is aborted.
SHARD_FAKE_NCCL_API void StickAt(uint64_t collective,
                                 const Target& target = {});
// The same, and ncclCommGetAsyncError returns `result` from its begin on.
SHARD_FAKE_NCCL_API void FailAsyncAt(uint64_t collective, Result result,
                                     const Target& target = {});
// Launches the `launch`-th kernel from now on behind the one after it, as a
// rank does that calls in another order.
SHARD_FAKE_NCCL_API void SwapAt(uint64_t launch, const Target& target = {});
// Makes the `call`-th call of an entry point that may answer ncclInProgress, or
// of all such, answer it `polls` times instead of as Options say. A group is
// one call for each communicator.
SHARD_FAKE_NCCL_API void SlowCall(const std::string& symbol, uint64_t call,
                                  int polls, const Target& target = {});
// The rank never arrives from now on: neither at calls that wait for others nor
// at collectives.
SHARD_FAKE_NCCL_API void Kill(int rank);
// Calls of an entry point from now on do nothing before ReleaseCalls. Calls
// without a communicator are those of any target.
SHARD_FAKE_NCCL_API void HangCalls(const std::string& symbol,
                                   const Target& target = {});
SHARD_FAKE_NCCL_API void ReleaseCalls();
// Returns how many faults have come since Reset, also those that ClearFaults
// has forgotten: each that was set counts once, at its event. Calls that hang
// do not count.
SHARD_FAKE_NCCL_API uint64_t NumFaults();
// Returns how many calls hang, with aborts that wait for a device.
SHARD_FAKE_NCCL_API size_t NumHanging();
// Forgets the faults that have not come yet, and those ranks that are dead, and
// releases calls.
SHARD_FAKE_NCCL_API void ClearFaults();

// ---- Counts and calls ----

struct Counts {
  std::map<std::string, uint64_t> calls;  // By entry point, failed ones too.
  std::map<std::string, uint64_t> bytes;  // The `count` of calls, in bytes.
  uint64_t launches = 0;  // Kernels, those of graphs at each replay.
  uint64_t ended = 0;     // Kernels that have ended.

  uint64_t Calls(const std::string& symbol) const {
    const auto found = calls.find(symbol);
    return found == calls.end() ? 0 : found->second;
  }
  uint64_t Bytes(const std::string& symbol) const {
    const auto found = bytes.find(symbol);
    return found == bytes.end() ? 0 : found->second;
  }
};

// Counts what was done on the communicators of a target. Without a target calls
// without a communicator count, too.
SHARD_FAKE_NCCL_API Counts Count(const Target& target = {});

struct CallRecord {
  std::string symbol;
  uint64_t comm = 0;  // 1 is the first of the process; 0: none.
  int rank = -1;      // As in Target.
  int size = 0;
  int index = -1;  // The rank in the communicator.
  const void* send = nullptr;
  const void* recv = nullptr;
  size_t count = 0;
  DataType type = DataType::kInt8;
  int peer = -1;  // The root or peer.
  cuda::CuStream stream = nullptr;
  bool in_group = false;
  Result result = Result::kSuccess;
};

// Returns all calls but ncclCommGetAsyncError's, in the order of their ends.
SHARD_FAKE_NCCL_API std::vector<CallRecord> Log();

// ---- Violations ----

enum class ViolationKind {
  kConcurrent,       // Two threads are in calls on one communicator, or one is
                     // in a call while another has one in a group.
  kAfterEnd,         // A communicator is used after its abort or destruction,
                     // or a call has none, or a unique id is used again.
  kNotDeviceMemory,  // A pointer is not to memory of the communicator's device.
  kMismatch,         // Ranks call different operations, or the buffers of one
                     // are registered on some ranks alone, or lie elsewhere in
                     // a window.
  kWrongContext,  // Another context is current than that of the communicator.
  kRegistered,    // Memory is freed, or a communicator destroyed, before
                  // memory is deregistered.
  kNotInVersion,  // The entry point is newer than the version.
  kDeadline,      // A call has waited for `deadline`.
};

struct Violation {
  ViolationKind kind;
  std::string text;
};

SHARD_FAKE_NCCL_API std::vector<Violation> Violations();
SHARD_FAKE_NCCL_API void ClearViolations();
// Returns the texts of all violations, one a line.
SHARD_FAKE_NCCL_API std::string ViolationText();

// ---- Objects that are alive ----

struct Alive {
  size_t comms = 0;
  size_t registrations = 0;  // Windows, too.
  size_t allocations = 0;    // By ncclMemAlloc.

  bool operator==(const Alive&) const = default;
};

SHARD_FAKE_NCCL_API Alive CountAlive();
// Returns what is alive in words, "" for nothing.
SHARD_FAKE_NCCL_API std::string AliveText();

}  // namespace shard::testing::fake_nccl

#endif  // SHARD_TESTS_FAKE_NCCL_FAKE_NCCL_H_
