// SPDX-License-Identifier: Apache-2.0
//
// The state of the fake driver, which its entry points (driver.cc) and its
// control (control.cc) share.

#ifndef SHARD_TESTS_FAKE_CUDA_FAKE_H_
#define SHARD_TESTS_FAKE_CUDA_FAKE_H_

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/device/cuda/driver_api.h"
#include "kernels/cuda/host_kernels.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/memory_map.h"
#include "tests/fake_cuda/scheduler.h"

namespace shard::testing::fake_cuda {

// A handle is a number that no other object of the process ever had.
using Handle = uint64_t;

struct Context {
  int device;
  size_t retains;
  std::shared_ptr<Stream> legacy;
};

struct Module {
  Handle context;
};

struct Function {
  Handle module;
  const cuda::HostKernel* kernel;
};

struct Event {
  Handle context;
  Handle captured_in = 0;  // The captured stream of the last record, or none.
  bool is_timed = false;
  std::shared_ptr<Operation> record;  // The last; null: never recorded.
  int queries = 0;                    // Of that, while it was not done.
};

struct Pool {
  // Memory that was freed, and is for allocations of this pool alone until the
  // host knows of the free and trims the pool.
  struct Kept {
    Actor free;
    size_t bytes;
  };

  int device;
  std::vector<Kept> kept = {};

  size_t KeptBytes() const {
    size_t bytes = 0;
    for (const Kept& it : kept) bytes += it.bytes;
    return bytes;
  }
};

// The work of a graph. Each gives a stream one operation.
using Graph = std::vector<std::function<void(Stream*)>>;

// A capture of the work of a stream.
struct Capture {
  cuda::CuCaptureMode mode;
  std::thread::id thread;  // That has begun it.
  Graph graph;
  uint64_t id = 0;  // That no other capture has.
  // A call was made that the capture forbids: no graph comes of it.
  bool is_invalid = false;
};

// A call that is to fail.
struct Failure {
  std::string symbol;  // "": any.
  uint64_t calls;      // Until then.
  cuda::CuResult result;
  bool loses;  // The devices, too.
};

inline std::vector<size_t> DefaultProductWorkspaces() { return {1024}; }

struct Fake {
  Fake() : scheduler(&mutex, [this](bool open) { memory.Protect(open); }) {}

  Handle MakeHandle() { return next_handle += 16; }
  // Begins a capture by this thread.
  void BeginCapture(cuda::CuStream stream, cuda::CuCaptureMode mode) {
    captures[reinterpret_cast<Handle>(stream)] = {
        mode, std::this_thread::get_id(), {}, ++num_captures};
  }
  bool IsCaptured(cuda::CuStream stream) const {
    return captures.count(reinterpret_cast<Handle>(stream)) != 0;
  }
  // Whether the stream is captured, and no graph will come of it.
  bool IsInvalid(cuda::CuStream stream) const {
    const auto found = captures.find(reinterpret_cast<Handle>(stream));
    return found != captures.end() && found->second.is_invalid;
  }
  // Makes a capture invalid by a call that it forbids, where there still is
  // one.
  void Invalidate(Handle captured_stream) {
    const auto found = captures.find(captured_stream);
    if (found != captures.end()) found->second.is_invalid = true;
  }
  // Gives a stream an operation, which `enqueue` does, or keeps it where the
  // stream is captured.
  void Give(cuda::CuStream handle, Stream* stream,
            const std::function<void(Stream*)>& enqueue) {
    if (IsCaptured(handle)) {
      captures[reinterpret_cast<Handle>(handle)].graph.push_back(enqueue);
    } else {
      enqueue(stream);
    }
  }
  // The work is lost, and each call from here on returns `result`.
  void Lose(cuda::CuResult result) {
    lost = result;
    scheduler.Drop();
  }
  // Returns what a device can still give, but for what pools keep.
  size_t FreeBytes(int device) {
    size_t bytes = options.memory_bytes - used_bytes[device];
    for (const auto& [handle, pool] : pools) {
      if (pool.device == device) bytes -= pool.KeptBytes();
    }
    return bytes;
  }
  void Add(ViolationKind kind, const std::string& text) {
    violations.push_back({kind, text});
  }

  // The process that has called cuInit, 0 before.
  std::atomic<pid_t> owner = 0;
  // Calls in this process, which is a child of fork, of objects of the owner's.
  std::atomic<uint64_t> calls_of_child = 0;

  std::mutex mutex;
  // GUARDED_BY(mutex):
  Options options;
  Counters counters;
  std::vector<Violation> violations;
  MemoryMap memory;
  Scheduler scheduler;
  std::map<int, size_t> used_bytes;  // By device; -1: pinned.
  std::map<int, Handle> primary;     // Contexts, by device.
  std::map<Handle, Context> contexts;
  std::map<Handle, std::shared_ptr<Stream>> streams;
  std::map<Handle, Event> events;
  std::map<Handle, Module> modules;
  std::map<Handle, Function> functions;
  std::map<Handle, Pool> pools;
  std::deque<cuda::HostKernel> added_kernels;
  std::map<std::string, std::function<std::vector<Access>(const void*)>>
      descriptions;
  std::map<std::string, std::function<std::function<Progress()>(
                            const void* args, std::function<void()> run)>>
      waits;
  std::vector<Failure> failures;
  int library_objects = 0;
  std::vector<size_t> product_workspaces = DefaultProductWorkspaces();
  std::map<Handle, Capture> captures;  // By stream.
  uint64_t num_captures = 0;           // Until now.
  // Of graphs, and of those that can be launched.
  std::map<Handle, Graph> graphs;
  cuda::CuResult lost = cuda::CuResult::kSuccess;
  uint64_t generation = 0;  // Of Resets.
  Handle next_handle = 0x1000;
};

// Returns the fake of the process, which is never destroyed.
Fake* TheFake();

// Returns the contexts that the calling thread has pushed.
std::vector<Handle>* CurrentContexts(const Fake& fake);

// Checks that an operation may use [begin, begin + bytes), and finds the
// allocation: null for memory that is the host's own. Adds a violation, and
// returns false, where it may not.
bool Resolve(Fake* fake, const std::string& what, uintptr_t begin, size_t bytes,
             Allocation** allocation);

// The same for all accesses of a kernel. Returns false where it would fault.
bool CheckAccesses(Fake* fake, const Operation& operation,
                   const std::vector<Access>& accesses);

}  // namespace shard::testing::fake_cuda

#endif  // SHARD_TESTS_FAKE_CUDA_FAKE_H_
