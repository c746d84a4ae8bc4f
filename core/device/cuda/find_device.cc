// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/find_device.h"

#include <array>
#include <cstdint>

#include "core/base/strings.h"
#include "core/device/cuda/device_name.h"
#include "core/device/cuda/driver.h"

namespace shard::cuda {

namespace {

// Returns "0a1b2c3d-...".
std::string UuidText(const CuUuid& uuid) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text.push_back('-');
    const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    text.push_back(kDigits[byte / 16]);
    text.push_back(kDigits[byte % 16]);
  }
  return text;
}

StatusOr<int> FindUuid(const Driver* driver, std::string_view name,
                       const std::string& uuid) {
  int count = 0;
  std::string there;
  SHARD_CUDA_CALL(driver, DeviceGetCount, &count);
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CuDevice device = 0;
    SHARD_CUDA_CALL(driver, DeviceGet, &device, ordinal);
    SHARD_ASSIGN_OR_RETURN(const std::string its, UuidOf(driver, device));
    if (its.ends_with(uuid)) return ordinal;
    StrAppend(&there, there.empty() ? "" : ", ", its);
  }
  return InvalidArgument("no device has the UUID '", name,
                         "'; there are: ", there.empty() ? "none" : there,
                         " (see nvidia-smi -L and CUDA_VISIBLE_DEVICES)");
}

}  // namespace

StatusOr<std::string> UuidOf(const Driver* driver, CuDevice device) {
  CuUuid uuid = {};
  std::array<char, 256> name = {};
  SHARD_CUDA_CALL(driver, DeviceGetUuid, &uuid, device);
  SHARD_CUDA_CALL(driver, DeviceGetName, name.data(),
                  static_cast<int>(name.size() - 1), device);
  const bool is_mig =
      std::string_view(name.data()).find(" MIG ") != std::string_view::npos;
  return StrCat(is_mig ? "MIG-" : "GPU-", UuidText(uuid));
}

StatusOr<int> OrdinalOf(std::string_view name) {
  SHARD_ASSIGN_OR_RETURN(const DeviceName parsed, ParseDeviceName(name));
  if (parsed.uuid.empty()) return parsed.ordinal;
  SHARD_ASSIGN_OR_RETURN(const Driver* const driver, Driver::Load());
  return FindUuid(driver, name, parsed.uuid);
}

}  // namespace shard::cuda
