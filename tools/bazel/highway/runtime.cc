// SPDX-License-Identifier: Apache-2.0
//
// The functions that Highway's headers declare and leave to its library: which
// targets the CPU has, the dispatch state, aligned memory, Abort. They are
// linked statically and hidden, so libshard.so needs no libhwy.so, and has a
// dispatch state of its own even in a process that also loads one.
//
// hwy/print.h and hwy/nanobenchmark.h are left out: libshard does not use them.
//
// Thread safety: all functions may be called from any thread at any time.

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <atomic>

#include "hwy/aligned_allocator.h"
#include "hwy/base.h"
#include "hwy/targets.h"

#if HWY_ARCH_X86
#include <cpuid.h>
#elif HWY_ARCH_ARM_A64 && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace hwy {
namespace {

std::atomic<int64_t> g_disabled_targets{0};
std::atomic<int64_t> g_targets_for_test{0};

#if HWY_ARCH_X86

// Detects feature groups as Highway's own detection does. The compiler's
// __builtin_cpu_supports also asks the OS whether it saves the wide registers,
// but not every compiler knows LZCNT, F16C and VAES, hence CPUID.
bool HasLzcntAndF16c() {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & (1u << 29)) == 0) return false;
  return __get_cpuid(0x80000001u, &a, &b, &c, &d) && (c & (1u << 5)) != 0;
}

bool HasVaes() {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & (1u << 9)) != 0;
}

int64_t DetectTargets() {
  __builtin_cpu_init();
  int64_t targets = HWY_STATIC_TARGET;
  if (!__builtin_cpu_supports("sse4.1") || !__builtin_cpu_supports("sse4.2") ||
      !__builtin_cpu_supports("pclmul") || !__builtin_cpu_supports("aes")) {
    return targets;
  }
  targets |= HWY_SSE4;
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
      !__builtin_cpu_supports("bmi") || !__builtin_cpu_supports("bmi2") ||
      !HasLzcntAndF16c()) {
    return targets;
  }
  targets |= HWY_AVX2;
  if (!__builtin_cpu_supports("avx512f") ||
      !__builtin_cpu_supports("avx512vl") ||
      !__builtin_cpu_supports("avx512dq") ||
      !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512cd")) {
    return targets;
  }
  targets |= HWY_AVX3;
  if (__builtin_cpu_supports("avx512vnni") &&
      __builtin_cpu_supports("avx512vbmi") &&
      __builtin_cpu_supports("avx512vbmi2") &&
      __builtin_cpu_supports("avx512bitalg") &&
      __builtin_cpu_supports("avx512vpopcntdq") &&
      __builtin_cpu_supports("vpclmulqdq") && HasVaes() &&
      __builtin_cpu_supports("gfni")) {
    targets |= HWY_AVX3_DL;
  }
  return targets;
}

#elif HWY_ARCH_ARM_A64 && defined(__linux__)

// Reads HWCAP_SVE and HWCAP2_SVE2 of the kernel's asm/hwcap.h by value: an
// older header has neither. The fixed-size variants of SVE are never chosen;
// SVE runs on the same CPUs.
int64_t DetectTargets() {
  int64_t targets = HWY_STATIC_TARGET | HWY_NEON;
  if ((getauxval(AT_HWCAP) & (1ul << 22)) != 0) targets |= HWY_SVE;
  if ((getauxval(AT_HWCAP2) & (1ul << 1)) != 0) targets |= HWY_SVE2;
  return targets;
}

#else

int64_t DetectTargets() { return HWY_STATIC_TARGET; }

#endif

// The header in front of every block that AllocateAlignedBytes returns.
struct Header {
  void* allocated;
  size_t payload_size;
};

// Two cache lines: the adjacent-line prefetcher fetches pairs. No vector of a
// target above is longer, except those of SVE, which need no alignment.
constexpr size_t kAlignment = 128;
static_assert(kAlignment % HWY_ALIGNMENT == 0 && sizeof(Header) <= kAlignment);

Header* HeaderOf(void* aligned) { return static_cast<Header*>(aligned) - 1; }

}  // namespace

int64_t SupportedTargets() {
  int64_t targets = g_targets_for_test.load();
  if (targets == 0) {
    static const int64_t detected = DetectTargets();
    targets = detected;
  }
  targets &= ~g_disabled_targets.load();
  return targets == 0 ? int64_t{HWY_STATIC_TARGET} : targets;
}

void DisableTargets(int64_t disabled_targets) {
  g_disabled_targets.store(disabled_targets);
  GetChosenTarget().DeInit();
}

void SetSupportedTargetsForTest(int64_t targets) {
  g_targets_for_test.store(targets);
  GetChosenTarget().DeInit();
}

ChosenTarget& GetChosenTarget() {
  static ChosenTarget chosen_target;
  return chosen_target;
}

void* AllocateAlignedBytes(size_t payload_size, AllocPtr alloc_ptr,
                           void* opaque_ptr) {
  constexpr size_t kExtra = sizeof(Header) + kAlignment;
  if (payload_size > SIZE_MAX - kExtra) return nullptr;
  const size_t size = payload_size + kExtra;
  void* allocated =
      alloc_ptr != nullptr ? alloc_ptr(opaque_ptr, size) : malloc(size);
  if (allocated == nullptr) return nullptr;
  const uintptr_t first =
      reinterpret_cast<uintptr_t>(allocated) + sizeof(Header);
  const size_t pad = (kAlignment - first % kAlignment) % kAlignment;
  void* aligned = static_cast<char*>(allocated) + sizeof(Header) + pad;
  *HeaderOf(aligned) = {allocated, payload_size};
  return aligned;
}

void FreeAlignedBytes(const void* aligned_pointer, FreePtr free_ptr,
                      void* opaque_ptr) {
  if (aligned_pointer == nullptr) return;
  void* allocated = HeaderOf(const_cast<void*>(aligned_pointer))->allocated;
  if (free_ptr != nullptr) {
    free_ptr(opaque_ptr, allocated);
  } else {
    free(allocated);
  }
}

void AlignedDeleter::DeleteAlignedArray(void* aligned_pointer, FreePtr free_ptr,
                                        void* opaque_ptr,
                                        ArrayDeleter deleter) {
  if (aligned_pointer == nullptr) return;
  if (deleter != nullptr) {
    deleter(aligned_pointer, HeaderOf(aligned_pointer)->payload_size);
  }
  FreeAlignedBytes(aligned_pointer, free_ptr, opaque_ptr);
}

// Only a defect in a kernel (HWY_ASSERT) calls it, never an input.
void Abort(const char* file, int line, const char* format, ...) {
  char message[512];
  va_list args;
  va_start(args, format);
  vsnprintf(message, sizeof(message), format, args);
  va_end(args);
  fprintf(stderr, "Abort at %s:%d: %s\n", file, line, message);
  abort();
}

}  // namespace hwy
