// SPDX-License-Identifier: Apache-2.0
//
// The entry points of the fake driver for memory and copies.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "tests/fake_cuda/call.h"

namespace shard::testing::fake_cuda {

namespace {

// Makes an allocation, unless there is no room. `pool`: its pool, or null.
CuResult Allocate(Fake* fake, MemoryKind kind, int device, Handle context,
                  size_t bytes, Pool* pool, Allocation** allocation) {
  if (bytes == 0) return CuResult::kInvalidValue;
  const bool pinned = kind == MemoryKind::kPinned;
  size_t& used = fake->used_bytes[pinned ? -1 : device];
  const size_t free =
      pinned ? fake->options.pinned_bytes - used : fake->FreeBytes(device);
  const size_t kept = pool == nullptr ? 0 : std::min(bytes, pool->KeptBytes());
  if (bytes - kept > free) return CuResult::kOutOfMemory;
  *allocation = fake->memory.Allocate(kind, device, context, bytes);
  if (*allocation == nullptr) return CuResult::kOutOfMemory;
  for (size_t left = kept; left > 0;) {
    Pool::Kept& last = pool->kept.back();
    const size_t part = std::min(left, last.bytes);
    left -= part;
    last.bytes -= part;
    if (last.bytes == 0) pool->kept.pop_back();
  }
  used += bytes;
  return CuResult::kSuccess;
}

void MarkFreed(Fake* fake, Allocation* allocation, const std::string& by) {
  allocation->is_freed = true;
  allocation->freed_by = by;
  fake->used_bytes[IsPinned(allocation) ? -1 : allocation->device] -=
      allocation->end - allocation->begin;
}

void Release(Fake* fake, Allocation* allocation) {
  if (!fake->memory.Release(allocation)) return;
  fake->Add(ViolationKind::kOverrun,
            "something was written behind the end of the " +
                std::to_string(allocation->end - allocation->begin) +
                " bytes that are freed by " + allocation->freed_by);
}

// Finds an allocation that begins at `begin` and is alive.
Allocation* FindWhole(Fake* fake, uintptr_t begin) {
  Allocation* const found = fake->memory.Find(begin);
  if (found == nullptr || found->begin != begin) return nullptr;
  if (!found->is_freed) return found;
  fake->Add(ViolationKind::kUseAfterFree,
            "memory is freed again that was freed by " + found->freed_by);
  return nullptr;
}

// Frees memory while the host waits for the device.
CuResult FreeNow(Call* call, const char* symbol, uintptr_t begin, bool pinned) {
  Fake* const fake = call->fake();
  Allocation* const allocation = FindWhole(fake, begin);
  if (allocation == nullptr || IsPinned(allocation) != pinned) {
    return CuResult::kInvalidValue;
  }
  const Actor actor = fake->scheduler.HostActor(symbol);
  const size_t before = fake->violations.size();
  // What was dropped with a lost device uses nothing any more.
  if (!call->is_lost()) {
    fake->memory.Check(allocation, Use::kFree, begin, allocation->end, actor,
                       fake->scheduler.host_clock(), &fake->violations);
  }
  const bool is_unordered = fake->violations.size() != before;
  MarkFreed(fake, allocation, actor.name);
  ++fake->counters.waits_of_host;
  // Drivers do, but do not promise it: the host has learned nothing.
  fake->scheduler.Drain(allocation->context, call->lock());
  // Other devices may still use what has no order. They would fault, and the
  // test would not tell why.
  if (!is_unordered) Release(fake, allocation);
  return call->result();
}

// Copies memory. The host may use a word that is copied alone meanwhile.
void MoveBytes(uintptr_t to, uintptr_t from, size_t bytes) {
  constexpr size_t kWord = sizeof(uint32_t);
  if (bytes == kWord && to % kWord == 0 && from % kWord == 0) {
    const auto* const word = reinterpret_cast<const uint32_t*>(from);
    __atomic_store_n(reinterpret_cast<uint32_t*>(to),
                     __atomic_load_n(word, __ATOMIC_SEQ_CST), __ATOMIC_SEQ_CST);
    return;
  }
  std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from),
               bytes);
}

void CountCopy(Fake* fake, const Allocation* to, const Allocation* from,
               size_t bytes) {
  Counters& counters = fake->counters;
  const bool to_device = to != nullptr && !IsPinned(to);
  const bool from_device = from != nullptr && !IsPinned(from);
  Traffic& traffic =
      to_device ? (from_device ? counters.on_device : counters.to_device)
                : (from_device ? counters.to_host : counters.on_host);
  ++traffic.count;
  traffic.bytes += bytes;
  if (to == nullptr || from == nullptr) ++counters.pageable_copies;
}

}  // namespace

bool Resolve(Fake* fake, const std::string& what, uintptr_t begin, size_t bytes,
             Allocation** allocation) {
  *allocation = fake->memory.Find(begin);
  if (*allocation == nullptr) return true;
  if ((*allocation)->is_freed) {
    fake->Add(
        ViolationKind::kUseAfterFree,
        what + " uses memory that was freed by " + (*allocation)->freed_by);
    return false;
  }
  if (begin <= (*allocation)->end && bytes <= (*allocation)->end - begin) {
    return true;
  }
  fake->Add(ViolationKind::kOutOfBounds,
            what + " uses " + std::to_string(bytes) + " bytes from byte " +
                std::to_string(begin - (*allocation)->begin) + " of " +
                std::to_string((*allocation)->end - (*allocation)->begin));
  return false;
}

}  // namespace shard::testing::fake_cuda

namespace shard::cuda {

// NOLINTBEGIN
using namespace shard::testing::fake_cuda;
// NOLINTEND

CuResult cuMemAlloc_v2(CuPointer* memory, size_t bytes) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuMemAlloc_v2);
  Allocation* allocation = nullptr;
  const CuResult result =
      Allocate(fake, MemoryKind::kDevice, call.current()->device,
               call.current_handle(), bytes, nullptr, &allocation);
  if (result == CuResult::kSuccess) *memory = allocation->begin;
  return result;
}

CuResult cuMemFree_v2(CuPointer memory) {
  Call call("cuMemFree_v2");
  if (!call.frees()) return call.result();
  if (!call.is_lost() && call.current() == nullptr)
    return CuResult::kInvalidContext;
  return FreeNow(&call, "cuMemFree", memory, false);
}

CuResult cuMemPoolCreate(CuMemoryPool* pool, const CuMemoryPoolProps* props) {
  SHARD_FAKE_CUDA_ENTER(cuMemPoolCreate);
  if (!fake->options.memory_pools) return CuResult::kNotSupported;
  if (props->allocation_type != 1 || props->location_type != 1 ||
      props->handle_types != 0) {
    return CuResult::kInvalidValue;
  }
  if (!IsDevice(*fake, props->location_id)) return CuResult::kInvalidDevice;
  const Handle handle = fake->MakeHandle();
  fake->pools[handle].device = props->location_id;
  *pool = reinterpret_cast<CuMemoryPool>(handle);
  return CuResult::kSuccess;
}

CuResult cuMemPoolDestroy(CuMemoryPool pool) {
  Call call("cuMemPoolDestroy");
  if (!call.frees()) return call.result();
  return call.fake()->pools.erase(HandleOf(pool)) == 0 ? CuResult::kInvalidValue
                                                       : call.result();
}

CuResult cuMemPoolTrimTo(CuMemoryPool pool, size_t bytes) {
  SHARD_FAKE_CUDA_ENTER(cuMemPoolTrimTo);
  Pool* const found = FindIn(&fake->pools, HandleOf(pool));
  if (found == nullptr) return CuResult::kInvalidValue;
  if (bytes != 0) return CuResult::kNotSupported;  // Of the fake.
  const Clock& host = fake->scheduler.host_clock();
  std::erase_if(found->kept, [&host](const Pool::Kept& it) {
    return host.Has(it.free.stream, it.free.number);
  });
  return CuResult::kSuccess;
}

CuResult cuMemAllocFromPoolAsync(CuPointer* memory, size_t bytes,
                                 CuMemoryPool pool, CuStream handle) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuMemAllocFromPoolAsync);
  SHARD_FAKE_CUDA_FIND_STREAM(handle, stream);
  Pool* const found = FindIn(&fake->pools, HandleOf(pool));
  if (found == nullptr) return CuResult::kInvalidValue;
  Allocation* allocation = nullptr;
  const CuResult result = Allocate(fake, MemoryKind::kPool, found->device,
                                   stream->context, bytes, found, &allocation);
  if (result != CuResult::kSuccess) return result;
  allocation->pool = HandleOf(pool);
  const auto operation =
      fake->scheduler.Enqueue(stream, "cuMemAllocFromPoolAsync", nullptr);
  fake->memory.Check(allocation, Use::kAllocate, allocation->begin,
                     allocation->end, operation->actor, operation->clock,
                     &fake->violations);
  *memory = allocation->begin;
  return CuResult::kSuccess;
}

CuResult cuMemFreeAsync(CuPointer memory, CuStream handle) {
  Call call("cuMemFreeAsync");
  if (!call.frees()) return call.result();
  Fake* const fake = call.fake();
  SHARD_FAKE_CUDA_FIND_STREAM(handle, stream);
  Allocation* const allocation = FindWhole(fake, memory);
  if (allocation == nullptr || allocation->kind != MemoryKind::kPool) {
    return CuResult::kInvalidValue;
  }
  if (call.is_lost()) {
    MarkFreed(fake, allocation, "cuMemFreeAsync");
    return call.result();
  }
  const auto operation =
      fake->scheduler.Enqueue(stream, "cuMemFreeAsync", nullptr);
  const size_t before = fake->violations.size();
  fake->memory.Check(allocation, Use::kFree, allocation->begin, allocation->end,
                     operation->actor, operation->clock, &fake->violations);
  MarkFreed(fake, allocation, operation->actor.name);
  if (Pool* const pool = FindIn(&fake->pools, allocation->pool)) {
    pool->kept.push_back(
        {operation->actor, allocation->end - allocation->begin});
  }
  // What is not ordered before it would fault, and the test would not tell why.
  if (fake->violations.size() != before) return call.result();
  operation->run = [fake, allocation] {
    const std::lock_guard<std::mutex> lock(fake->mutex);
    Release(fake, allocation);
  };
  return call.result();
}

CuResult cuMemHostAlloc(void** memory, size_t bytes, unsigned flags) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuMemHostAlloc);
  if ((flags & ~(kHostAllocPortable | kHostAllocDeviceMap)) != 0) {
    return CuResult::kInvalidValue;
  }
  Allocation* allocation = nullptr;
  const CuResult result =
      Allocate(fake, MemoryKind::kPinned, call.current()->device,
               call.current_handle(), bytes, nullptr, &allocation);
  if (result == CuResult::kSuccess) {
    *memory = reinterpret_cast<void*>(allocation->begin);
  }
  return result;
}

CuResult cuMemFreeHost(void* memory) {
  Call call("cuMemFreeHost");
  if (!call.frees()) return call.result();
  if (!call.is_lost() && call.current() == nullptr)
    return CuResult::kInvalidContext;
  return FreeNow(&call, "cuMemFreeHost", reinterpret_cast<uintptr_t>(memory),
                 true);
}

CuResult cuMemcpyAsync(CuPointer to, CuPointer from, size_t bytes,
                       CuStream handle) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuMemcpyAsync);
  SHARD_FAKE_CUDA_FIND_STREAM(handle, stream);
  if (bytes == 0) return CuResult::kSuccess;
  if (to == 0 || from == 0) return CuResult::kInvalidValue;
  // Of a call whose operation is not kept for later.
  const auto result = std::make_shared<CuResult>(CuResult::kSuccess);
  fake->Give(handle, stream, [=](Stream* on) {
    const std::string name =
        "cuMemcpyAsync of " + std::to_string(bytes) + " bytes";
    Allocation* target = nullptr;
    Allocation* source = nullptr;
    if (!Resolve(fake, name, to, bytes, &target) ||
        !Resolve(fake, name, from, bytes, &source)) {
      *result = CuResult::kInvalidValue;
      return;
    }
    const auto operation = fake->scheduler.Enqueue(
        on, name, [to, from, bytes] { MoveBytes(to, from, bytes); });
    if (source != nullptr) {
      fake->memory.Check(source, Use::kRead, from, from + bytes,
                         operation->actor, operation->clock, &fake->violations);
    }
    if (target != nullptr) {
      fake->memory.Check(target, Use::kWrite, to, to + bytes, operation->actor,
                         operation->clock, &fake->violations);
    }
    CountCopy(fake, target, source, bytes);
  });
  return *result;
}

CuResult cuMemsetD8Async(CuPointer to, unsigned char value, size_t bytes,
                         CuStream handle) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuMemsetD8Async);
  SHARD_FAKE_CUDA_FIND_STREAM(handle, stream);
  if (bytes == 0) return CuResult::kSuccess;
  // Of a call whose operation is not kept for later.
  const auto result = std::make_shared<CuResult>(CuResult::kSuccess);
  fake->Give(handle, stream, [=](Stream* on) {
    const std::string name =
        "cuMemsetD8Async of " + std::to_string(bytes) + " bytes";
    Allocation* target = nullptr;
    // A device reaches no memory of the host but what is pinned.
    if (!Resolve(fake, name, to, bytes, &target) || target == nullptr) {
      *result = CuResult::kInvalidValue;
      return;
    }
    const auto operation =
        fake->scheduler.Enqueue(on, name, [to, value, bytes] {
          std::memset(reinterpret_cast<void*>(to), value, bytes);
        });
    fake->memory.Check(target, Use::kWrite, to, to + bytes, operation->actor,
                       operation->clock, &fake->violations);
    ++fake->counters.memsets.count;
    fake->counters.memsets.bytes += bytes;
  });
  return *result;
}

CuResult cuMemGetAddressRange_v2(CuPointer* begin, size_t* bytes,
                                 CuPointer memory) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuMemGetAddressRange_v2);
  const Allocation* const found = fake->memory.Find(memory);
  if (found == nullptr || found->is_freed || memory >= found->end) {
    return CuResult::kInvalidValue;
  }
  if (begin != nullptr) *begin = found->begin;
  if (bytes != nullptr) *bytes = found->end - found->begin;
  return CuResult::kSuccess;
}

CuResult cuPointerGetAttribute(void* value, CuPointerAttribute attribute,
                               CuPointer pointer) {
  SHARD_FAKE_CUDA_ENTER(cuPointerGetAttribute);
  const Allocation* const found = fake->memory.Find(pointer);
  if (found == nullptr || found->is_freed || pointer >= found->end) {
    return CuResult::kInvalidValue;
  }
  switch (attribute) {
    case CuPointerAttribute::kMemoryType:
      *static_cast<CuMemoryType*>(value) =
          IsPinned(found) ? CuMemoryType::kHost : CuMemoryType::kDevice;
      return CuResult::kSuccess;
    case CuPointerAttribute::kIsManaged:
      *static_cast<unsigned*>(value) = 0;
      return CuResult::kSuccess;
    case CuPointerAttribute::kDeviceOrdinal:
      *static_cast<int*>(value) = found->device;
      return CuResult::kSuccess;
  }
  return CuResult::kInvalidValue;
}

}  // namespace shard::cuda
