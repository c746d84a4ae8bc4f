// SPDX-License-Identifier: Apache-2.0
//
// Lets one allocation of a program fail: with LD_PRELOAD naming this library,
// that of operator new whose number, from 1 on, is in FAILING_NEW.

#include <atomic>
#include <cstdlib>
#include <new>

void* operator new(size_t bytes) {
  static std::atomic<long> count = 0;
  const char* const failing = std::getenv("FAILING_NEW");
  if (failing != nullptr && ++count == std::atol(failing)) {
    throw std::bad_alloc();
  }
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
