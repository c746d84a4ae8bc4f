// SPDX-License-Identifier: Apache-2.0

#include "tests/fault/failing_allocator.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "tests/core/base/sanitizers.h"

namespace shard {

namespace {

std::atomic<Outage> outage{Outage::kNone};
std::atomic<bool> armed{false};
std::atomic<int64_t> fails_at{0};
std::atomic<int64_t> count{0};
std::atomic<bool> failed{false};
std::atomic<int64_t> pieces{0};
std::atomic<int64_t> mapped{0};
std::atomic<int64_t> traced{0};

// The numbers of live pieces, in open addressing. When the table is full,
// pieces are forgotten.
constexpr size_t kSlots = size_t{1} << 16;
struct Slot {
  std::atomic<void*> piece;
  int64_t number;
};
Slot slots[kSlots];
thread_local bool tracing = false;

size_t SlotOf(void* piece) {
  return (reinterpret_cast<uintptr_t>(piece) >> 4) * 0x9E3779B97F4A7C15u >> 48;
}

void Remember(void* piece, int64_t number) {
  if (traced.load() == 0) return;
  for (size_t i = 0; i < 64; ++i) {
    Slot& slot = slots[(SlotOf(piece) + i) % kSlots];
    void* none = nullptr;
    if (slot.piece.compare_exchange_strong(none, piece)) {
      slot.number = number;
      return;
    }
  }
}

void Forget(void* piece) {
  if (traced.load() == 0) return;
  for (size_t i = 0; i < 64; ++i) {
    Slot& slot = slots[(SlotOf(piece) + i) % kSlots];
    void* mine = piece;
    if (slot.piece.compare_exchange_strong(mine, nullptr)) return;
  }
}

void PrintStack() {
  tracing = true;
  void* frames[64];
  ::backtrace_symbols_fd(frames, ::backtrace(frames, 64), STDERR_FILENO);
  tracing = false;
}

// Returns the number of the next allocation, 0 where it has to fail, or -1
// where it does not count.
int64_t Next() {
  if (!armed.load(std::memory_order_relaxed) || tracing) return -1;
  const int64_t number = count.fetch_add(1) + 1;
  const int64_t at = fails_at.load();
  if (number == traced.load()) PrintStack();
  const Outage how = outage.load();
  if ((how == Outage::kOnce && number == at) ||
      (how == Outage::kForGood && number >= at)) {
    failed = true;
    errno = ENOMEM;
    return 0;
  }
  return number;
}

// Allocates a piece and counts it. `allocate` returns a piece of memory, or
// null.
template <typename Allocate>
void* Counted(const Allocate& allocate) {
  const int64_t number = Next();
  if (number == 0) return nullptr;
  void* const piece = allocate();
  if (piece != nullptr) {
    ++pieces;
    if (number > 0) Remember(piece, number);
  }
  return piece;
}

void Freed(void* piece) {
  if (piece == nullptr) return;
  --pieces;
  Forget(piece);
}

}  // namespace

void ArmAllocator(Outage how, int64_t at) {
  outage = how;
  fails_at = at;
  count = 0;
  failed = false;
  for (Slot& slot : slots) {
    if (slot.piece.load(std::memory_order_relaxed) != nullptr) {
      slot.piece = nullptr;
    }
  }
  armed = true;
}

int64_t DisarmAllocator() {
  armed = false;
  return count.load();
}

bool AllocationFailed() { return failed.load(); }

Allocated AllocatedNow() { return {pieces.load(), mapped.load()}; }

void TraceAllocation(int64_t number) {
  void* frame;
  // The first call loads a library, which allocates.
  ::backtrace(&frame, 1);
  traced = number;
}

void PrintLiveAllocations() {
  for (const Slot& slot : slots) {
    if (slot.piece.load() == nullptr) continue;
    std::fprintf(stderr, "still allocated: number %lld\n",
                 static_cast<long long>(slot.number));
  }
}

}  // namespace shard

using shard::Counted;
using shard::Freed;

#if !SHARD_TESTS_ADDRESS_SANITIZER

#define SHARD_INTERPOSE extern "C" __attribute__((visibility("default")))

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);
}

SHARD_INTERPOSE void* malloc(size_t bytes) {
  return Counted([&] { return __libc_malloc(bytes); });
}

SHARD_INTERPOSE void* calloc(size_t n, size_t bytes) {
  return Counted([&] { return __libc_calloc(n, bytes); });
}

SHARD_INTERPOSE void* memalign(size_t alignment, size_t bytes) {
  return Counted([&] { return __libc_memalign(alignment, bytes); });
}

SHARD_INTERPOSE void* aligned_alloc(size_t alignment, size_t bytes) {
  return Counted([&] { return __libc_memalign(alignment, bytes); });
}

SHARD_INTERPOSE int posix_memalign(void** out, size_t alignment, size_t bytes) {
  void* const piece =
      Counted([&] { return __libc_memalign(alignment, bytes); });
  if (piece == nullptr) return ENOMEM;
  *out = piece;
  return 0;
}

SHARD_INTERPOSE void* realloc(void* piece, size_t bytes) {
  if (piece == nullptr) return malloc(bytes);
  if (bytes == 0) {
    free(piece);
    return nullptr;
  }
  void* const larger = Counted([&] { return __libc_realloc(piece, bytes); });
  if (larger != nullptr) --shard::pieces;
  return larger;
}

SHARD_INTERPOSE void free(void* piece) {
  Freed(piece);
  __libc_free(piece);
}

SHARD_INTERPOSE void* mmap(void* address, size_t bytes, int protection,
                           int flags, int fd, off_t offset) {
  if (shard::Next() == 0) return MAP_FAILED;
  // Returns -1 for errors, which is MAP_FAILED.
  const long pages =
      ::syscall(SYS_mmap, address, bytes, protection, flags, fd, offset);
  if (pages != -1)
    shard::mapped += static_cast<int64_t>((bytes + 4095) & ~4095);
  return reinterpret_cast<void*>(pages);
}

SHARD_INTERPOSE int munmap(void* address, size_t bytes) {
  shard::mapped -= static_cast<int64_t>((bytes + 4095) & ~4095);
  return static_cast<int>(::syscall(SYS_munmap, address, bytes));
}

SHARD_INTERPOSE int pthread_create(pthread_t* thread,
                                   const pthread_attr_t* attributes,
                                   void* (*start)(void*), void* argument) {
  using Create =
      int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create =
      reinterpret_cast<Create>(::dlsym(RTLD_NEXT, "pthread_create"));
  if (shard::Next() == 0) return EAGAIN;
  return create(thread, attributes, start, argument);
}

#else

void* operator new(size_t bytes) {
  void* const piece = Counted([&] { return std::malloc(bytes); });
  if (piece == nullptr) throw std::bad_alloc();
  return piece;
}
void* operator new[](size_t bytes) { return operator new(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return Counted([&] { return std::malloc(bytes); });
}
void* operator new[](size_t bytes, const std::nothrow_t& tag) noexcept {
  return operator new(bytes, tag);
}
void operator delete(void* piece) noexcept {
  Freed(piece);
  std::free(piece);
}
void operator delete[](void* piece) noexcept { operator delete(piece); }
void operator delete(void* piece, size_t) noexcept { operator delete(piece); }
void operator delete[](void* piece, size_t) noexcept { operator delete(piece); }

#endif
