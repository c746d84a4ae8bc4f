// SPDX-License-Identifier: Apache-2.0

#include "core/base/host_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/fd.h"
#include "core/base/strings.h"

namespace shard {

namespace {

std::string ReadSmallFile(const char* path) {
  const Fd fd(::open(path, O_RDONLY | O_CLOEXEC));
  char buffer[8192];
  if (!fd.valid()) return "";
  const ssize_t size = ::read(fd.get(), buffer, sizeof(buffer));
  return size > 0 ? std::string(buffer, static_cast<size_t>(size)) : "";
}

// Returns the number after `key` in lines of "key   123 kB"; with an empty key
// the number that is the whole text.
std::optional<uint64_t> NumberAfter(std::string_view text,
                                    std::string_view key) {
  const size_t at = text.find(key);
  if (at == std::string_view::npos) return std::nullopt;
  text.remove_prefix(at + key.size());
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return std::nullopt;
  text.remove_prefix(begin);
  const auto value = ParseInt(text.substr(0, text.find_first_of(" \t\n")));
  if (!value || *value < 0) return std::nullopt;
  return static_cast<uint64_t>(*value);
}

// Returns the memory left by the control group, version 2, as a container sees
// it.
uint64_t AvailableInControlGroup() {
  const auto limit =
      NumberAfter(ReadSmallFile("/sys/fs/cgroup/memory.max"), "");
  const auto used =
      NumberAfter(ReadSmallFile("/sys/fs/cgroup/memory.current"), "");
  if (!limit || !used) return UINT64_MAX;
  // Page cache counts as used, but the kernel frees it on demand.
  const uint64_t cache =
      NumberAfter(ReadSmallFile("/sys/fs/cgroup/memory.stat"), "inactive_file")
          .value_or(0);
  const uint64_t firm = *used > cache ? *used - cache : 0;
  return *limit > firm ? *limit - firm : 0;
}

}  // namespace

uint64_t AvailableHostMemory() {
  const auto kib = NumberAfter(ReadSmallFile("/proc/meminfo"), "MemAvailable:");
  return std::min(kib ? *kib * 1024 : UINT64_MAX, AvailableInControlGroup());
}

Status CheckHostMemory(uint64_t bytes, std::string_view remedy) {
  const uint64_t available = AvailableHostMemory();
  if (bytes <= available) return Status();
  return ResourceExhausted(FormatBytes(bytes),
                           " of memory are needed on this host, and ",
                           FormatBytes(available), " are available",
                           remedy.empty() ? "" : "; ", remedy);
}

}  // namespace shard
