// SPDX-License-Identifier: Apache-2.0
//
// A fake of NVIDIA's driver, libcuda.so.1, for tests without a GPU. Its devices
// run the kernels of kernels/cuda, compiled for the host, over memory of the
// host. A test that depends on //tests/fake_cuda is linked with the fake, so
// that dlopen("libcuda.so.1") finds it. This header controls the fake;
// fake_cuda_fixture.h checks it at the end of each test.
//
// Streams are asynchronous: one thread runs operations in an order that is
// chosen at random among those that the streams and events allow. At each call
// the fake computes, with vector clocks, what happens before what, and records
// a Violation where two operations need an order and have none, whatever order
// they then run in. The host knows that work is done once cuEventQuery has told
// any of its threads.
//
// Copies of memory that is not pinned are asynchronous, too: they read and
// write it when they run. A graph is the work of one stream, in its order:
// other streams are not drawn into a capture, but have captures of their own. A
// call that a capture forbids makes it invalid: its stream then takes nothing
// but the end of the capture, which gives no graph.
//
// Thread-safe, but for Reset. Never used in a child of fork.

#ifndef SHARD_TESTS_FAKE_CUDA_FAKE_CUDA_H_
#define SHARD_TESTS_FAKE_CUDA_FAKE_CUDA_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "core/device/cuda/driver_api.h"

#define SHARD_FAKE_CUDA_API __attribute__((visibility("default")))

namespace shard::testing::fake_cuda {

struct Options {
  int devices = 2;
  // " MIG " within makes a MIG instance of each.
  std::string device_name = "Fake GPU";
  int driver_version = 13000;
  int compute_major = 9;
  int compute_minor = 0;
  // Few, so that kernels loop over what one launch does not cover.
  int multiprocessors = 2;
  int blocks_per_multiprocessor = 2;
  bool unified_addressing = true;
  bool memory_pools = true;
  // Of each device, and of the host for pinned memory.
  size_t memory_bytes = size_t{1} << 30;
  size_t pinned_bytes = std::numeric_limits<size_t>::max();

  // Of the order of operations and of their delays.
  uint64_t seed = 1;
  // The longest delay before an operation.
  std::chrono::microseconds max_delay{0};
  // Operations run as late as possible: only those that an event needs, and
  // only after it was queried `queries_before_progress` times. The order then
  // depends on nothing but the seed and the calls.
  bool lazy = false;
  int queries_before_progress = 3;
  // The host cannot access memory of a device, but for the moments in which an
  // operation runs.
  bool guard = false;
};

// Drops all work, memory and handles, clears counters, violations and failures,
// and begins with `options`. The driver stays initialized. REQUIRES: no other
// thread calls the driver; nothing is used that was made before.
SHARD_FAKE_CUDA_API void Reset(const Options& options = {});

// Stops the device before the next operation, or after as many `operations`
// that begin from now on, and lets it go on. A call that waits for the device
// (cuMemFree) must not be made in between.
SHARD_FAKE_CUDA_API void Pause(uint64_t operations = 0);
SHARD_FAKE_CUDA_API void Resume();
// Runs all work that was enqueued, and waits for it. The host learns nothing
// from it: to the checks of order it is no synchronization.
SHARD_FAKE_CUDA_API void RunAll();
// Returns the number of operations that were enqueued and did not run.
SHARD_FAKE_CUDA_API size_t NumPending();

// Begins the capture of the work of `stream`, in the mode that forbids most;
// null ends it, and drops the work. Meanwhile calls fail as a driver's do. The
// driver's own calls, which make graphs, are in graph_api.h.
SHARD_FAKE_CUDA_API void SetCaptured(cuda::CuStream stream);
// Returns whether the work of `stream` is captured.
SHARD_FAKE_CUDA_API bool IsCaptured(cuda::CuStream stream);

// ---- What was done ----

struct Traffic {
  uint64_t count = 0;
  uint64_t bytes = 0;

  bool operator==(const Traffic&) const = default;
};

struct Counters {
  // By entry point, without the version of its symbol: "cuMemAlloc". Calls that
  // fail count, too.
  std::map<std::string, uint64_t> calls;
  std::map<std::string, uint64_t> launches;  // By kernel.
  // Of them all, by kernel; of cuBLAS's the products of matrices.
  std::map<std::string, uint64_t> blocks;
  Traffic to_device, to_host, on_device, on_host;  // Copies.
  Traffic memsets;
  // Copies from or to memory of the host that is not pinned: a driver may make
  // the host wait for them.
  uint64_t pageable_copies = 0;
  // Calls that make the host wait for the device, such as cuMemFree.
  uint64_t waits_of_host = 0;

  // Returns the calls of an entry point, or of all for "".
  uint64_t Calls(const std::string& symbol = "") const {
    return Sum(calls, symbol);
  }
  // Returns the launches of a kernel, or of all for "".
  uint64_t Launches(const std::string& kernel = "") const {
    return Sum(launches, kernel);
  }

 private:
  static uint64_t Sum(const std::map<std::string, uint64_t>& counts,
                      const std::string& of) {
    uint64_t sum = 0;
    for (const auto& [name, count] : counts) {
      if (of.empty() || of == name) sum += count;
    }
    return sum;
  }
};

SHARD_FAKE_CUDA_API Counters Count();
// Returns how many calls a child of fork has made, all of which fail. A driver
// promises nothing for them.
SHARD_FAKE_CUDA_API uint64_t CountInChild();
// Returns what was done after `before`, without zeros.
SHARD_FAKE_CUDA_API Counters CountSince(const Counters& before);

// ---- What is wrong ----

enum class ViolationKind {
  kUnordered,     // Two operations on the same memory have no order.
  kUseAfterFree,  // Memory is used that was freed before.
  kOutOfBounds,   // A copy or a memset leaves its allocation.
  kOverrun,       // A kernel wrote behind the end of an allocation.
  kUnreachable,   // A kernel uses the host's own memory.
  kDrawnIn,       // A stream waits for captured work, and so is captured too.
};

struct Violation {
  ViolationKind kind;
  std::string text;  // Names both operations.
};

SHARD_FAKE_CUDA_API std::vector<Violation> Violations();
SHARD_FAKE_CUDA_API void ClearViolations();
// Returns the texts of all violations, one a line.
SHARD_FAKE_CUDA_API std::string ViolationText();

// The end of one attempt at an operation.
enum class Progress {
  kDone,
  kMore,   // Something was done; more is left.
  kWaits,  // For something that is not there: tried again later.
};

// Memory that an operation accesses.
struct Access {
  const void* memory;
  size_t bytes;
  bool writes;
};

// Tells what launches of a kernel access. Without it the checks of order know
// of a kernel only which allocations the pointers in its argument point to.
// `accesses` is called at the launch with a copy of the argument. It must not
// call the driver, and may read tables in memory of the device that were
// filled before.
SHARD_FAKE_CUDA_API void DescribeKernel(
    const std::string& kernel,
    std::function<std::vector<Access>(const void* args)> accesses);

// Tells how launches of a kernel wait for more than streams. `begin` is called
// at the launch with a copy of the argument, which lives as long as what it
// returns, and with what runs the kernel. The result is called as that of
// WaitingKernel::begin.
SHARD_FAKE_CUDA_API void DescribeWaits(
    const std::string& kernel,
    std::function<std::function<Progress()>(const void* args,
                                            std::function<void()> run)>
        begin);

// Adds a kernel of a program's own to those of kernels/cuda, for good: modules
// have it from then on. `run` runs a launch of a one-dimensional grid on the
// host; `args` is the kernel's only argument.
SHARD_FAKE_CUDA_API void AddKernel(const char* name, size_t arg_bytes,
                                   void (*run)(const void* args,
                                               uint32_t blocks,
                                               uint32_t threads));

// Checks an access of the host to pinned memory as if it were an operation.
SHARD_FAKE_CUDA_API void CheckHostAccess(const Access& access,
                                         const std::string& what);

// ---- What is alive ----

struct Alive {
  size_t device_allocations = 0;
  size_t device_bytes = 0;
  size_t pinned_allocations = 0;
  size_t pinned_bytes = 0;
  size_t pools = 0;
  size_t streams = 0;
  size_t events = 0;
  size_t modules = 0;
  size_t context_retains = 0;
  size_t library_objects = 0;  // See CountLibraryObject.
  size_t graphs = 0;           // With those that can be launched.
  // The depth of this thread's stack of contexts.
  size_t current_contexts = 0;

  bool operator==(const Alive&) const = default;
};

SHARD_FAKE_CUDA_API Alive CountAlive();
// Returns what is alive in words, "" for nothing.
SHARD_FAKE_CUDA_API std::string AliveText();

// ---- Failures ----

// Makes the `call`-th call from now on (1 is the next) of an entry point, or of
// all entry points for "", return `result` and do nothing. A call that frees or
// pops something does so first, and returns `result` as the error of earlier
// work. With kStreamCaptureUnsupported or kStreamCaptureInvalidated it makes
// all captures invalid, as if it, or a call just before it, were forbidden.
SHARD_FAKE_CUDA_API void FailCall(const std::string& symbol, uint64_t call,
                                  cuda::CuResult result);
// Loses the devices at that call, or with the `operation`-th operation that
// runs from now on. Work that has not begun is dropped, and every call returns
// `result`, as above, once the operation that had begun has ended. No context
// can be made current, so that little can be freed.
SHARD_FAKE_CUDA_API void LoseAtCall(
    const std::string& symbol, uint64_t call,
    cuda::CuResult result = cuda::CuResult::kIllegalAddress);
SHARD_FAKE_CUDA_API void LoseAtOperation(
    uint64_t operation,
    cuda::CuResult result = cuda::CuResult::kIllegalAddress);

// Forgets the failures, of calls and of operations, that have not come yet.
SHARD_FAKE_CUDA_API void ClearFailures();

SHARD_FAKE_CUDA_API bool IsLost();

// Sets the algorithms that both fakes of cuBLAS have for any product, the best
// first, by the bytes of workspace that each needs. Without it and after Reset
// there is one, which needs 1 KiB.
SHARD_FAKE_CUDA_API void SetProductWorkspaces(
    const std::vector<size_t>& workspaces);

// ---- For fakes of libraries that use the driver ----

// What each call of a library does first, as those of the driver: it counts,
// and returns what it fails with.
SHARD_FAKE_CUDA_API cuda::CuResult EnterLibrary(const std::string& symbol);
// Enqueues a kernel of the library's: `run`, which accesses memory. It counts
// as so many blocks.
SHARD_FAKE_CUDA_API cuda::CuResult LaunchInLibrary(
    cuda::CuStream stream, const std::string& kernel,
    const std::vector<Access>& accesses, const std::function<void()>& run,
    uint64_t blocks = 1);
// Finds the algorithm for a product: the first of SetProductWorkspaces that
// needs at most `most` bytes of workspace. Returns false where there is none.
SHARD_FAKE_CUDA_API bool FindProductAlgorithm(size_t most, size_t* bytes);
// An object of the library's was made, 1, or destroyed, -1.
SHARD_FAKE_CUDA_API void CountLibraryObject(int change);

// A kernel of a library's that waits for more than streams, such as a
// collective, which waits for other ranks. It holds up nothing but its streams.
struct WaitingKernel {
  std::string name;
  // Need not be current.
  cuda::CuContext context;
  // It is in the order of all of them, and runs in the first.
  std::vector<cuda::CuStream> streams;
  std::vector<Access> accesses;
  // Called when the kernel gets its place in the streams: by the launch, or by
  // each launch of a graph. Returns a function that is called until it returns
  // kDone, unless the work is dropped. `begin` must not call the driver.
  std::function<std::function<Progress()>()> begin;
};
SHARD_FAKE_CUDA_API cuda::CuResult LaunchWaiting(const WaitingKernel& kernel);

// Memory that the driver has given.
struct Memory {
  const void* begin;
  size_t bytes;
  int device;
  bool is_pinned;
};
// Finds the memory in which an address lies; false: it is the host's own, or
// freed. As the functions below this is no call of the driver, and not counted.
SHARD_FAKE_CUDA_API bool FindMemory(const void* address, Memory* memory);
// Returns the calling thread's current context and its device, or null.
SHARD_FAKE_CUDA_API cuda::CuContext CurrentContext(int* device);

}  // namespace shard::testing::fake_cuda

#endif  // SHARD_TESTS_FAKE_CUDA_FAKE_CUDA_H_
