// SPDX-License-Identifier: Apache-2.0

#include "tests/core/device/guard_memory.h"

#include <signal.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string>

namespace shard::testing {

namespace {

constexpr size_t kPage = 4096;

uintptr_t NumberOf(const void* address) {
  return reinterpret_cast<uintptr_t>(address);
}

// The ranges of addresses that kernels reach.
class Table {
 public:
  // Never destroyed: threads may outlive static objects.
  static Table& Get() {
    static Table* const table = new Table;
    return *table;
  }

  void Add(const std::byte* begin, size_t bytes, const std::byte* kernels,
           std::string_view what) {
    const std::unique_lock<std::shared_mutex> lock(mutex_);
    ranges_[NumberOf(begin)] = {NumberOf(begin) + bytes, kernels,
                                std::string(what)};
  }

  void Remove(const std::byte* begin) {
    const std::unique_lock<std::shared_mutex> lock(mutex_);
    ranges_.erase(NumberOf(begin));
  }

  // Returns the kernels' address, or null where no range has `address`.
  const std::byte* Find(const void* address) {
    const std::byte* kernels = nullptr;
    Visit(address, [&](const Range& range, size_t offset) {
      kernels = range.kernels + offset;
    });
    return kernels;
  }

 private:
  struct Range {
    uintptr_t end;
    const std::byte* kernels;
    std::string what;
  };

  Table() {
    struct sigaction action = {};
    action.sa_sigaction = &NameFault;
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGSEGV, &action, &before_);
  }

  // Calls `visit` with the range that has `address`, if one has, and with the
  // offset in it.
  template <typename Visitor>
  void Visit(const void* address, const Visitor& visit) {
    const std::shared_lock<std::shared_mutex> lock(mutex_);
    auto it = ranges_.upper_bound(NumberOf(address));
    if (it == ranges_.begin()) return;
    --it;
    const auto& [begin, range] = *it;
    if (NumberOf(address) >= range.end) return;
    visit(range, NumberOf(address) - begin);
  }

  // Says which tensor the host touched. The access then faults again, as it
  // would have without this handler.
  static void NameFault(int, siginfo_t* fault, void*) {
    Get().Visit(fault->si_addr, [](const Range& range, size_t offset) {
      std::fprintf(stderr,
                   "guard device: code of the host touched byte %zu of '%s', "
                   "memory of the device: use HostAccess\n",
                   offset, range.what.c_str());
    });
    ::sigaction(SIGSEGV, &Get().before_, nullptr);
  }

  struct sigaction before_ = {};
  std::shared_mutex mutex_;
  std::map<uintptr_t, Range> ranges_;  // By first address.
};

[[noreturn]] void Die(const char* what, const void* address) {
  std::fprintf(stderr, "guard device: %s: %p\n", what, address);
  std::abort();
}

}  // namespace

GuardedMemory::GuardedMemory(std::byte* kernels, size_t bytes,
                             std::string_view what)
    // One page more, so that the end of a tensor is no other tensor's address.
    : reserved_((bytes + kPage - 1) / kPage * kPage + kPage) {
  void* const reserved =
      ::mmap(nullptr, reserved_, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) Die("no addresses for memory", kernels);
  data_ = static_cast<std::byte*>(reserved);
  Table::Get().Add(data_, reserved_, kernels, what);
}

GuardedMemory::~GuardedMemory() {
  Table::Get().Remove(data_);
  ::munmap(data_, reserved_);
}

SharedMemory::SharedMemory(std::byte* data, size_t bytes) : data_(data) {
  Table::Get().Add(data_, bytes, data_, "memory of the host");
}

SharedMemory::~SharedMemory() { Table::Get().Remove(data_); }

const void* KernelViewOf(const void* address) {
  const std::byte* const kernels = Table::Get().Find(address);
  return kernels == nullptr ? address : kernels;
}

const void* KernelMemory(const void* address) {
  if (address == nullptr) return nullptr;
  const std::byte* const kernels = Table::Get().Find(address);
  if (kernels != nullptr) return kernels;
  Die("a kernel was given memory of the host that it does not reach", address);
}

const void* GuardedKernelMemory(const void* address) {
  const void* const kernels = KernelMemory(address);
  if (kernels != address) return kernels;
  Die("a kernel was given memory of the host where it needs the device's own",
      address);
}

}  // namespace shard::testing
