// SPDX-License-Identifier: Apache-2.0

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "tests/fake_cuda/fake.h"
#include "tests/fake_cuda/kernel_accesses.h"

namespace shard::testing::fake_cuda {

namespace {

Traffic Difference(const Traffic& after, const Traffic& before) {
  return {after.count - before.count, after.bytes - before.bytes};
}

std::map<std::string, uint64_t> Difference(
    const std::map<std::string, uint64_t>& after,
    const std::map<std::string, uint64_t>& before) {
  std::map<std::string, uint64_t> difference;
  for (const auto& [name, count] : after) {
    const auto found = before.find(name);
    const uint64_t old = found == before.end() ? 0 : found->second;
    if (count != old) difference[name] = count - old;
  }
  return difference;
}

void AddFailure(const Failure& failure) {
  Fake* const fake = TheFake();
  const std::lock_guard<std::mutex> lock(fake->mutex);
  fake->failures.push_back(failure);
}

}  // namespace

Fake* TheFake() {
  static auto* const fake = new Fake();
  return fake;
}

std::vector<Handle>* CurrentContexts(const Fake& fake) {
  struct Stack {
    uint64_t generation = 0;
    std::vector<Handle> contexts;
  };
  thread_local Stack stack;
  if (stack.generation != fake.generation) {
    stack.generation = fake.generation;
    stack.contexts.clear();
  }
  return &stack.contexts;
}

void Reset(const Options& options) {
  Fake* const fake = TheFake();
  std::unique_lock<std::mutex> lock(fake->mutex);
  fake->scheduler.Reset(options, &lock);
  fake->memory.Clear();
  fake->memory.set_guard(options.guard);
  fake->options = options;
  fake->counters = {};
  fake->violations.clear();
  fake->used_bytes.clear();
  fake->primary.clear();
  fake->contexts.clear();
  fake->streams.clear();
  fake->events.clear();
  fake->modules.clear();
  fake->functions.clear();
  fake->pools.clear();
  fake->descriptions.clear();
  fake->waits.clear();
  fake->failures.clear();
  fake->library_objects = 0;
  fake->product_workspaces = DefaultProductWorkspaces();
  fake->captures.clear();
  fake->graphs.clear();
  fake->lost = cuda::CuResult::kSuccess;
  ++fake->generation;
}

void SetCaptured(cuda::CuStream stream) {
  Fake* const fake = TheFake();
  const std::lock_guard<std::mutex> lock(fake->mutex);
  fake->captures.clear();
  if (stream == nullptr) return;
  fake->BeginCapture(stream, cuda::CuCaptureMode::kGlobal);
}

bool IsCaptured(cuda::CuStream stream) {
  Fake* const fake = TheFake();
  const std::lock_guard<std::mutex> lock(fake->mutex);
  return fake->IsCaptured(stream);
}

void Pause(uint64_t operations) {
  Fake* const fake = TheFake();
  const std::lock_guard<std::mutex> lock(fake->mutex);
  fake->scheduler.PauseAfter(operations);
}

void Resume() {
  Fake* const fake = TheFake();
  const std::lock_guard<std::mutex> lock(fake->mutex);
  fake->scheduler.Resume();
}

void RunAll() {
  Fake* const fake = TheFake();
  std::unique_lock<std::mutex> lock(fake->mutex);
  fake->scheduler.Drain(0, &lock);
}

size_t NumPending() {
  Fake* const fake = TheFake();
  const std::lock_guard<std::mutex> lock(fake->mutex);
  return fake->scheduler.num_pending();
}

Counters Count() {
  Fake* const fake = TheFake();
  const std::lock_guard<std::mutex> lock(fake->mutex);
  return fake->counters;
}

uint64_t CountInChild() { return TheFake()->calls_of_child.load(); }

Counters CountSince(const Counters& before) {
  const Counters after = Count();
  Counters made;
  made.calls = Difference(after.calls, before.calls);
  made.launches = Difference(after.launches, before.launches);
  made.blocks = Difference(after.blocks, before.blocks);
  made.to_device = Difference(after.to_device, before.to_device);
  made.to_host = Difference(after.to_host, before.to_host);
  made.on_device = Difference(after.on_device, before.on_device);
  made.on_host = Difference(after.on_host, before.on_host);
  made.memsets = Difference(after.memsets, before.memsets);
  made.pageable_copies = after.pageable_copies - before.pageable_copies;
  made.waits_of_host = after.waits_of_host - before.waits_of_host;
  return made;
}

std::vector<Violation> Violations() {
  Fake* const fake = TheFake();
  const std::lock_guard<std::mutex> lock(fake->mutex);
  return fake->violations;
}

void ClearViolations() {
  Fake* const fake = TheFake();
  const std::lock_guard<std::mutex> lock(fake->mutex);
  fake->violations.clear();
}

std::string ViolationText() {
  std::string text;
  for (const Violation& it : Violations()) text += it.text + "\n";
  return text;
}

void DescribeKernel(
    const std::string& kernel,
    std::function<std::vector<Access>(const void* args)> accesses) {
  Fake* const fake = TheFake();
  const std::lock_guard<std::mutex> lock(fake->mutex);
  fake->descriptions[kernel] = std::move(accesses);
}

void DescribeWaits(const std::string& kernel,
                   std::function<std::function<Progress()>(
                       const void* args, std::function<void()> run)>
                       begin) {
  Fake* const fake = TheFake();
  const std::lock_guard<std::mutex> lock(fake->mutex);
  fake->waits[kernel] = std::move(begin);
}

void CheckHostAccess(const Access& access, const std::string& what) {
  Fake* const fake = TheFake();
  const std::lock_guard<std::mutex> lock(fake->mutex);
  const auto begin = reinterpret_cast<uintptr_t>(access.memory);
  Allocation* allocation = nullptr;
  if (!Resolve(fake, what, begin, access.bytes, &allocation) ||
      allocation == nullptr) {
    return;
  }
  const Actor actor = fake->scheduler.HostActor(what);
  fake->memory.Check(allocation, access.writes ? Use::kWrite : Use::kRead,
                     begin, begin + access.bytes, actor,
                     fake->scheduler.host_clock(), &fake->violations);
}

Alive CountAlive() {
  Fake* const fake = TheFake();
  const std::lock_guard<std::mutex> lock(fake->mutex);
  Alive alive;
  for (const auto& [begin, it] : fake->memory.allocations()) {
    if (it.is_freed) continue;
    if (it.kind == MemoryKind::kPinned) {
      ++alive.pinned_allocations;
      alive.pinned_bytes += it.end - it.begin;
    } else {
      ++alive.device_allocations;
      alive.device_bytes += it.end - it.begin;
    }
  }
  alive.pools = fake->pools.size();
  alive.streams = fake->streams.size();
  alive.events = fake->events.size();
  alive.modules = fake->modules.size();
  for (const auto& [handle, it] : fake->contexts) {
    alive.context_retains += it.retains;
  }
  alive.graphs = fake->graphs.size();
  alive.library_objects = static_cast<size_t>(fake->library_objects);
  alive.current_contexts = CurrentContexts(*fake)->size();
  return alive;
}

std::string AliveText() {
  const Alive alive = CountAlive();
  std::string text;
  const auto add = [&](size_t count, const char* what) {
    if (count == 0) return;
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + what;
  };
  add(alive.device_allocations, "allocations of devices");
  add(alive.device_bytes, "bytes of devices");
  add(alive.pinned_allocations, "pinned allocations");
  add(alive.pinned_bytes, "pinned bytes");
  add(alive.pools, "memory pools");
  add(alive.streams, "streams");
  add(alive.events, "events");
  add(alive.modules, "modules");
  add(alive.context_retains, "retains of contexts");
  add(alive.library_objects, "objects of libraries");
  add(alive.graphs, "graphs");
  add(alive.current_contexts, "contexts that this thread has pushed");
  return text;
}

void FailCall(const std::string& symbol, uint64_t call, cuda::CuResult result) {
  AddFailure({symbol, call, result, false});
}

void LoseAtCall(const std::string& symbol, uint64_t call,
                cuda::CuResult result) {
  AddFailure({symbol, call, result, true});
}

void LoseAtOperation(uint64_t operation, cuda::CuResult result) {
  Fake* const fake = TheFake();
  const std::lock_guard<std::mutex> lock(fake->mutex);
  fake->scheduler.LoseAt(operation, [fake, result] { fake->Lose(result); });
}

void ClearFailures() {
  Fake* const fake = TheFake();
  const std::lock_guard<std::mutex> lock(fake->mutex);
  fake->failures.clear();
  fake->scheduler.LoseAt(0, nullptr);
}

void SetProductWorkspaces(const std::vector<size_t>& workspaces) {
  Fake* const fake = TheFake();
  const std::lock_guard<std::mutex> lock(fake->mutex);
  fake->product_workspaces = workspaces;
}

namespace {

// The failures of a program that is not linked with this header, each as
// FailCall has it: SHARD_FAKE_CUDA_FAIL="SYMBOL:CALL:RESULT", separated by
// commas.
struct FailuresOfEnvironment {
  FailuresOfEnvironment() {
    const char* const text = std::getenv("SHARD_FAKE_CUDA_FAIL");
    std::istringstream failures(text == nullptr ? "" : text);
    for (std::string failure; std::getline(failures, failure, ',');) {
      const size_t call = failure.find(':') + 1;
      const size_t result = failure.rfind(':') + 1;
      FailCall(failure.substr(0, call - 1), std::stoull(failure.substr(call)),
               static_cast<cuda::CuResult>(std::stoi(failure.substr(result))));
    }
  }
} failures_of_environment;

// Such a program has the algorithms of SHARD_FAKE_CUDA_PRODUCT_WORKSPACES, as
// SetProductWorkspaces has them, separated by commas.
struct ProductWorkspacesOfEnvironment {
  ProductWorkspacesOfEnvironment() {
    const char* const text = std::getenv("SHARD_FAKE_CUDA_PRODUCT_WORKSPACES");
    if (text == nullptr) return;
    std::istringstream list(text);
    std::vector<size_t> workspaces;
    for (std::string bytes; std::getline(list, bytes, ',');) {
      workspaces.push_back(std::stoull(bytes));
    }
    SetProductWorkspaces(workspaces);
  }
} product_workspaces_of_environment;

// Such a program has as many devices as SHARD_FAKE_CUDA_DEVICES says.
struct DevicesOfEnvironment {
  DevicesOfEnvironment() {
    const char* const text = std::getenv("SHARD_FAKE_CUDA_DEVICES");
    if (text != nullptr) TheFake()->options.devices = std::atoi(text);
  }
} devices_of_environment;

// Such a program has guarded devices with SHARD_FAKE_CUDA_GUARD.
struct GuardOfEnvironment {
  GuardOfEnvironment() {
    if (std::getenv("SHARD_FAKE_CUDA_GUARD") == nullptr) return;
    Fake* const fake = TheFake();
    fake->options.guard = true;
    fake->memory.set_guard(true);
  }
} guard_of_environment;

// The checks of such a program: with SHARD_FAKE_CUDA_STRICT it fails at its end
// where work had no order, that of kernels included, or where something is
// alive.
struct Strict {
  Strict() {
    if (std::getenv("SHARD_FAKE_CUDA_STRICT") != nullptr) DescribeKernels();
  }
  ~Strict() {
    const Fake& fake = *TheFake();
    if (std::getenv("SHARD_FAKE_CUDA_STRICT") == nullptr) return;
    if (fake.owner != ::getpid() || IsLost()) return;
    std::string wrong = AliveText();
    for (const Violation& violation : Violations()) {
      // Tests keep values for kernels in vectors.
      if (violation.kind == ViolationKind::kUnreachable) continue;
      wrong += "\n" + violation.text;
    }
    if (wrong.empty()) return;
    std::fprintf(stderr, "FAILED: fake CUDA driver: %s\n", wrong.c_str());
    ::_exit(1);
  }
} strict;

// Such a program writes how often it called each entry point to the file that
// SHARD_FAKE_CUDA_COUNTS names, at its end: "cuGraphLaunch 19", one a line.
struct CountsOfEnvironment {
  ~CountsOfEnvironment() {
    const char* const path = std::getenv("SHARD_FAKE_CUDA_COUNTS");
    if (path == nullptr || TheFake()->owner != ::getpid()) return;
    std::ofstream file(path);
    for (const auto& [symbol, count] : Count().calls) {
      file << symbol << ' ' << count << '\n';
    }
  }
} counts_of_environment;

}  // namespace

bool IsLost() {
  Fake* const fake = TheFake();
  const std::lock_guard<std::mutex> lock(fake->mutex);
  return fake->lost != cuda::CuResult::kSuccess;
}

}  // namespace shard::testing::fake_cuda
