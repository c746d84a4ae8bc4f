// SPDX-License-Identifier: Apache-2.0
//
// The entry points of the fake for memory that is registered.

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_nccl/entry.h"
#include "tests/fake_nccl/init.h"

// The fake driver exports them.
namespace shard::cuda {
extern "C" {
CuResult cuMemAlloc_v2(CuPointer* memory, size_t bytes);
CuResult cuMemFree_v2(CuPointer memory);
}
}  // namespace shard::cuda

namespace shard::testing::fake_nccl {

namespace {

const void* HandleOf(uint64_t number) {
  return reinterpret_cast<const void*>(number * 16);
}

// Registers memory of a communicator, under a new handle.
const void* Register(State* state, Comm* comm, const void* memory,
                     size_t bytes) {
  const void* const handle = HandleOf(++state->last_window);
  comm->registrations[handle] = {memory, bytes};
  return handle;
}

// Fails unless [memory, memory + bytes) is of the communicator's device.
Result CheckMemory(Entry* entry, const void* memory, size_t bytes) {
  const Comm& comm = *entry->comm();
  fake_cuda::Memory found = {};
  const bool valid = fake_cuda::FindMemory(memory, &found) &&
                     !found.is_pinned && found.device == comm.device &&
                     static_cast<const char*>(memory) + bytes <=
                         static_cast<const char*>(found.begin) + found.bytes;
  if (valid) return Result::kSuccess;
  const std::string text = entry->record()->symbol + " of " + comm.Describe() +
                           " is given no memory of device " +
                           std::to_string(comm.device);
  entry->state()->Add(ViolationKind::kNotDeviceMemory, text);
  return entry->Fail(Result::kInvalidArgument, text);
}

Result Deregister(Entry* entry, const void* handle) {
  if (entry->CheckReady() != Result::kSuccess) return entry->result();
  entry->comm()->windows.erase(handle);
  if (entry->comm()->registrations.erase(handle) != 0) {
    return entry->Return(Result::kSuccess);
  }
  return entry->Fail(Result::kInvalidArgument,
                     entry->record()->symbol + " : the handle is not known");
}

// Returns each rank's memory of a window, or null out of a rank's reach.
std::vector<std::byte*> InReach(const Comm& comm, int ranks_in_reach,
                                const std::vector<Part>& parts) {
  std::vector<std::byte*> memory;
  for (int rank = 0; rank < comm.size; ++rank) {
    const auto& [bytes, address, process] =
        parts[static_cast<size_t>(rank)].values;
    const bool is_near = ranks_in_reach == 0 ||
                         rank / ranks_in_reach == comm.rank / ranks_in_reach;
    memory.push_back(is_near && process == ::getpid()
                         ? reinterpret_cast<std::byte*>(address)
                         : nullptr);
  }
  return memory;
}

// All ranks register a window together.
Job WindowJob(const std::shared_ptr<Comm>& comm, const Options& options,
              const void* memory, size_t bytes, Window** made) {
  return [=, begun = std::make_shared<bool>(false),
          reach = options.ranks_in_reach]() {
    State* const state = TheState();
    if (!*begun) {
      comm->made_window = made;
      if (state->IsDead(*comm)) return Result::kInProgress;
      *begun = true;
      comm->segment->Announce(
          ++comm->rounds, comm->rank,
          {RoundKind::kWindow,
           {static_cast<int64_t>(bytes), reinterpret_cast<int64_t>(memory),
            ::getpid()}});
      return Result::kInProgress;
    }
    const std::vector<Part> parts = AwaitRound(comm.get(), RoundKind::kWindow);
    if (parts.empty()) return Result::kInProgress;
    const void* const handle = Register(state, comm.get(), memory, bytes);
    comm->windows[handle] = {comm->rounds,
                             static_cast<const std::byte*>(memory), bytes,
                             InReach(*comm, reach, parts)};
    comm->made_window = nullptr;
    *made = static_cast<Window*>(const_cast<void*>(handle));
    return Result::kSuccess;
  };
}

// Returns the communicator of a window, or null.
std::shared_ptr<Comm> CommOf(const Window* window) {
  State* const state = TheState();
  const std::lock_guard<std::mutex> lock(state->mutex);
  const std::lock_guard<std::mutex> records(state->records_mutex);
  for (const auto& [unused, comm] : state->comms) {
    if (comm->windows.count(window) != 0) return comm;
  }
  return nullptr;
}

}  // namespace

Result ncclMemAlloc(void** memory, size_t bytes) {
  Entry entry("ncclMemAlloc", nullptr, false, 21900);
  if (!entry.ok()) return entry.result();
  if (memory == nullptr || bytes == 0) {
    return entry.Return(Result::kInvalidArgument);
  }
  cuda::CuPointer made = 0;
  const size_t piece = entry.options().memory_piece;
  if (cuda::cuMemAlloc_v2(&made, (bytes + piece - 1) / piece * piece) !=
      cuda::CuResult::kSuccess) {
    return entry.Fail(Result::kUnhandledCudaError,
                      "Cuda failure 2 'out of memory'");
  }
  *memory = reinterpret_cast<void*>(made);
  entry.state()->allocations.insert(*memory);
  return entry.Return(Result::kSuccess);
}

Result ncclMemFree(void* memory) {
  Entry entry("ncclMemFree", nullptr, false, 21900);
  if (!entry.ok()) return entry.result();
  State* const state = entry.state();
  if (state->allocations.erase(memory) == 0) {
    return entry.Fail(Result::kInvalidArgument,
                      "ncclMemFree of memory that ncclMemAlloc has not given");
  }
  if (state->IsRegistered(memory)) {
    state->Add(ViolationKind::kRegistered,
               "ncclMemFree of memory that is registered");
  }
  // The driver waits for kernels, which wait for launches of other ranks.
  entry.Unlock();
  if (cuda::cuMemFree_v2(reinterpret_cast<cuda::CuPointer>(memory)) !=
      cuda::CuResult::kSuccess) {
    return entry.Fail(Result::kUnhandledCudaError,
                      "Cuda failure in ncclMemFree");
  }
  return entry.Return(Result::kSuccess);
}

Result ncclCommRegister(const Comm* comm, void* memory, size_t bytes,
                        void** handle) {
  SHARD_FAKE_NCCL_ENTER_SINCE(ncclCommRegister, 21900, comm);
  SHARD_FAKE_NCCL_READY();
  if (handle == nullptr) return entry.Return(Result::kInvalidArgument);
  if (CheckMemory(&entry, memory, bytes) != Result::kSuccess) {
    return entry.result();
  }
  *handle = entry.options().registers
                ? const_cast<void*>(Register(entry.state(), entry.comm().get(),
                                             memory, bytes))
                : nullptr;
  return entry.Return(Result::kSuccess);
}

Result ncclCommDeregister(const Comm* comm, void* handle) {
  SHARD_FAKE_NCCL_ENTER_SINCE(ncclCommDeregister, 21900, comm);
  if (handle == nullptr) return entry.Return(Result::kSuccess);
  return Deregister(&entry, handle);
}

Result ncclCommWindowRegister(Comm* comm, void* memory, size_t bytes,
                              Window** made, int /*flags*/) {
  SHARD_FAKE_NCCL_ENTER_SINCE(ncclCommWindowRegister, 22700, comm);
  SHARD_FAKE_NCCL_READY();
  if (made == nullptr) return entry.Return(Result::kInvalidArgument);
  *made = nullptr;
  entry.CheckContext(*entry.comm());
  if (CheckMemory(&entry, memory, bytes) != Result::kSuccess) {
    return entry.result();
  }
  if (reinterpret_cast<uintptr_t>(memory) % kWindowAlignment != 0) {
    return entry.Fail(Result::kInvalidArgument,
                      "Window address must be 4096 byte aligned");
  }
  const Options& options = entry.options();
  if (!options.makes_windows ||
      entry.comm()->world_rank == options.rank_without_windows) {
    return entry.Return(Result::kSuccess);
  }
  return entry.Begin(
      entry.comm(), entry.options().polls.window,
      WindowJob(entry.comm(), entry.options(), memory, bytes, made));
}

Result ncclCommWindowDeregister(Comm* comm, Window* window) {
  SHARD_FAKE_NCCL_ENTER_SINCE(ncclCommWindowDeregister, 22700, comm);
  return Deregister(&entry, window);
}

Result ncclGetPeerDevicePointer(Window* window, size_t offset, int peer,
                                void** made) {
  const std::shared_ptr<Comm> comm = CommOf(window);
  // It uses the communicator, which NCCL finds by the window.
  Entry entry("ncclGetPeerDevicePointer", comm.get(), comm != nullptr, 22902);
  if (!entry.ok()) return entry.result();
  if (comm == nullptr || made == nullptr || peer < 0 || peer >= comm->size) {
    return entry.Return(Result::kInvalidArgument);
  }
  const auto found = comm->windows.find(window);
  if (found == comm->windows.end()) {
    return entry.Return(Result::kInvalidArgument);
  }
  std::byte* const memory = found->second.peers[static_cast<size_t>(peer)];
  *made = memory == nullptr ? nullptr : memory + offset;
  return entry.Return(Result::kSuccess);
}

}  // namespace shard::testing::fake_nccl
