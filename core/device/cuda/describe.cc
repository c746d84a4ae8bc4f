// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/describe.h"

#include <dlfcn.h>

#include <array>
#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/strings.h"
#include "core/device/cuda/context.h"
#include "core/device/cuda/device_names.h"
#include "core/device/cuda/driver.h"
#include "core/device/cuda/kernels.h"

namespace shard::cuda {

namespace {

using Json = nlohmann::ordered_json;

Status DescribeDevice(const Driver* driver, int ordinal, Json* json) {
  CuDevice device = 0;
  std::array<char, 256> name = {};
  int major = 0;
  int minor = 0;
  size_t bytes = 0;
  SHARD_CUDA_CALL(driver, DeviceGet, &device, ordinal);
  SHARD_CUDA_CALL(driver, DeviceGetName, name.data(),
                  static_cast<int>(name.size() - 1), device);
  SHARD_ASSIGN_OR_RETURN(const std::string uuid, UuidOf(driver, device));
  SHARD_CUDA_CALL(driver, DeviceGetAttribute, &major,
                  CuDeviceAttribute::kComputeCapabilityMajor, device);
  SHARD_CUDA_CALL(driver, DeviceGetAttribute, &minor,
                  CuDeviceAttribute::kComputeCapabilityMinor, device);
  SHARD_CUDA_CALL(driver, DeviceTotalMem, &bytes, device);
  (*json)["name"] = name.data();
  (*json)["uuid"] = uuid;
  (*json)["compute_capability"] = StrCat(major, ".", minor);
  (*json)["memory_bytes"] = bytes;
  SHARD_ASSIGN_OR_RETURN(const auto context, Context::Open(ordinal));
  SHARD_RETURN_IF_ERROR(context->Run([&] {
    size_t free = 0;
    SHARD_CUDA_CALL(driver, MemGetInfo, &free, &bytes);
    (*json)["free_bytes"] = free;
    return Status();
  }));
  return Kernels::Load(context).status();
}

Status DescribeDevices(const Driver* driver, Json* devices) {
  int count = 0;
  SHARD_CUDA_CALL(driver, DeviceGetCount, &count);
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    Json json = {{"spec", StrCat("cuda:", ordinal)}};
    json["error"] = DescribeDevice(driver, ordinal, &json).message();
    devices->push_back(std::move(json));
  }
  return Status();
}

// A library that is open while this lives, where one of its names is found.
class Library {
 public:
  explicit Library(std::initializer_list<const char*> names) {
    for (const char* const name : names) {
      // First the one that the process has.
      handle_ = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
      if (handle_ == nullptr) handle_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (handle_ != nullptr) {
        name_ = name;
        return;
      }
      if (const char* const reason = dlerror(); error_.empty() && reason) {
        error_ = reason;
      }
    }
  }

  // The host's process stays as it was.
  ~Library() {
    if (handle_ != nullptr) dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  template <typename Function>
  Function Find(const char* symbol) const {
    return handle_ == nullptr
               ? nullptr
               : reinterpret_cast<Function>(dlsym(handle_, symbol));
  }

  // `version`: "" where the library does not tell it.
  Json ToJson(const std::string& version) const {
    std::string error = error_;
    if (handle_ != nullptr) {
      error =
          version.empty() ? StrCat(name_, " does not tell its version") : "";
    }
    return {{"library", name_}, {"version", version}, {"error", error}};
  }

 private:
  void* handle_ = nullptr;
  std::string name_;
  std::string error_;
};

Json Nccl() {
  const Library library({"libnccl.so.2"});
  const auto get = library.Find<int (*)(int*)>("ncclGetVersion");
  int version = 0;
  if (get == nullptr || get(&version) != 0) return library.ToJson("");
  return library.ToJson(
      StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100));
}

Json Cublas() {
  const Library library({"libcublas.so.13", "libcublas.so.12"});
  const auto get = library.Find<int (*)(int, int*)>("cublasGetProperty");
  int major = 0;
  int minor = 0;
  if (get == nullptr || get(0, &major) != 0 || get(1, &minor) != 0) {
    return library.ToJson("");
  }
  return library.ToJson(StrCat(major, ".", minor));
}

}  // namespace

std::string Describe() {
  int version = 0;
  const auto driver = Driver::Load(&version);
  Json devices = Json::array();
  const Status status =
      driver.ok() ? DescribeDevices(*driver, &devices) : driver.status();
  // Libraries of no use are not opened: some leave memory behind.
  const bool has_driver = version != 0;
  const Json no_driver = {{"library", ""},
                          {"version", ""},
                          {"error", "not looked for: there is no driver"}};
  const Json json = {{"driver", has_driver ? Driver::VersionText(version) : ""},
                     {"error", status.message()},
                     {"devices", std::move(devices)},
                     {"nccl", has_driver ? Nccl() : no_driver},
                     {"cublas", has_driver ? Cublas() : no_driver}};
  // Names come from outside.
  return json.dump(-1, ' ', true, Json::error_handler_t::replace);
}

}  // namespace shard::cuda
