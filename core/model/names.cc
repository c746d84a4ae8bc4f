// SPDX-License-Identifier: Apache-2.0

#include "core/model/names.h"

namespace shard {

namespace {

bool IsWrapper(std::string_view component) {
  return component == "_fsdp_wrapped_module" ||
         component == "_checkpoint_wrapped_module" ||
         component == "_fpw_module" || component == "_orig_mod";
}

}  // namespace

std::string CleanTensorName(std::string_view name, bool strip_leading_module) {
  std::string clean;
  clean.reserve(name.size());
  bool at_front = true;  // Nothing but wrappers so far.
  for (;;) {
    const size_t dot = name.find('.');
    if (dot == std::string_view::npos) break;
    const std::string_view component = name.substr(0, dot);
    if (!IsWrapper(component)) {
      if (!(at_front && strip_leading_module && component == "module")) {
        clean.append(component).push_back('.');
      }
      at_front = false;
    }
    name.remove_prefix(dot + 1);
  }
  clean.append(name);
  return clean;
}

}  // namespace shard
