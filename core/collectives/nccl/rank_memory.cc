// SPDX-License-Identifier: Apache-2.0

#include "core/collectives/nccl/rank_memory.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/collectives/nccl/rank_comms.h"

namespace shard::nccl {

namespace {

// Seconds until memory is left to the end, since NCCL is at another call.
constexpr double kFreeSeconds = 2;

// Returns whether a call has failed for want of memory, of the device or of the
// host. NCCL has no result for that, but tells it in its last error, which each
// failure of CUDA or of the system sets.
bool IsOutOfMemory(const Status& failed) {
  if (failed.code() != StatusCode::kUnavailable) return false;
  // The texts are CUDA's, that of ENOMEM, as for locked memory, and NCCL's own.
  for (const std::string_view text :
       {"out of memory", "Cannot allocate memory", "Failed to malloc",
        "Allocation failed"}) {
    if (failed.message().find(text) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

StatusOr<RankMemory::Allocated> RankMemory::Allocate(std::string_view what,
                                                     size_t bytes,
                                                     const Check& check) {
  if (comms_->has_ended()) {
    return Cancelled("NCCL's communicators were aborted before '", what, "'");
  }
  // Its place is there before the memory, which would be lost without one.
  std::map<std::byte*, Registered> place;
  place[nullptr] = {bytes, std::vector<void*>(comms_->num_comms()),
                    std::vector<NcclWindow>(comms_->num_comms())};
  void* memory = nullptr;
  const NcclResult result = comms_->library().api.MemAlloc(&memory, bytes);
  if (result != NcclResult::kSuccess) {
    return AllocationError(result, what, bytes);
  }
  Allocated made;
  made.data = static_cast<std::byte*>(memory);
  auto node = place.extract(place.begin());
  node.key() = made.data;
  Registered* registered = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    registered = &memory_->insert(std::move(node)).position->second;
  }
  bytes_ += bytes;
  const auto finish = [&]() -> Status {
    SHARD_RETURN_IF_ERROR(Register(made.data, registered, check));
    const std::vector<void*>& handles = registered->handles;
    made.is_registered =
        std::find(handles.begin(), handles.end(), nullptr) == handles.end();
    cuda::CuPointer begin = 0;
    SHARD_CUDA_CALL(comms_->context().driver(), MemGetAddressRange, &begin,
                    &made.taken_bytes,
                    reinterpret_cast<cuda::CuPointer>(memory));
    return Status();
  };
  const Status status = finish();
  if (status.ok()) return made;
  comms_->Free(made.data);
  return status.WithContext(what);
}

Status RankMemory::AllocationError(NcclResult result, std::string_view what,
                                   size_t bytes) const {
  const Status failed =
      comms_->library().ToStatus(result, "ncclMemAlloc", nullptr);
  const cuda::Context& context = comms_->context();
  size_t free = 0;
  size_t total = 0;
  SHARD_CUDA_CALL(context.driver(), MemGetInfo, &free, &total);
  if (free >= bytes && !IsOutOfMemory(failed)) {
    return failed.WithContext(what);
  }
  // Memory comes in pieces, so that some can be free all the same.
  const Status status = context.OutOfMemory(what, bytes);
  return Status(status.code(),
                StrCat(status.message(), " (", failed.message(), ")"));
}

Status RankMemory::Register(std::byte* memory, Registered* registered,
                            const Check& check) {
  const size_t bytes = registered->bytes;
  for (size_t i = 0; i < registered->handles.size(); ++i) {
    const auto make = [&](NcclComm comm) {
      return comms_->library().api.CommRegister(comm, memory, bytes,
                                                &registered->handles[i]);
    };
    const Status status = comms_->CallOn(i, "ncclCommRegister", make, check);
    if (status.ok()) continue;
    if (!IsOutOfMemory(status)) return status;
    return ResourceExhausted(
        "NCCL has no memory to register ", FormatBytes(bytes), " (", bytes,
        " bytes) of ", comms_->context().name(), ": ", status.message(),
        "; leave it more of the device's, raise the limit of locked memory "
        "(ulimit -l), or register none (NCCL_LOCAL_REGISTER=0)");
  }
  return Status();
}

RankMemory::Registered* RankMemory::Find(std::byte* memory) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = memory_->find(memory);
  return found == memory_->end() ? nullptr : &found->second;
}

StatusOr<NcclWindow> RankMemory::OpenWindow(size_t comm, std::byte* memory,
                                            const Check& check) {
  constexpr std::string_view kCall = "ncclCommWindowRegister";
  Registered* const registered = Find(memory);
  if (registered == nullptr) {
    return InvalidArgument(kCall, " of memory that is not registered");
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    registered->has_windows = true;
  }
  NcclWindow* const window = &registered->windows[comm];
  const auto make = [&](const NcclApi& api, NcclComm made_with) {
    return api.CommWindowRegister(made_with, memory, registered->bytes, window,
                                  kNcclSymmetric);
  };
  const Status status = comms_->Enqueue(kCall, comms_->set(comm), make, check);
  if (status.ok()) return *window;
  if (!IsOutOfMemory(status)) return status;
  return Status(StatusCode::kResourceExhausted,
                StrCat(status.message(), "; leave NCCL more of the memory of ",
                       comms_->context().name(),
                       ", or make no windows (NCCL_WIN_ENABLE=0 on all ranks)"),
                status.rank());
}

Status RankMemory::CloseWindows(std::byte* memory, const Check& check) {
  Registered* const registered = Find(memory);
  return registered == nullptr ? Status() : CloseWindows(registered, check);
}

Status RankMemory::CloseWindows(Registered* registered, const Check& check) {
  if (!registered->has_windows) return Status();
  for (size_t i = 0; i < registered->windows.size(); ++i) {
    NcclWindow& window = registered->windows[i];
    // CallOn waits for a call that makes the window, and tells it late.
    const auto close = [&](NcclComm comm) {
      return window == nullptr
                 ? NcclResult::kSuccess
                 : comms_->library().api.CommWindowDeregister(comm, window);
    };
    SHARD_RETURN_IF_ERROR(
        comms_->CallOn(i, "ncclCommWindowDeregister", close, check));
    window = nullptr;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  registered->has_windows = false;
  return Status();
}

NcclWindow RankMemory::FindWindow(std::byte* memory) const {
  const Registered* const registered = Find(memory);
  return registered == nullptr ? nullptr : registered->windows.front();
}

Status RankMemory::Free(std::byte* memory) {
  Registered* registered = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    registered = &memory_->at(memory);
  }
  const auto check = [deadline = Deadline::After(kFreeSeconds)] {
    return deadline.Expired()
               ? DeadlineExceeded("NCCL was at another call for ", kFreeSeconds,
                                  " s")
               : Status();
  };
  SHARD_RETURN_IF_ERROR(Deregister(registered, check));
  bytes_ -= registered->bytes;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    memory_->erase(memory);
  }
  comms_->library().api.MemFree(memory);
  return Status();
}

Status RankMemory::Deregister(Registered* registered, const Check& check) {
  if (comms_->has_ended()) {
    return Cancelled("NCCL's communicators were aborted");
  }
  SHARD_RETURN_IF_ERROR(CloseWindows(registered, check));
  for (size_t i = 0; i < registered->handles.size(); ++i) {
    void*& handle = registered->handles[i];
    if (handle == nullptr) continue;
    const auto make = [&](NcclComm comm) {
      return comms_->library().api.CommDeregister(comm, handle);
    };
    SHARD_RETURN_IF_ERROR(comms_->CallOn(i, "ncclCommDeregister", make, check));
    handle = nullptr;
  }
  return Status();
}

void RankMemory::FreeRest() {
  for (const auto& [memory, registered] : *memory_) {
    comms_->library().api.MemFree(memory);
  }
  memory_->clear();
}

size_t RankMemory::window_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  size_t bytes = 0;
  for (const auto& [memory, registered] : *memory_) {
    if (registered.has_windows) bytes += registered.bytes;
  }
  return bytes;
}

bool RankMemory::IsEmpty() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return memory_->empty();
}

}  // namespace shard::nccl
