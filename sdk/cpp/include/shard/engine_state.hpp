// SPDX-License-Identifier: Apache-2.0
//
// The state that an engine shares with its units, its full parameters and its
// saves. Each of these keeps the engine, and the callbacks that it may run,
// alive.

#ifndef SHARD_ENGINE_STATE_HPP_
#define SHARD_ENGINE_STATE_HPP_

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shard/arguments.hpp"
#include "shard/callback.hpp"
#include "shard/checkpoint.h"
#include "shard/comm.hpp"
#include "shard/engine.h"
#include "shard/engine_options.hpp"
#include "shard/plan.hpp"

namespace shard::detail {

// A save in the background, with the callback that it runs.
struct SaveState {
  std::unique_ptr<shard_save, Free<shard_save_free>> handle;
  ProgressCall progress;
  // Whether Save::wait has thrown the error of the save.
  std::atomic<bool> reported{false};
};

struct EngineState {
  explicit EngineState(std::shared_ptr<CommState> its_comm)
      : comm(std::move(its_comm)), plan(nullptr) {}
  EngineState(const EngineState&) = delete;
  // Waits for a save that runs, before its callback goes.
  ~EngineState() { shard_engine_free(handle); }

  // Returns the handle for a call, which no callback of it may make.
  shard_engine* use() const {
    CallbackScope::refuse(comm.get(), "communicator or its engines");
    return handle;
  }

  // Reads where tensors lie, which stays so.
  void read_device() {
    shard_device_kind kind = 0;
    check(shard_engine_device(handle, &kind, &device.ordinal));
    device.kind = static_cast<DeviceKind>(kind);
  }

  // Reads the plan that is in force.
  void read_plan() {
    plan = Plan(nullptr);
    shard_plan* current = nullptr;
    check(shard_engine_plan(handle, &current));
    plan = Plan(current);
  }

  // Throws the error of a call that saves or loads, or what a callback threw:
  // its own, or that of the save before, whose error the call returns. Forgets
  // the saves that have ended.
  void check_saves(shard_error* error, std::exception_ptr thrown) {
    const bool cancelled = shard_error_code(error) == SHARD_CANCELLED;
    std::erase_if(saves, [&](const std::shared_ptr<SaveState>& save) {
      if (shard_save_done(save->handle.get()) == 0) return false;
      if (cancelled && thrown == nullptr && !save->reported) {
        thrown = save->progress.thrown;
      }
      return true;
    });
    check(error, thrown);
  }

  // ---- Tensors --------------------------------------------------------------

  // Return the elements where they lie, which may be the memory of a GPU: the
  // host must not use them through the span.
  template <class T>
  std::span<const T> find_param(ParamId id) const {
    const void* data = nullptr;
    std::int64_t numel = 0;
    check(shard_engine_param(use(), raw(id), &data, &numel));
    return view<const T>("parameter", raw(id), plan.param_info(id).dtype, data,
                         numel);
  }
  template <class T>
  std::span<T> find_writable_param(ParamId id) const {
    void* data = nullptr;
    std::int64_t numel = 0;
    check(shard_engine_writable_param(use(), raw(id), &data, &numel));
    return view<T>("parameter", raw(id), plan.param_info(id).dtype, data,
                   numel);
  }
  template <class T>
  std::span<T> find_grad(ParamId id) const {
    void* data = nullptr;
    std::int64_t numel = 0;
    check(shard_engine_grad(use(), raw(id), &data, &numel));
    return view<T>("the gradient of parameter", raw(id), grad_dtype(id), data,
                   numel);
  }

  // Return the same elements, for the host to use. Throw where they are in the
  // memory of a GPU.
  template <class T>
  std::span<const T> param(ParamId id) const {
    const std::span<const T> found = find_param<T>(id);
    if (!on_host() && !is_copy(id, found.data())) {
      refuse_device("parameter " + std::to_string(raw(id)),
                    "take its address by param_ptr(), or its values by "
                    "summon() or a StateDict with copy");
    }
    return found;
  }
  template <class T>
  std::span<T> writable_param(ParamId id) const {
    const std::span<T> found = find_writable_param<T>(id);
    if (!on_host() && !is_copy(id, found.data())) {
      refuse_device("parameter " + std::to_string(raw(id)),
                    "set its values by set_param(), or take its address by "
                    "writable_param_ptr()");
    }
    return found;
  }
  template <class T>
  std::span<T> grad(ParamId id) const {
    const std::span<T> found = find_grad<T>(id);
    if (!on_host()) {
      refuse_device("the gradient of parameter " + std::to_string(raw(id)),
                    "take its address by grad_ptr(), for kernels and copies");
    }
    return found;
  }

  bool on_host() const noexcept { return device.kind == DeviceKind::cpu; }

  // Returns whether elements of a parameter are a copy of summon(), which is in
  // the host's memory on every device. Only copies are the host's to write
  // then.
  bool is_copy(ParamId id, const void* data) const {
    if (!summoned) return false;
    void* copy = nullptr;
    shard_error* const error =
        shard_engine_writable_param(use(), raw(id), &copy, nullptr);
    const bool found = error == nullptr && copy == data;
    shard_error_free(error);
    return found;
  }

  [[noreturn]] void refuse_device(const std::string& what,
                                  const char* remedy) const {
    throw Error(Code::failed_precondition, what + " is in the memory of GPU " +
                                               std::to_string(device.ordinal) +
                                               ", which the host cannot use; " +
                                               remedy);
  }

  DType grad_dtype(ParamId id) const {
    return plan.buffer_info(plan.param_info(id).buffer).grad_dtype;
  }

  const std::shared_ptr<CommState> comm;
  Plan plan;
  DeviceId device;
  // Whether there are copies of full parameters.
  bool summoned = false;
  std::vector<std::shared_ptr<SaveState>> saves;
  shard_engine* handle = nullptr;
};

}  // namespace shard::detail

#endif  // SHARD_ENGINE_STATE_HPP_
