// SPDX-License-Identifier: Apache-2.0
//
// The entry points of the fake driver for modules and launches, and launches of
// libraries.

#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/fake_cuda/call.h"

namespace shard::testing::fake_cuda {

namespace {

// Notes that an operation uses memory. Returns false where it would fault.
bool CheckUse(Fake* fake, const Operation& operation, uintptr_t begin,
              size_t bytes, Use how) {
  const std::string& name = operation.actor.name;
  Allocation* allocation = nullptr;
  if (!Resolve(fake, name, begin, bytes, &allocation)) return false;
  if (allocation != nullptr) {
    fake->memory.Check(allocation, how, begin, begin + bytes, operation.actor,
                       operation.clock, &fake->violations);
  } else {
    // The host's build of the kernel reaches it.
    fake->Add(ViolationKind::kUnreachable,
              name + " uses memory of the host that is not pinned");
  }
  return true;
}

// Notes what a launch accesses. Returns false where the kernel would fault.
bool CheckLaunch(Fake* fake, const cuda::HostKernel& kernel,
                 const std::vector<uint64_t>& args, int device,
                 const Operation& operation) {
  bool valid = true;
  for (const uint64_t word : args) {
    // A small number, beside padding that holds whatever was there before.
    if (static_cast<uint32_t>(word) < 16) continue;
    const Allocation* const found = fake->memory.Find(word);
    // A pointer to the end is used by none.
    // That of other devices is in the order of waits that the fake does not
    // see.
    if (found != nullptr && word < found->end &&
        (found->device == device || IsPinned(found))) {
      valid &= CheckUse(fake, operation, word, 1, Use::kKernel);
    }
  }
  const auto described = fake->descriptions.find(kernel.name);
  if (described == fake->descriptions.end() || !valid) return valid;
  // An operation that runs has opened the memory, and closes it.
  const bool opens = !fake->scheduler.is_running();
  if (opens) fake->memory.Protect(true);
  const std::vector<Access> accesses = described->second(args.data());
  if (opens) fake->memory.Protect(false);
  return CheckAccesses(fake, operation, accesses);
}

const cuda::HostKernel* FindKernel(const Fake& fake, const char* name) {
  for (const cuda::HostKernel& it : cuda::HostKernels()) {
    if (std::strcmp(it.name, name) == 0) return &it;
  }
  for (const cuda::HostKernel& it : fake.added_kernels) {
    if (std::strcmp(it.name, name) == 0) return &it;
  }
  return nullptr;
}

}  // namespace

bool CheckAccesses(Fake* fake, const Operation& operation,
                   const std::vector<Access>& accesses) {
  bool valid = true;
  for (const Access& access : accesses) {
    valid &=
        CheckUse(fake, operation, reinterpret_cast<uintptr_t>(access.memory),
                 access.bytes, access.writes ? Use::kWrite : Use::kRead);
  }
  return valid;
}

CuResult EnterLibrary(const std::string& symbol) {
  const Call call(symbol.c_str());
  if (!call.ok()) return call.result();
  return call.current() == nullptr ? CuResult::kInvalidContext
                                   : CuResult::kSuccess;
}

CuResult LaunchInLibrary(cuda::CuStream handle, const std::string& kernel,
                         const std::vector<Access>& accesses,
                         const std::function<void()>& run, uint64_t blocks) {
  // The driver's own call for it.
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuLaunchKernel);
  SHARD_FAKE_CUDA_FIND_STREAM(handle, stream);
  fake->Give(handle, stream, [fake, kernel, accesses, run, blocks](Stream* on) {
    const auto operation = fake->scheduler.Enqueue(on, kernel, nullptr);
    ++fake->counters.launches[kernel];
    fake->counters.blocks[kernel] += blocks;
    if (CheckAccesses(fake, *operation, accesses)) operation->run = run;
  });
  return CuResult::kSuccess;
}

void AddKernel(const char* name, size_t arg_bytes,
               void (*run)(const void* args, uint32_t blocks,
                           uint32_t threads)) {
  Fake* const fake = TheFake();
  const std::lock_guard<std::mutex> lock(fake->mutex);
  fake->added_kernels.push_back({name, arg_bytes, run});
}

bool FindProductAlgorithm(size_t most, size_t* bytes) {
  Fake* const fake = TheFake();
  const std::lock_guard<std::mutex> lock(fake->mutex);
  for (const size_t needed : fake->product_workspaces) {
    if (needed > most) continue;
    *bytes = needed;
    return true;
  }
  return false;
}

void CountLibraryObject(int change) {
  Fake* const fake = TheFake();
  if (fake->owner.load() != ::getpid()) return;
  const std::lock_guard<std::mutex> lock(fake->mutex);
  fake->library_objects += change;
}

}  // namespace shard::testing::fake_cuda

namespace shard::cuda {

// NOLINTBEGIN
using namespace shard::testing::fake_cuda;
// NOLINTEND

CuResult cuModuleLoadData(CuModule* module, const void* image) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuModuleLoadData);
  if (image == nullptr) return CuResult::kInvalidValue;
  const Handle handle = fake->MakeHandle();
  fake->modules[handle] = {call.current_handle()};
  *module = reinterpret_cast<CuModule>(handle);
  return CuResult::kSuccess;
}

CuResult cuModuleUnload(CuModule module) {
  Call call("cuModuleUnload");
  if (!call.frees()) return call.result();
  Fake* const fake = call.fake();
  const Handle handle = HandleOf(module);
  if (fake->modules.erase(handle) == 0) return CuResult::kInvalidHandle;
  std::erase_if(fake->functions, [handle](const auto& it) {
    return it.second.module == handle;
  });
  return call.result();
}

CuResult cuModuleGetFunction(CuFunction* function, CuModule module,
                             const char* name) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuModuleGetFunction);
  const Handle from = HandleOf(module);
  const Module* const found = FindIn(&fake->modules, from);
  if (found == nullptr) return CuResult::kInvalidHandle;
  if (found->context != call.current_handle()) return CuResult::kInvalidContext;
  const HostKernel* const kernel = FindKernel(*fake, name);
  if (kernel == nullptr) return CuResult::kNotFound;
  const Handle handle = fake->MakeHandle();
  fake->functions[handle] = {from, kernel};
  *function = reinterpret_cast<CuFunction>(handle);
  return CuResult::kSuccess;
}

CuResult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks,
                                                     CuFunction function,
                                                     int threads,
                                                     size_t /*shared_bytes*/) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuOccupancyMaxActiveBlocksPerMultiprocessor);
  if (FindIn(&fake->functions, HandleOf(function)) == nullptr) {
    return CuResult::kInvalidHandle;
  }
  if (threads <= 0 || threads > 1024) return CuResult::kInvalidValue;
  *blocks = fake->options.blocks_per_multiprocessor;
  return CuResult::kSuccess;
}

CuResult cuLaunchKernel(CuFunction function, unsigned grid_x, unsigned grid_y,
                        unsigned grid_z, unsigned block_x, unsigned block_y,
                        unsigned block_z, unsigned shared_bytes,
                        CuStream handle, void** params, void** extra) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuLaunchKernel);
  const Function* const found = FindIn(&fake->functions, HandleOf(function));
  if (found == nullptr) return CuResult::kInvalidHandle;
  if (fake->modules[found->module].context != call.current_handle()) {
    return CuResult::kInvalidContext;
  }
  SHARD_FAKE_CUDA_FIND_STREAM(handle, stream);
  constexpr unsigned kMostShared = 48 << 10;  // That need not be asked for.
  // The host's kernels are of one dimension.
  if (grid_x == 0 || grid_y != 1 || grid_z != 1 || block_x == 0 ||
      block_x > 1024 || block_x % 32 != 0 || block_y != 1 || block_z != 1 ||
      shared_bytes > kMostShared || params == nullptr || params[0] == nullptr ||
      extra != nullptr) {
    return CuResult::kInvalidValue;
  }
  const HostKernel& kernel = *found->kernel;
  std::vector<uint64_t> args(kernel.arg_bytes / 8 + 1);
  std::memcpy(args.data(), params[0], kernel.arg_bytes);
  fake->Give(handle, stream, [=, &kernel](Stream* on) {
    const auto operation = fake->scheduler.Enqueue(on, kernel.name, nullptr);
    ++fake->counters.launches[kernel.name];
    fake->counters.blocks[kernel.name] += grid_x;
    if (!CheckLaunch(fake, kernel, args, on->device, *operation)) return;
    const auto copy = std::make_shared<const std::vector<uint64_t>>(args);
    const auto run = [&kernel, copy, grid_x, block_x] {
      kernel.run(copy->data(), grid_x, block_x);
    };
    const auto waits = fake->waits.find(kernel.name);
    if (waits == fake->waits.end()) {
      operation->run = run;
    } else {
      operation->attempt = waits->second(copy->data(), run);
    }
  });
  return CuResult::kSuccess;
}

}  // namespace shard::cuda
