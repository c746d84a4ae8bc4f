// SPDX-License-Identifier: Apache-2.0

#include "tests/fake_cuda/memory_map.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>

namespace shard::testing::fake_cuda {

namespace {

constexpr size_t kArenaBytes = size_t{64} << 30;
constexpr size_t kPage = 4096;
// After each allocation, to know what is written behind its end; the page after
// it faults.
constexpr size_t kTail = 64;
constexpr unsigned char kTailByte = 0xA5;
// A NaN in each dtype of floats.
constexpr unsigned char kNewByte = 0xFF;

// Returns the bytes that an allocation takes from the arena.
size_t Pages(size_t bytes) {
  return (bytes + kTail + kPage - 1) / kPage * kPage;
}

std::string Describe(const Allocation& allocation, uintptr_t begin,
                     uintptr_t end) {
  char text[160];
  std::snprintf(text, sizeof(text), "bytes %zu to %zu of %zu at %#zx (%s)",
                static_cast<size_t>(begin - allocation.begin),
                static_cast<size_t>(end - allocation.begin),
                static_cast<size_t>(allocation.end - allocation.begin),
                static_cast<size_t>(allocation.begin),
                allocation.kind == MemoryKind::kPinned ? "pinned" : "device");
  return text;
}

bool IsLife(Use use) { return use == Use::kAllocate || use == Use::kFree; }

bool Conflict(Use a, Use b) {
  if (IsLife(a) || IsLife(b)) return true;
  if (a == Use::kKernel || b == Use::kKernel) return false;
  return a == Use::kWrite || b == Use::kWrite;
}

}  // namespace

Allocation* MemoryMap::Allocate(MemoryKind kind, int device, uint64_t context,
                                size_t bytes) {
  if (arena_ == nullptr) {
    void* const arena =
        mmap(nullptr, kArenaBytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena == MAP_FAILED) return nullptr;
    arena_ = static_cast<char*>(arena);
  }
  if (bytes > kArenaBytes) return nullptr;
  const size_t size = Pages(bytes);
  // CheckLaunch takes a word whose lower half is 0 for a number.
  if (static_cast<uint32_t>(
          reinterpret_cast<uintptr_t>(arena_ + arena_used_)) == 0) {
    arena_used_ += kPage;
  }
  if (arena_used_ + size + kPage > kArenaBytes) return nullptr;
  char* const memory = arena_ + arena_used_;
  if (mprotect(memory, size, PROT_READ | PROT_WRITE) != 0) return nullptr;
  arena_used_ += size + kPage;
  std::memset(memory, kNewByte, bytes);
  std::memset(memory + bytes, kTailByte, kTail);
  if (guard_ && kind != MemoryKind::kPinned) mprotect(memory, size, PROT_NONE);
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  Allocation& made = map_[begin];
  made.kind = kind;
  made.device = device;
  made.context = context;
  made.begin = begin;
  made.end = begin + bytes;
  return &made;
}

Allocation* MemoryMap::Find(uintptr_t address) {
  const auto next = map_.upper_bound(address);
  if (next == map_.begin()) return nullptr;
  Allocation& allocation = std::prev(next)->second;
  return address < allocation.end + kTail ? &allocation : nullptr;
}

bool MemoryMap::Release(Allocation* allocation) {
  allocation->is_released = true;
  auto* const memory = reinterpret_cast<char*>(allocation->begin);
  const size_t bytes = allocation->end - allocation->begin;
  const bool guarded = guard_ && allocation->kind != MemoryKind::kPinned;
  if (guarded) mprotect(memory, Pages(bytes), PROT_READ);
  bool written = false;
  for (size_t i = 0; i < kTail; ++i) {
    written |= static_cast<unsigned char>(memory[bytes + i]) != kTailByte;
  }
  // A new mapping, because the system has a limit of mappings, and joins only
  // those that were never touched.
  mmap(memory, Pages(bytes), PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return written;
}

void MemoryMap::Clear() {
  if (arena_ != nullptr) munmap(arena_, kArenaBytes);
  arena_ = nullptr;
  arena_used_ = 0;
  map_.clear();
}

void MemoryMap::Check(Allocation* allocation, Use use, uintptr_t begin,
                      uintptr_t end, const Actor& actor, const Clock& clock,
                      std::vector<Violation>* violations) {
  auto& past = allocation->past;
  for (const Allocation::Past& it : past) {
    if (it.end <= begin || end <= it.begin || !Conflict(it.use, use)) continue;
    if (clock.Has(it.actor.stream, it.actor.number)) continue;
    violations->push_back({ViolationKind::kUnordered,
                           actor.name + " is not ordered after " +
                               it.actor.name + ": " +
                               Describe(*allocation, std::max(begin, it.begin),
                                        std::min(end, it.end))});
  }
  // Whatever is ordered after this use is so after those that it replaces.
  std::erase_if(past, [&](const Allocation::Past& it) {
    return begin <= it.begin && it.end <= end &&
           (use == it.use || use == Use::kWrite) &&
           clock.Has(it.actor.stream, it.actor.number);
  });
  past.push_back({use, begin, end, actor});
}

void MemoryMap::Protect(bool accessible) {
  if (!guard_) return;
  for (const auto& [begin, it] : map_) {
    if (it.is_released || it.kind == MemoryKind::kPinned) continue;
    mprotect(reinterpret_cast<void*>(begin), Pages(it.end - it.begin),
             accessible ? PROT_READ | PROT_WRITE : PROT_NONE);
  }
}

}  // namespace shard::testing::fake_cuda
