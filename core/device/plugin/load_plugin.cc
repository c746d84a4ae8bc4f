// SPDX-License-Identifier: Apache-2.0

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "core/base/strings.h"
#include "core/device/plugin/build_id.h"
#include "core/device/plugin/plugin.h"

namespace shard {

namespace {

// Returns the path of the library or program that has this code.
std::string OwnPath() {
  // Any address in it.
  static const char here = 0;
  Dl_info info = {};
  return dladdr(&here, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname
                                                                : "";
}

// Returns `path` without links, or "" where there is no such file.
std::string Resolved(const std::string& path) {
  char* const found = ::realpath(path.c_str(), nullptr);
  std::string resolved = found == nullptr ? "" : found;
  ::free(found);
  return resolved;
}

// Returns the path of `file` in the folder of `neighbor`.
std::string Beside(const std::string& neighbor, std::string_view file) {
  const size_t slash = neighbor.rfind('/');
  return StrCat(
      slash == std::string::npos ? "./" : neighbor.substr(0, slash + 1), file);
}

}  // namespace

StatusOr<const Plugin*> LoadPlugin(std::string_view file) {
  // Links to libshard.so, as packages for languages have, may lie elsewhere.
  std::string path = Beside(OwnPath(), file);
  if (Resolved(path).empty()) path = Beside(Resolved(OwnPath()), file);
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = dlerror();
    return BackendUnavailable(
        "loading ", path, ": ",
        reason == nullptr ? "dlopen gives no reason" : reason,
        "; install the file, which comes with libshard, beside libshard.so");
  }
  const auto get = reinterpret_cast<GetPlugin>(dlsym(library, kGetPlugin));
  const Plugin* const plugin = get == nullptr ? nullptr : get(kBuildId);
  if (plugin == nullptr) {
    return BackendUnavailable(path, " is of another build than libshard.so (",
                              FormatHex(kBuildId),
                              "); install both from the same package");
  }
  return plugin;
}

}  // namespace shard
