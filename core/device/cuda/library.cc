// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/library.h"

#include <dlfcn.h>
#include <link.h>

namespace shard::cuda {

StatusOr<Library> Library::Open(const char* name, Origin origin) {
  const int flags =
      RTLD_NOW | RTLD_LOCAL | (origin == Origin::kProcess ? RTLD_NOLOAD : 0);
  void* const handle = dlopen(name, flags);
  if (handle != nullptr) return Library(name, handle, origin);
  const char* const reason = dlerror();
  return NotFound(reason == nullptr ? StrCat(name, " is not there") : reason);
}

Library::~Library() {
  if (handle_ != nullptr && !is_kept_) dlclose(handle_);
}

std::string Library::FindPath() const {
  const link_map* map = nullptr;
  if (dlinfo(handle_, RTLD_DI_LINKMAP, &map) != 0) return "";
  return map->l_name == nullptr ? "" : map->l_name;
}

void* Library::FindSymbol(const char* symbol) const {
  return dlsym(handle_, symbol);
}

}  // namespace shard::cuda
