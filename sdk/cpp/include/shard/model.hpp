// SPDX-License-Identifier: Apache-2.0
//
// Models: the modules, parameters and buffers that a host declares.
// shard/model.h says what each call refuses.

#ifndef SHARD_MODEL_HPP_
#define SHARD_MODEL_HPP_

#include <cstdint>
#include <memory>
#include <vector>

#include "shard/arguments.hpp"
#include "shard/callback.hpp"
#include "shard/model.h"
#include "shard/version.hpp"

namespace shard {

// A tree of modules with named parameters and buffers. Movable; a moved-from
// one is INVALID_ARGUMENT in every call. All calls are local.
class Model {
 public:
  // Creates a model whose root module has this class.
  [[nodiscard]] static Model create(Text class_name = "") {
    detail::require_library();
    shard_model* model = nullptr;
    detail::check(shard_model_create(class_name.c_str(), &model));
    return Model(model);
  }

  // Adds a module within `parent`.
  ModuleId add_module(ModuleId parent, Text name, Text class_name = "") {
    std::int32_t module = 0;
    detail::check(shard_model_add_module(
        use(), detail::raw(parent), name.c_str(), class_name.c_str(), &module));
    return ModuleId{module};
  }

  // Adds a trainable parameter, row-major.
  ParamId add_param(ModuleId module, Text name, DType dtype,
                    const Shape& shape) {
    std::int32_t param = 0;
    detail::check(shard_model_add_param(
        use(), detail::raw(module), name.c_str(),
        static_cast<shard_dtype>(dtype), shape.data(), shape.size(), &param));
    return ParamId{param};
  }

  // Adds a buffer: a tensor of the host that is neither stepped nor sharded.
  // `persistent`: it is in checkpoints and state dicts.
  ModelBufferId add_buffer(ModuleId module, Text name, DType dtype,
                           const Shape& shape, bool persistent = true) {
    std::int32_t buffer = 0;
    detail::check(
        shard_model_add_buffer(use(), detail::raw(module), name.c_str(),
                               static_cast<shard_dtype>(dtype), shape.data(),
                               shape.size(), persistent ? 1 : 0, &buffer));
    return ModelBufferId{buffer};
  }

  // Gives `param` another name, for tied weights.
  void tie(ModuleId module, Text name, ParamId param) {
    detail::check(shard_model_tie(use(), detail::raw(module), name.c_str(),
                                  detail::raw(param)));
  }

  // Freezes a parameter: it keeps its values and has no gradient.
  void freeze(ParamId param) {
    detail::check(shard_model_freeze(use(), detail::raw(param)));
  }

  // Ignore a parameter, or a module with everything below it.
  void ignore_param(ParamId param) {
    detail::check(shard_model_ignore_param(use(), detail::raw(param)));
  }
  void ignore_module(ModuleId module) {
    detail::check(shard_model_ignore_module(use(), detail::raw(module)));
  }

  // Gives parameters an optimizer, or hyperparameters, of their own.
  GroupId add_param_group(Text optimizer, const std::vector<ParamId>& params) {
    const std::vector<std::int32_t> numbers = detail::raw(params);
    std::int32_t group = 0;
    detail::check(shard_model_add_param_group(
        use(), optimizer.c_str(), numbers.data(), numbers.size(), &group));
    return GroupId{group};
  }

  // Returns the handle of the C interface, which stays this object's; NULL when
  // moved from.
  shard_model* get() const noexcept { return handle_.get(); }

 private:
  explicit Model(shard_model* handle) noexcept : handle_(handle) {}

  shard_model* use() const {
    if (handle_ != nullptr) detail::CallbackScope::refuse(get(), "model");
    return get();
  }

  std::unique_ptr<shard_model, detail::Free<shard_model_free>> handle_;
};

}  // namespace shard

#endif  // SHARD_MODEL_HPP_
