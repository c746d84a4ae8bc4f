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
#include <utility>
#include <vector>

#include "shard/arguments.hpp"
#include "shard/callback.hpp"
#include "shard/checkpoint.h"
#include "shard/comm.hpp"
#include "shard/engine.h"
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

  template <class T>
  std::span<const T> param(ParamId id) {
    const void* data = nullptr;
    std::int64_t numel = 0;
    check(shard_engine_param(use(), raw(id), &data, &numel));
    return view<const T>("parameter", raw(id), plan.param_info(id).dtype, data,
                         numel);
  }

  template <class T>
  std::span<T> writable_param(ParamId id) {
    void* data = nullptr;
    std::int64_t numel = 0;
    check(shard_engine_writable_param(use(), raw(id), &data, &numel));
    return view<T>("parameter", raw(id), plan.param_info(id).dtype, data,
                   numel);
  }

  template <class T>
  std::span<T> grad(ParamId id) {
    void* data = nullptr;
    std::int64_t numel = 0;
    check(shard_engine_grad(use(), raw(id), &data, &numel));
    return view<T>("the gradient of parameter", raw(id), grad_dtype(id), data,
                   numel);
  }

  DType grad_dtype(ParamId id) const {
    return plan.buffer_info(plan.param_info(id).buffer).grad_dtype;
  }

  const std::shared_ptr<CommState> comm;
  Plan plan;
  std::vector<std::shared_ptr<SaveState>> saves;
  shard_engine* handle = nullptr;
};

}  // namespace shard::detail

#endif  // SHARD_ENGINE_STATE_HPP_
