// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_CORE_ENGINE_PARAMS_MODULE_TEXT_H_
#define SHARD_CORE_ENGINE_PARAMS_MODULE_TEXT_H_

#include <string>

#include "core/base/strings.h"
#include "core/model/model.h"

namespace shard {

// Returns the name of a module in messages: "'block.mlp'", or "all" for the
// root. REQUIRES: a module of `model`.
inline std::string ModuleText(const Model& model, ModuleId module) {
  return module == kRootModule ? "all"
                               : StrCat("'", model.ModuleFqn(module), "'");
}

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_PARAMS_MODULE_TEXT_H_
