// SPDX-License-Identifier: Apache-2.0

#include "tests/core/checkpoint/allocation_meter.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace shard {

namespace {

std::atomic<int64_t> allocated{0};
std::atomic<int64_t> peak{0};
std::atomic<int64_t> in_all{0};

void Count(int64_t bytes) {
  const int64_t now = allocated.fetch_add(bytes) + bytes;
  int64_t old = peak.load();
  while (now > old && !peak.compare_exchange_weak(old, now)) {
  }
}

void* Allocate(size_t bytes) {
  void* result = std::malloc(bytes == 0 ? 1 : bytes);
  if (result == nullptr) std::abort();
  const auto usable = static_cast<int64_t>(malloc_usable_size(result));
  Count(usable);
  in_all += usable;
  return result;
}

void Free(void* pointer) {
  if (pointer == nullptr) return;
  Count(-static_cast<int64_t>(malloc_usable_size(pointer)));
  std::free(pointer);
}

}  // namespace

int64_t AllocatedBytes() { return allocated.load(); }
int64_t AllocatedPeak() { return peak.load(); }
int64_t AllocatedInAll() { return in_all.load(); }
void ResetAllocatedPeak() { peak.store(allocated.load()); }

}  // namespace shard

void* operator new(size_t bytes) { return shard::Allocate(bytes); }
void* operator new[](size_t bytes) { return shard::Allocate(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return shard::Allocate(bytes);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return shard::Allocate(bytes);
}
void operator delete(void* pointer) noexcept { shard::Free(pointer); }
void operator delete[](void* pointer) noexcept { shard::Free(pointer); }
void operator delete(void* pointer, size_t) noexcept { shard::Free(pointer); }
void operator delete[](void* pointer, size_t) noexcept { shard::Free(pointer); }
