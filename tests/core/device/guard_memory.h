// SPDX-License-Identifier: Apache-2.0
//
// Guarded memory: tensor memory under addresses that fault at every access, as
// addresses of an accelerator would. Kernels find the memory under its other
// address, which KernelView returns.
//
//   guarded address   reserved, PROT_NONE: what data() of tensor memory says
//   kernels' address  the memory itself
//
// A fault ends the process, and the last line on stderr names the memory.
//
// The ranges of a process are in one table, so that ranks that are threads
// reach each other's memory. Thread-safe.

#ifndef SHARD_TESTS_CORE_DEVICE_GUARD_MEMORY_H_
#define SHARD_TESTS_CORE_DEVICE_GUARD_MEMORY_H_

#include <cstddef>
#include <string_view>

namespace shard::testing {

// Addresses that stand for `bytes` bytes of memory at `kernels`.
class GuardedMemory {
 public:
  // Reserves guarded addresses. Ends the process where there are none. `what`
  // the memory is for.
  GuardedMemory(std::byte* kernels, size_t bytes, std::string_view what);
  ~GuardedMemory();
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
  size_t reserved_;
};

// Memory of the host that kernels reach, too, under the same address.
class SharedMemory {
 public:
  SharedMemory(std::byte* data, size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

 private:
  std::byte* const data_;
};

// Returns the address at which kernels find the memory at `address`: the same
// for memory that is not guarded, and for null.
const void* KernelViewOf(const void* address);
// The same for an address that only a kernel uses. Ends the process for memory
// of the host that kernels of an accelerator do not reach.
const void* KernelMemory(const void* address);
// The same. Ends the process for memory that is not guarded, too.
const void* GuardedKernelMemory(const void* address);

template <typename T>
T* KernelView(T* address) {
  return static_cast<T*>(const_cast<void*>(KernelViewOf(address)));
}

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_DEVICE_GUARD_MEMORY_H_
