// SPDX-License-Identifier: Apache-2.0

#include "core/base/own_path.h"

#include <dlfcn.h>

#include <cstdlib>

#include "core/base/strings.h"

namespace shard {

std::string OwnPath() {
  // Any address in it.
  static const char here = 0;
  Dl_info info = {};
  return dladdr(&here, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname
                                                                : "";
}

std::string ResolvedPath(const std::string& path) {
  char* const found = ::realpath(path.c_str(), nullptr);
  std::string resolved = found == nullptr ? "" : found;
  ::free(found);
  return resolved;
}

std::string PathBeside(const std::string& neighbor, std::string_view file) {
  const size_t slash = neighbor.rfind('/');
  return StrCat(
      slash == std::string::npos ? "./" : neighbor.substr(0, slash + 1), file);
}

}  // namespace shard
