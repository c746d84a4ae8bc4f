// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/helper_path.h"

#include <stdlib.h>
#include <unistd.h>

#include "core/base/own_path.h"
#include "core/base/strings.h"

namespace shard::network {

namespace {

constexpr char kVariable[] = "SHARD_NETWORK_HELPER";

// Returns the absolute path of a program, or "" where none can be executed.
// The program starts in another folder.
std::string Executable(const std::string& path) {
  std::string resolved = ResolvedPath(path);
  if (!resolved.empty() && ::access(resolved.c_str(), X_OK) != 0) {
    resolved.clear();
  }
  return resolved;
}

}  // namespace

StatusOr<std::string> HelperPath() {
  const char* const named = ::secure_getenv(kVariable);
  if (named != nullptr && *named != '\0') {
    std::string path = Executable(named);
    if (path.empty()) {
      return BackendUnavailable("the environment's ", kVariable, " is '", named,
                                "', which is no program that this process may "
                                "execute; name another one, or unset it");
    }
    return path;
  }
  // Links to libshard.so, as packages for languages have, may lie elsewhere.
  std::string tried;
  for (const std::string& library : {OwnPath(), ResolvedPath(OwnPath())}) {
    for (const std::string& file : {StrCat("../libexec/libshard/", kHelperName),
                                    std::string(kHelperName)}) {
      const std::string candidate = PathBeside(library, file);
      std::string path = Executable(candidate);
      if (!path.empty()) return path;
      if (tried.find(candidate) == std::string::npos) {
        StrAppend(&tried, tried.empty() ? "" : ", ", candidate);
      }
    }
  }
  return BackendUnavailable(
      "there is no program ", kHelperName,
      " for communicators over hosts: "
      "tried ",
      tried, "; install it, it comes with libshard, or name it in ", kVariable);
}

}  // namespace shard::network
