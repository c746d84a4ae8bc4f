// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/describe.h"

#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "core/base/strings.h"
#include "core/collectives/nccl/library.h"
#include "core/device/cuda/context.h"
#include "core/device/cuda/cublas.h"
#include "core/device/cuda/driver.h"
#include "core/device/cuda/find_device.h"
#include "core/device/cuda/kernels.h"
#include "core/device/cuda/library.h"

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

using NameAndVersion = std::pair<std::string, std::string>;

// Describes a library, or says why it cannot be used.
Json LibraryToJson(const StatusOr<NameAndVersion>& found) {
  return {{"library", found.ok() ? found->first : ""},
          {"version", found.ok() ? found->second : ""},
          {"error", found.status().message()}};
}

Json NcclToJson() {
  const auto opened = nccl::OpenNccl();
  if (!opened.ok()) return LibraryToJson(opened.status());
  const Library& library = opened->library;
  Json json = LibraryToJson(
      NameAndVersion(library.name(), nccl::VersionText(opened->version)));
  json["oldest"] = nccl::VersionText(nccl::kOldestVersion);
  json["path"] = library.FindPath();
  json["of_process"] = library.origin() == Library::Origin::kProcess;
  for (const auto& [name, is_there] : opened->FindLaterFunctions()) {
    json["functions"][std::string(name)] = is_there;
  }
  return json;
}

Json CublasToJson() {
  const auto opened = OpenCublas();
  if (!opened.ok()) return LibraryToJson(opened.status());
  return LibraryToJson(NameAndVersion(opened->library.name(), opened->version));
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
                     {"nccl", has_driver ? NcclToJson() : no_driver},
                     {"cublas", has_driver ? CublasToJson() : no_driver}};
  // Names come from outside.
  return json.dump(-1, ' ', true, Json::error_handler_t::replace);
}

}  // namespace shard::cuda
