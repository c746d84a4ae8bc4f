// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/device_name.h"

#include <cctype>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/base/strings.h"

namespace shard::cuda {

namespace {

// Returns a UUID in the form of DeviceName::uuid, or "" for another text.
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

}  // namespace

StatusOr<DeviceName> ParseDeviceName(std::string_view text) {
  // Far more than a machine has, and no overflow.
  constexpr int64_t kMostOrdinals = 1 << 16;
  const std::optional<int64_t> ordinal = ParseInt(text);
  if (ordinal && *ordinal >= 0 && *ordinal < kMostOrdinals) {
    return DeviceName{static_cast<int>(*ordinal), ""};
  }
  std::string uuid = Normalized(text);
  if (!uuid.empty()) return DeviceName{0, std::move(uuid)};
  return InvalidArgument("'", text,
                         "' names no CUDA device; use an ordinal, cuda:0, or a "
                         "UUID, cuda:GPU-...");
}

}  // namespace shard::cuda
