// SPDX-License-Identifier: Apache-2.0
//
// Driver: libcuda.so.1, which comes with NVIDIA's driver, loaded at run time.
// It is never closed. No other library of CUDA is needed.
//
// Thread-safe. In a child of fork the driver works no more: Load says so.

#ifndef SHARD_CORE_DEVICE_CUDA_DRIVER_H_
#define SHARD_CORE_DEVICE_CUDA_DRIVER_H_

#include <string>
#include <string_view>

#include "core/base/status.h"
#include "core/device/cuda/driver_api.h"

namespace shard::cuda {

class Driver {
 public:
  // The oldest version that is used: 12.0, as cuDriverGetVersion counts.
  static constexpr int kOldestVersion = 12000;

  // Loads and initializes the driver; later calls return the same one.
  // `version`, which may be null, receives its version after an error too: 0
  // where there is no driver, or one that does not tell. Errors:
  // kBackendUnavailable, which says what is missing; kFailedPrecondition in a
  // child of fork.
  static StatusOr<const Driver*> Load(int* version = nullptr);

  const DriverApi& api() const { return api_; }
  int version() const { return version_; }
  // Returns "13.0".
  static std::string VersionText(int version);

  // Returns the status of a call's result: "cuMemAlloc: CUDA_ERROR_...".
  Status ToStatus(CuResult result, std::string_view call) const;

 private:
  Driver() = default;
  static StatusOr<Driver> Open(int* version);

  DriverApi api_;
  int version_ = 0;
};

// Returns from the caller with the error of a call of the driver. `driver` is a
// const Driver*, `Name` an entry point of DriverApi.
#define SHARD_CUDA_CALL(driver, Name, ...) \
  SHARD_RETURN_IF_ERROR(                   \
      (driver)->ToStatus((driver)->api().Name(__VA_ARGS__), "cu" #Name))

}  // namespace shard::cuda

#endif  // SHARD_CORE_DEVICE_CUDA_DRIVER_H_
