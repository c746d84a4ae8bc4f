// SPDX-License-Identifier: Apache-2.0

#include <dlfcn.h>

#include <string>

#include "core/base/own_path.h"
#include "core/base/strings.h"
#include "core/device/plugin/build_id.h"
#include "core/device/plugin/plugin.h"

namespace shard {

StatusOr<const Plugin*> LoadPlugin(std::string_view file) {
  // Links to libshard.so, as packages for languages have, may lie elsewhere.
  std::string path = PathBeside(OwnPath(), file);
  if (ResolvedPath(path).empty())
    path = PathBeside(ResolvedPath(OwnPath()), file);
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
