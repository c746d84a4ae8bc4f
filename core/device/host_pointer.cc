// SPDX-License-Identifier: Apache-2.0

#include "core/device/host_pointer.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <type_traits>

#include "core/base/strings.h"
#include "core/device/cuda/driver_api.h"

namespace shard {

namespace {

using cuda::CuMemoryType;
using cuda::CuPointerAttribute;
using cuda::CuResult;
using GetAttribute =
    std::remove_pointer_t<decltype(cuda::DriverApi::PointerGetAttribute)>;

// The process that has loaded this library.
const pid_t loaded_in = ::getpid();

// Returns null where the process has no driver, or may not use it.
GetAttribute* FindGetAttribute() {
  // A driver promises nothing for calls in a child of fork of the process that
  // has begun to use it.
  if (::getpid() != loaded_in) return nullptr;
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (driver == nullptr) return nullptr;
  void* const symbol = dlsym(driver, "cuPointerGetAttribute");
  // The process has it open still.
  dlclose(driver);
  return reinterpret_cast<GetAttribute*>(symbol);
}

}  // namespace

Status CheckHostPointer(const void* memory) {
  auto* const get = FindGetAttribute();
  if (get == nullptr) return Status();
  const auto address = reinterpret_cast<uintptr_t>(memory);
  auto type = CuMemoryType::kHost;
  // An error: the driver does not know the memory, or was not begun.
  if (get(&type, CuPointerAttribute::kMemoryType, address) !=
          CuResult::kSuccess ||
      type != CuMemoryType::kDevice) {
    return Status();
  }
  // Managed memory moves to where it is read.
  unsigned managed = 0;
  if (get(&managed, CuPointerAttribute::kIsManaged, address) ==
          CuResult::kSuccess &&
      managed != 0) {
    return Status();
  }
  return InvalidArgument("the memory at ", FormatHex(address),
                         " is of a GPU; give memory of the host");
}

}  // namespace shard
