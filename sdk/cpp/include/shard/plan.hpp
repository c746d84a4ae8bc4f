// SPDX-License-Identifier: Apache-2.0
//
// Plans: how a model is sharded over ranks. shard/plan.h and shard/layout.h say
// what each call does.

#ifndef SHARD_PLAN_HPP_
#define SHARD_PLAN_HPP_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "shard/arguments.hpp"
#include "shard/layout.hpp"
#include "shard/model.hpp"
#include "shard/plan_options.hpp"

namespace shard {

namespace detail {
struct EngineState;
}

// A plan. Immutable: any thread. Movable; a moved-from one is INVALID_ARGUMENT
// in every call. Names and texts that are string_views live as long as the
// plan, and end in a NUL.
class Plan {
 public:
  // Decides every unit, flat buffer, slot and owner. Local.
  [[nodiscard]] static Plan create(const Model& model,
                                   const PlanOptions& options) {
    detail::require_library();
    detail::WrapCall wrap{.predicate = options.wrap_predicate,
                          .model = model.get()};
    const shard_plan_options c = detail::to_c(options, wrap);
    shard_plan* handle = nullptr;
    shard_error* error = shard_plan_create(model.get(), &c, &handle);
    Plan plan(handle);
    detail::check(error, wrap.thrown);
    return plan;
  }

  // ---- A plan as bytes ------------------------------------------------------

  std::vector<std::byte> encode() const {
    return detail::copied_bytes(
        [&](auto... buffer) { return shard_plan_encode(get(), buffer...); });
  }
  [[nodiscard]] static Plan decode(std::span<const std::byte> bytes) {
    detail::require_library();
    shard_plan* handle = nullptr;
    detail::check(shard_plan_decode(bytes.data(), bytes.size(), &handle));
    return Plan(handle);
  }

  // ---- Decisions ------------------------------------------------------------

  PlanInfo info() const {
    PlanInfo info = SHARD_PLAN_INFO_INIT;
    detail::check(shard_plan_get_info(get(), &info));
    return info;
  }

  // Return all ids: for (UnitId unit : plan.units()).
  Ids<ParamId> params() const { return Ids<ParamId>(info().num_params); }
  Ids<UnitId> units() const { return Ids<UnitId>(info().num_units); }
  Ids<BufferId> buffers() const { return Ids<BufferId>(info().num_buffers); }
  Ids<NameId> names() const { return Ids<NameId>(info().num_names); }
  Ids<ModelBufferId> model_buffers() const {
    return Ids<ModelBufferId>(info().num_model_buffers);
  }

  UnitId unit_of(ParamId param) const {
    std::int32_t unit = 0;
    detail::check(shard_plan_unit_of(get(), detail::raw(param), &unit));
    return UnitId{unit};
  }
  // Returns the unit whose outermost module is `module`, if there is one.
  std::optional<UnitId> unit_of_module(ModuleId module) const {
    std::int32_t unit = 0;
    detail::check(shard_plan_unit_of_module(get(), detail::raw(module), &unit));
    if (unit < 0) return std::nullopt;
    return UnitId{unit};
  }
  ModuleId unit_module(UnitId unit) const {
    std::int32_t module = 0;
    detail::check(shard_plan_unit_module(get(), detail::raw(unit), &module));
    return ModuleId{module};
  }

  Memory memory(const Placement& placement = {}) const {
    const shard_placement c = detail::to_c(placement);
    Memory memory = SHARD_MEMORY_INIT;
    detail::check(shard_plan_memory(get(), &c, &memory));
    return memory;
  }

  std::string text() const {
    return detail::copied_text(
        [&](auto... buffer) { return shard_plan_text(get(), buffer...); });
  }
  std::string json() const {
    return detail::copied_text(
        [&](auto... buffer) { return shard_plan_json(get(), buffer...); });
  }
  std::string_view warnings() const SHARD_LIFETIMEBOUND {
    return owned_text(shard_plan_warnings);
  }

  // ---- Layout ---------------------------------------------------------------

  ParamInfo param_info(ParamId param) const {
    shard_param_info info = SHARD_PARAM_INFO_INIT;
    detail::check(shard_plan_param_info(get(), detail::raw(param), &info));
    return detail::from_c(info);
  }
  BufferInfo buffer_info(BufferId buffer) const {
    shard_buffer_info info = SHARD_BUFFER_INFO_INIT;
    detail::check(shard_plan_buffer_info(get(), detail::raw(buffer), &info));
    return detail::from_c(info);
  }
  ParamId buffer_param(BufferId buffer, std::int32_t index) const {
    std::int32_t param = 0;
    detail::check(
        shard_plan_buffer_param(get(), detail::raw(buffer), index, &param));
    return ParamId{param};
  }
  Range rank_range(BufferId buffer, std::int32_t rank) const {
    Range range = SHARD_RANGE_INIT;
    detail::check(
        shard_plan_rank_range(get(), detail::raw(buffer), rank, &range));
    return range;
  }

  // Returns the parameter slices that intersect `numel` elements of a flat
  // buffer from `begin` on.
  std::vector<Slice> slices(BufferId buffer, std::int64_t begin,
                            std::int64_t numel) const {
    std::size_t count = 0;
    detail::check(shard_plan_slices(get(), detail::raw(buffer), begin, numel,
                                    nullptr, 0, &count));
    std::vector<shard_slice> found(count, SHARD_SLICE_INIT);
    detail::check(shard_plan_slices(get(), detail::raw(buffer), begin, numel,
                                    found.data(), found.size(), &count));
    std::vector<Slice> slices;
    slices.reserve(count);
    for (const shard_slice& slice : found) {
      slices.push_back(detail::from_c(slice));
    }
    return slices;
  }

  // Returns the parameter's elements in the host's own copy of its whole flat
  // buffer, which `flat` is.
  template <class T>
  std::span<T> param_view(ParamId param, std::span<T> flat) const {
    const ParamInfo info = param_info(param);
    detail::require_dtype<T>("parameter", detail::raw(param), info.dtype);
    const std::size_t size = dtype_size(info.dtype) / sizeof(T);
    if (flat.size() % size != 0) {
      throw Error(Code::invalid_argument,
                  std::to_string(flat.size()) +
                      " bytes are no whole elements of " +
                      dtype_name(info.dtype) + "; allowed: multiples of " +
                      std::to_string(size));
    }
    void* view = nullptr;
    detail::check(shard_plan_param_view(
        get(), detail::raw(param),
        const_cast<std::remove_const_t<T>*>(flat.data()),
        static_cast<std::int64_t>(flat.size() / size), &view));
    return detail::view<T>("parameter", detail::raw(param), info.dtype, view,
                           info.numel);
  }

  // ---- Names, modules, buffers of the model ---------------------------------

  NameInfo name_info(NameId name) const {
    shard_name_info info = SHARD_NAME_INFO_INIT;
    detail::check(shard_plan_name_info(get(), detail::raw(name), &info));
    return detail::from_c(info);
  }
  // Returns the parameter's FQN, with `index` 0, or an alias.
  std::string_view param_name(ParamId param, std::int32_t index = 0) const
      SHARD_LIFETIMEBOUND {
    return owned_text(shard_plan_param_name, detail::raw(param), index);
  }
  ParamId find_param(Text fqn) const {
    std::int32_t param = 0;
    detail::check(shard_plan_find_param(get(), fqn.c_str(), &param));
    return ParamId{param};
  }

  // Returns the module at place `index` of the module walk, which goes up to
  // info().num_modules.
  ModuleInfo module_info(std::int32_t index) const {
    shard_module_info info = SHARD_MODULE_INFO_INIT;
    detail::check(shard_plan_module_info(get(), index, &info));
    return detail::from_c(info);
  }
  std::string_view module_name(ModuleId module) const SHARD_LIFETIMEBOUND {
    return owned_text(shard_plan_module_name, detail::raw(module));
  }
  std::string_view module_class(ModuleId module) const SHARD_LIFETIMEBOUND {
    return owned_text(shard_plan_module_class, detail::raw(module));
  }

  ModelBufferInfo model_buffer_info(ModelBufferId buffer) const {
    shard_model_buffer_info info = SHARD_MODEL_BUFFER_INFO_INIT;
    detail::check(
        shard_plan_model_buffer_info(get(), detail::raw(buffer), &info));
    return detail::from_c(info);
  }
  std::string_view model_buffer_name(ModelBufferId buffer) const
      SHARD_LIFETIMEBOUND {
    return owned_text(shard_plan_model_buffer_name, detail::raw(buffer));
  }

  // Returns the handle of the C interface, which stays this object's; NULL when
  // moved from.
  const shard_plan* get() const noexcept { return handle_.get(); }

 private:
  friend class Engine;
  friend struct detail::EngineState;

  explicit Plan(shard_plan* handle) noexcept : handle_(handle) {}

  template <class Get, class... Arguments>
  std::string_view owned_text(const Get& get_text,
                              Arguments... arguments) const {
    const char* text = nullptr;
    detail::check(get_text(get(), arguments..., &text));
    return text;
  }

  std::unique_ptr<shard_plan, detail::Free<shard_plan_free>> handle_;
};

// Removes from a tensor's name the components that wrappers leave in it, and
// with `strip_leading_module` also one leading "module.". Any thread.
inline std::string clean_tensor_name(Text name,
                                     bool strip_leading_module = false) {
  detail::require_library();
  return detail::copied_text([&](auto... buffer) {
    return shard_clean_tensor_name(name.c_str(), strip_leading_module ? 1 : 0,
                                   buffer...);
  });
}

}  // namespace shard

#endif  // SHARD_PLAN_HPP_
