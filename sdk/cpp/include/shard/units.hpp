// SPDX-License-Identifier: Apache-2.0
//
// Scopes of an engine: units that are acquired for a pass, and full parameters.
// shard/units.h and shard/engine.h say what each call does.

#ifndef SHARD_UNITS_HPP_
#define SHARD_UNITS_HPP_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shard/arguments.hpp"
#include "shard/engine_options.hpp"
#include "shard/engine_state.hpp"

namespace shard {

// A parameter of a unit, with its elements and its gradient as bytes. A frozen
// parameter, and every one in a forward pass, has no gradient.
struct UnitParam {
  ParamId param;
  std::span<const std::byte> data;
  std::span<std::byte> grad;
};

// A parameter of a unit, with the addresses of its elements and its gradient in
// the memory of the engine's device. The gradient's is null where there is
// none.
struct UnitParamPtr {
  ParamId param;
  const void* data;
  void* grad;
};

// An acquired unit: Engine::unit_acquire. Its parameters and gradients are
// valid until it is released. The spans themselves know nothing of that: do not
// keep them.
//
// release() reports errors. The destructor releases the unit too, and drops the
// error; it is the way out for an exception. Keeps the engine alive.
class Unit {
 public:
  Unit(Unit&&) noexcept = default;
  Unit& operator=(Unit&& other) noexcept {
    Unit(std::move(other)).swap(*this);
    return *this;
  }
  ~Unit() {
    if (engine_ == nullptr) return;
    shard_error_free(
        shard_engine_unit_release(engine_->handle, detail::raw(id_)));
  }

  UnitId id() const noexcept { return id_; }

  // Return the elements of a parameter of this unit, and its gradient. T is the
  // type that they are stored in, or std::byte. FAILED_PRECONDITION once the
  // unit is released.
  template <class T>
  std::span<const T> param(ParamId param) const SHARD_LIFETIMEBOUND {
    return engine_of(param).template param<T>(param);
  }
  template <class T>
  std::span<T> grad(ParamId param) const SHARD_LIFETIMEBOUND {
    return engine_of(param).template grad<T>(param);
  }
  // Return the addresses of these in the memory of the engine's device.
  template <class T>
  const T* param_ptr(ParamId param) const SHARD_LIFETIMEBOUND {
    return engine_of(param).template find_param<T>(param).data();
  }
  template <class T>
  T* grad_ptr(ParamId param) const SHARD_LIFETIMEBOUND {
    return engine_of(param).template find_grad<T>(param).data();
  }

  // Returns all parameters of the unit, by ascending id.
  std::vector<UnitParam> params() const {
    const detail::EngineState& engine = held();
    if (!engine.on_host()) {
      engine.refuse_device("unit " + std::to_string(detail::raw(id_)),
                           "take the addresses of its parameters and gradients "
                           "by param_ptrs()");
    }
    const std::vector<UnitParamPtr> ptrs = param_ptrs();
    std::vector<UnitParam> params;
    params.reserve(ptrs.size());
    for (const UnitParamPtr& found : ptrs) {
      const ParamInfo info = engine.plan.param_info(found.param);
      UnitParam& param = params.emplace_back(UnitParam{found.param, {}, {}});
      param.data =
          detail::view<const std::byte>("parameter", detail::raw(found.param),
                                        info.dtype, found.data, info.numel);
      if (found.grad == nullptr) continue;
      param.grad = detail::view<std::byte>("gradient", detail::raw(found.param),
                                           engine.grad_dtype(found.param),
                                           found.grad, info.numel);
    }
    return params;
  }
  // Returns the addresses of all parameters of the unit in the memory of the
  // engine's device, by ascending id.
  std::vector<UnitParamPtr> param_ptrs() const {
    const detail::EngineState& engine = held();
    std::size_t count = 0;
    detail::check(shard_engine_unit_params(
        engine.use(), detail::raw(id_), nullptr, nullptr, nullptr, 0, &count));
    std::vector<std::int32_t> ids(count);
    std::vector<const void*> data(count);
    std::vector<void*> grads(count);
    detail::check(shard_engine_unit_params(
        engine.use(), detail::raw(id_), ids.data(), data.data(),
        pass_ == Pass::forward ? nullptr : grads.data(), count, &count));
    std::vector<UnitParamPtr> params;
    params.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      params.push_back({ParamId{ids[i]}, data[i], grads[i]});
    }
    return params;
  }

  // Declares that this rank's gradients of the unit are written. COLLECTIVE*.
  void mark_grads_ready() {
    detail::check(
        shard_engine_mark_unit_grads_ready(held().use(), detail::raw(id_)));
  }
  // Declares the gradient of one parameter of this unit. COLLECTIVE*.
  void mark_param_grad_ready(ParamId param) {
    detail::check(shard_engine_mark_param_grad_ready(engine_of(param).use(),
                                                     detail::raw(param)));
  }

  // Releases the unit, and reports the error, after which the unit counts as
  // released. FAILED_PRECONDITION when it is already. Mostly local: see
  // shard_engine_unit_release.
  void release() {
    shard_engine* const handle = held().use();
    const std::shared_ptr<detail::EngineState> engine = std::move(engine_);
    engine_ = nullptr;
    detail::check(shard_engine_unit_release(handle, detail::raw(id_)));
  }

 private:
  friend class Engine;

  Unit(std::shared_ptr<detail::EngineState> engine, UnitId id, Pass pass)
      : engine_(std::move(engine)), id_(id), pass_(pass) {}

  void swap(Unit& other) noexcept {
    std::swap(engine_, other.engine_);
    std::swap(id_, other.id_);
    std::swap(pass_, other.pass_);
  }

  detail::EngineState& held() const {
    if (engine_ != nullptr) return *engine_;
    throw Error(Code::failed_precondition,
                "unit " + std::to_string(detail::raw(id_)) +
                    " was released; acquire it again");
  }

  // Returns the engine. Throws unless `param` is in this unit.
  detail::EngineState& engine_of(ParamId param) const {
    detail::EngineState& engine = held();
    const UnitId unit = engine.plan.unit_of(param);
    if (unit == id_) return engine;
    throw Error(Code::invalid_argument,
                "parameter " + std::to_string(detail::raw(param)) +
                    " is in unit " + std::to_string(detail::raw(unit)) +
                    ", not in unit " + std::to_string(detail::raw(id_)) +
                    "; acquire the unit that it is in");
  }

  std::shared_ptr<detail::EngineState> engine_;
  UnitId id_;
  Pass pass_;
};

// Whole private copies of parameters, in the host's memory on every device:
// Engine::summon. The engine's own parameters stay as they are until end(true).
//
// The destructor is end(false) without a report: COLLECTIVE, so it waits for
// the other ranks, at most for the engine's timeout. A rank that an exception
// takes out of the scope while the others go to end(true) gets DESYNC with
// them; nobody is left waiting. Keeps the engine alive.
class FullParams {
 public:
  FullParams(FullParams&&) noexcept = default;
  FullParams& operator=(FullParams&& other) noexcept {
    FullParams ended(std::move(other));
    std::swap(engine_, ended.engine_);
    return *this;
  }
  ~FullParams() {
    if (engine_ == nullptr) return;
    engine_->summoned = false;
    shard_error_free(shard_engine_summon_end(engine_->handle, 0, 0));
  }

  // Return a parameter's copy, to read or to write. T is the type that it is
  // stored in, or std::byte. FAILED_PRECONDITION on ranks without copies, and
  // after end().
  template <class T>
  std::span<const T> param(ParamId param) const SHARD_LIFETIMEBOUND {
    return held().template param<T>(param);
  }
  template <class T>
  std::span<T> writable_param(ParamId param) const SHARD_LIFETIMEBOUND {
    return held().template writable_param<T>(param);
  }

  // Frees the copies, and first writes them to the parameters with
  // `write_back`. FAILED_PRECONDITION after an earlier end(). COLLECTIVE,
  // blocks.
  void end(bool write_back = false, double timeout = 0) {
    shard_engine* const handle = held().use();
    const std::shared_ptr<detail::EngineState> engine = std::move(engine_);
    engine_ = nullptr;
    engine->summoned = false;
    detail::check(shard_engine_summon_end(handle, write_back ? 1 : 0, timeout));
  }

 private:
  friend class Engine;

  explicit FullParams(std::shared_ptr<detail::EngineState> engine)
      : engine_(std::move(engine)) {
    engine_->summoned = true;
  }

  detail::EngineState& held() const {
    if (engine_ != nullptr) return *engine_;
    throw Error(Code::failed_precondition,
                "the full parameters were given back; summon them again");
  }

  std::shared_ptr<detail::EngineState> engine_;
};

}  // namespace shard

#endif  // SHARD_UNITS_HPP_
