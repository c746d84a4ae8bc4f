// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/device_names.h"

#include <array>
#include <cctype>
#include <cstdint>
#include <optional>

#include "core/base/strings.h"
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

// Returns a UUID in the form of UuidText, or "" for another text.
std::string Normalized(std::string_view text) {
  for (const std::string_view prefix : {"GPU-", "MIG-"}) {
    if (text.starts_with(prefix)) text.remove_prefix(prefix.size());
  }
  const std::string_view form = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
  if (text.size() != form.size()) return "";
  std::string normalized;
  for (size_t i = 0; i < form.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (form[i] == '-' ? c != '-' : std::isxdigit(c) == 0) return "";
    normalized.push_back(static_cast<char>(std::tolower(c)));
  }
  return normalized;
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
  // Far more than a machine has, and no overflow.
  constexpr int64_t kMostOrdinals = 1 << 16;
  const std::optional<int64_t> ordinal = ParseInt(name);
  if (ordinal && *ordinal >= 0 && *ordinal < kMostOrdinals) {
    return static_cast<int>(*ordinal);
  }
  const std::string uuid = Normalized(name);
  if (uuid.empty()) {
    return InvalidArgument("'", name,
                           "' names no CUDA device; use an ordinal, cuda:0, or "
                           "a UUID, cuda:GPU-...");
  }
  SHARD_ASSIGN_OR_RETURN(const Driver* const driver, Driver::Load());
  return FindUuid(driver, name, uuid);
}

}  // namespace shard::cuda
