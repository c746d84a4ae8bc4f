// SPDX-License-Identifier: Apache-2.0

#include "core/base/host_pointer.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>

#include "core/base/strings.h"

namespace shard {

namespace {

// Of cuda.h, which tests/core/device/cuda:driver_api_test compares.
constexpr int kMemoryTypeAttribute = 2;
constexpr int kIsManagedAttribute = 8;
constexpr unsigned kDeviceMemory = 2;

using GetAttribute = int(void* value, int attribute, unsigned long long memory);

// Returns null where the process has no driver, or may not use it.
GetAttribute* FindGetAttribute() {
  // A driver works in no child of fork of the process that has begun to use it,
  // and promises nothing for calls there.
  static const pid_t first = ::getpid();
  if (::getpid() != first) return nullptr;
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (driver == nullptr) return nullptr;
  void* const symbol = dlsym(driver, "cuPointerGetAttribute");
  // The process has it open still.
  dlclose(driver);
  return reinterpret_cast<GetAttribute*>(symbol);
}

}  // namespace

Status CheckHostPointer(const void* memory) {
  GetAttribute* const get = FindGetAttribute();
  if (get == nullptr) return Status();
  const auto address = reinterpret_cast<uintptr_t>(memory);
  unsigned type = 0;
  // An error: the driver does not know the memory, or was not begun.
  if (get(&type, kMemoryTypeAttribute, address) != 0 || type != kDeviceMemory) {
    return Status();
  }
  // Managed memory moves to where it is read.
  unsigned managed = 0;
  if (get(&managed, kIsManagedAttribute, address) == 0 && managed != 0) {
    return Status();
  }
  return InvalidArgument("the memory at ", FormatHex(address),
                         " is of a GPU; give memory of the host");
}

}  // namespace shard
