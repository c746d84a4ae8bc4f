// SPDX-License-Identifier: Apache-2.0

#include "tests/fake_nccl/interfaces.h"

#include <ifaddrs.h>
#include <sys/socket.h>

#include <cstdlib>
#include <sstream>
#include <string>

namespace shard::testing::fake_nccl {

namespace {

// Returns whether one of the names, separated by commas, is that of an
// interface.
bool IsAmong(const std::string& interface, const std::string& names,
             bool is_whole) {
  std::istringstream stream(names);
  for (std::string name; std::getline(stream, name, ',');) {
    if (name.empty()) continue;
    if (is_whole ? interface == name : interface.starts_with(name)) return true;
  }
  return false;
}

}  // namespace

bool HasInterface() {
  const char* const variable = std::getenv("NCCL_SOCKET_IFNAME");
  std::string names = variable == nullptr ? "" : variable;
  // NCCL takes a single letter for no value.
  if (names.size() < 2) return true;
  const bool excludes = names.starts_with('^');
  if (excludes) names.erase(0, 1);
  const bool is_whole = names.starts_with('=');
  if (is_whole) names.erase(0, 1);
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return false;
  bool found = false;
  for (const ifaddrs* it = all; it != nullptr; it = it->ifa_next) {
    if (it->ifa_addr == nullptr) continue;
    const int family = it->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    if (IsAmong(it->ifa_name, names, is_whole) != excludes) found = true;
  }
  ::freeifaddrs(all);
  return found;
}

}  // namespace shard::testing::fake_nccl
