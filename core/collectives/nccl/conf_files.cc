// SPDX-License-Identifier: Apache-2.0

#include "core/collectives/nccl/conf_files.h"

#include <pwd.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace shard::nccl {

namespace {

// Returns the user's folder; "" where the system does not know it.
std::string HomeFolder() {
  passwd entry;
  passwd* found = nullptr;
  std::array<char, 4096> buffer;
  const int error =
      ::getpwuid_r(::getuid(), &entry, buffer.data(), buffer.size(), &found);
  return error != 0 || found == nullptr ? "" : entry.pw_dir;
}

}  // namespace

std::vector<std::string> ConfFiles() {
  std::vector<std::string> files;
  const char* const named = std::getenv("NCCL_CONF_FILE");
  if (named != nullptr && *named != '\0') {
    files.emplace_back(named);
  } else if (const std::string home = HomeFolder(); !home.empty()) {
    files.push_back(home + "/.nccl.conf");
  }
  files.emplace_back("/etc/nccl.conf");
  return files;
}

std::optional<Setting> FindSetting(std::string_view variable) {
  const char* const value = std::getenv(std::string(variable).c_str());
  if (value != nullptr) return Setting{value, ""};
  const std::string begin = std::string(variable) + "=";
  for (const std::string& path : ConfFiles()) {
    // Another kind of file may never end.
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) continue;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with(begin)) {
        return Setting{line.substr(begin.size()), path};
      }
    }
  }
  return std::nullopt;
}

}  // namespace shard::nccl
