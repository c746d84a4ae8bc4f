// SPDX-License-Identifier: Apache-2.0
//
// Engines: one rank's training. shard/engine.h, shard/tensors.h and
// shard/units.h say what each call does.

#ifndef SHARD_ENGINE_HPP_
#define SHARD_ENGINE_HPP_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "shard/arguments.hpp"
#include "shard/checkpoint.h"
#include "shard/comm.hpp"
#include "shard/engine_options.hpp"
#include "shard/engine_state.hpp"
#include "shard/plan.hpp"
#include "shard/units.hpp"

namespace shard {

// How a blob is mapped to another world size: shard_blob_rule.
enum class BlobRule : shard_blob_rule {
  per_rank = SHARD_BLOB_PER_RANK,
  replicated = SHARD_BLOB_REPLICATED,
  summed = SHARD_BLOB_SUMMED
};

// An engine. Movable; a moved-from one is INVALID_ARGUMENT in every call. Keeps
// its communicator and plan alive.
//
// Spans of parameters and gradients are the engine's memory. T is the type that
// the elements are stored in, or std::byte for any. They are valid as long as
// the engine, until add_param_group() or set_trainable(); where parameters are
// sharded, while their unit is acquired. The spans themselves know nothing of
// that.
//
// The host cannot use the memory of a GPU, so there a span is
// FAILED_PRECONDITION. The functions whose names end in _ptr return the address
// of the first element in the memory of device(), on every device, and it is
// valid as long as the span would be.
class Engine {
 public:
  Engine(Engine&&) noexcept = default;
  Engine& operator=(Engine&&) noexcept = default;

  // Allocates buffers, and checks that all ranks hold the same plan and
  // options. COLLECTIVE, blocks.
  [[nodiscard]] static Engine create(const Plan& plan, Comm& comm,
                                     const EngineOptions& options = {}) {
    auto state = std::make_shared<detail::EngineState>(comm.state_);
    const shard_engine_options c = detail::to_c(options);
    detail::check(
        shard_engine_create(plan.get(), comm.use(), &c, &state->handle));
    state->read_plan();
    state->read_device();
    return Engine(std::move(state));
  }

  // Returns the plan that is in force. Local.
  Plan plan() const {
    shard_plan* plan = nullptr;
    detail::check(shard_engine_plan(use(), &plan));
    return Plan(plan);
  }

  // Returns the bytes that this engine has allocated. Local.
  Memory memory() const {
    Memory memory = SHARD_MEMORY_INIT;
    detail::check(shard_engine_memory(use(), &memory));
    return memory;
  }

  // ---- Numbers. Local -------------------------------------------------------

  void set_hyper(GroupId group, Text key, double value) {
    detail::check(
        shard_engine_set_hyper(use(), detail::raw(group), key.c_str(), value));
  }
  double hyper(GroupId group, Text key) const {
    double value = 0;
    detail::check(
        shard_engine_hyper(use(), detail::raw(group), key.c_str(), &value));
    return value;
  }
  std::string group_text(GroupId group) const {
    return detail::copied_text([&](auto... buffer) {
      return shard_engine_group_text(use(), detail::raw(group), buffer...);
    });
  }
  void set_state(ParamId param, Text state, std::span<const float> values) {
    detail::check(shard_engine_set_state(use(), detail::raw(param),
                                         state.c_str(), values.data(),
                                         values.size()));
  }
  std::int64_t completed_steps() const {
    std::int64_t step = 0;
    detail::check(shard_engine_completed_steps(use(), &step));
    return step;
  }
  void set_completed_steps(std::int64_t step) {
    detail::check(shard_engine_set_completed_steps(use(), step));
  }
  double loss_scale() const {
    double scale = 0;
    detail::check(shard_engine_loss_scale(use(), &scale));
    return scale;
  }
  std::int64_t growth_tracker() const {
    std::int64_t good_steps = 0;
    detail::check(shard_engine_growth_tracker(use(), &good_steps));
    return good_steps;
  }
  void set_loss_scale(double scale, std::int64_t good_steps) {
    detail::check(shard_engine_set_loss_scale(use(), scale, good_steps));
  }

  // ---- Parameters -----------------------------------------------------------

  template <class T>
  std::span<const T> param(ParamId param) SHARD_LIFETIMEBOUND {
    return state().template param<T>(param);
  }
  template <class T>
  std::span<T> writable_param(ParamId param) SHARD_LIFETIMEBOUND {
    return state().template writable_param<T>(param);
  }
  template <class T>
  const T* param_ptr(ParamId param) SHARD_LIFETIMEBOUND {
    return state().template find_param<T>(param).data();
  }
  template <class T>
  T* writable_param_ptr(ParamId param) SHARD_LIFETIMEBOUND {
    return state().template find_writable_param<T>(param).data();
  }

  // Copies a parameter's initial values into the engine; only rank 0's count.
  // `values` is a contiguous range, such as a vector. Local.
  template <class R>
  void set_param(ParamId param, const R& values) {
    const std::span elements(values);
    using T = typename decltype(elements)::element_type;
    shard_engine* const handle = use();
    detail::require_dtype<T>("parameter", detail::raw(param),
                             state().plan.param_info(param).dtype);
    detail::check(shard_engine_set_param(
        handle, detail::raw(param), elements.data(), elements.size_bytes()));
  }

  // Sends rank 0's parameters to all ranks. COLLECTIVE, blocks; once, before
  // the first step.
  void broadcast_params(double timeout = 0) {
    detail::check(shard_engine_broadcast_params(use(), timeout));
  }

  // ---- Gradients ------------------------------------------------------------

  template <class T>
  std::span<T> grad(ParamId param) SHARD_LIFETIMEBOUND {
    return state().template grad<T>(param);
  }
  template <class T>
  T* grad_ptr(ParamId param) SHARD_LIFETIMEBOUND {
    return state().template find_grad<T>(param).data();
  }
  void zero_grad() { detail::check(shard_engine_zero_grad(use())); }

  // Binds memory of the host to a parameter and its gradient; an empty span
  // binds nothing. The memory must be valid until it is bound no more or the
  // engine is gone: the engine, and all that keeps it alive. Local.
  template <class V, class G = V>
  void bind_param(ParamId param, std::span<V> values, std::span<G> grad = {}) {
    static_assert(!std::is_const_v<V> && !std::is_const_v<G>,
                  "the engine writes to bound memory");
    detail::EngineState& engine = state();
    shard_engine* const handle = use();
    if (!values.empty()) {
      detail::require_dtype<V>("parameter", detail::raw(param),
                               engine.plan.param_info(param).dtype);
    }
    if (!grad.empty() && engine.plan.param_info(param).trainable) {
      detail::require_dtype<G>("the gradient of parameter", detail::raw(param),
                               engine.grad_dtype(param));
    }
    detail::check(shard_engine_bind_param(handle, detail::raw(param),
                                          values.data(), values.size_bytes(),
                                          grad.data(), grad.size_bytes()));
  }
  void unbind_param(ParamId param) {
    detail::check(shard_engine_bind_param(use(), detail::raw(param), nullptr, 0,
                                          nullptr, 0));
  }

  // ---- Buffers of the model -------------------------------------------------

  template <class T>
  std::span<T> buffer(ModelBufferId buffer) SHARD_LIFETIMEBOUND {
    void* data = nullptr;
    std::int64_t numel = 0;
    detail::check(
        shard_engine_buffer(use(), detail::raw(buffer), &data, &numel));
    return detail::view<T>("buffer", detail::raw(buffer),
                           state().plan.model_buffer_info(buffer).dtype, data,
                           numel);
  }
  // Replaces the buffers of all ranks by those of one. COLLECTIVE, blocks.
  void broadcast_buffers(std::int32_t root = 0, double timeout = 0) {
    detail::check(shard_engine_broadcast_buffers(use(), root, timeout));
  }

  // ---- Units ----------------------------------------------------------------

  // Acquires a unit for a pass. COLLECTIVE*, blocks.
  [[nodiscard]] Unit unit_acquire(UnitId unit, Pass pass, double timeout = 0) {
    detail::check(shard_engine_unit_acquire(
        use(), detail::raw(unit), static_cast<shard_pass>(pass), timeout));
    return Unit(state_, unit, pass);
  }

  // Declare gradients ready, in stages 0 and 1 also of units that are not
  // acquired. COLLECTIVE*.
  void mark_unit_grads_ready(UnitId unit) {
    detail::check(shard_engine_mark_unit_grads_ready(use(), detail::raw(unit)));
  }
  void mark_param_grad_ready(ParamId param) {
    detail::check(
        shard_engine_mark_param_grad_ready(use(), detail::raw(param)));
  }
  void set_accumulate(bool accumulate) {
    detail::check(shard_engine_set_accumulate(use(), accumulate ? 1 : 0));
  }

  // ---- Steps ----------------------------------------------------------------

  // Reduces the gradients of all ranks, updates the parameters, and publishes
  // them. COLLECTIVE, blocks.
  StepReport step(const StepOptions& options = {}) {
    const shard_step_options c = detail::to_c(options);
    StepReport report = SHARD_STEP_REPORT_INIT;
    detail::check(shard_engine_step(use(), &c, &report));
    return report;
  }
  // The same. On a device with streams it may return once the step is enqueued:
  // after set_stream. COLLECTIVE, blocks.
  void step_without_report(const StepOptions& options = {}) {
    const shard_step_options c = detail::to_c(options);
    detail::check(shard_engine_step(use(), &c, nullptr));
  }
  // Returns the report of the last finished step. Local, blocks.
  StepReport last_report() const {
    StepReport report = SHARD_STEP_REPORT_INIT;
    detail::check(shard_engine_last_report(use(), &report));
    return report;
  }
  // Returns where the engine's tensors lie.
  DeviceId device() const {
    DeviceId id;
    shard_device_kind kind = 0;
    detail::check(shard_engine_device(use(), &kind, &id.ordinal));
    id.kind = static_cast<DeviceKind>(kind);
    return id;
  }
  // Returns how the engine works, as JSON: see shard_engine_json. Local.
  std::string json() const {
    return detail::copied_text(
        [&](auto... buffer) { return shard_engine_json(use(), buffer...); });
  }
  // Sets the stream on which the host enqueues its own work; null: the device's
  // usual one. The stream must live until the engine is gone, and all that
  // keeps it alive, or another one is set. Local.
  void set_stream(void* stream) {
    detail::check(shard_engine_set_stream(use(), stream));
  }
  // Begins a capture: until capture_end, zero_grad and one step_without_report
  // become part of the CUDA graph that the host captures on the stream of
  // set_stream. Local, blocks until the step before has ended.
  void capture_begin() { detail::check(shard_engine_capture_begin(use())); }
  // Ends the capture; call it before the host ends its own. COLLECTIVE where
  // several ranks have captured a step.
  void capture_end() { detail::check(shard_engine_capture_end(use())); }
  // Gives the captured step the values of the next one: before each launch of
  // the graph. COLLECTIVE, blocks until the step before has ended.
  void before_replay(const StepOptions& options = {}) {
    const shard_step_options c = detail::to_c(options);
    detail::check(shard_engine_before_replay(use(), &c));
  }
  // Waits until everything that the engine was given has run. Local, blocks.
  void synchronize(double timeout = 0) {
    detail::check(shard_engine_synchronize(use(), timeout));
  }
  // Announces the options of the next step before the backward pass.
  // COLLECTIVE, blocks.
  void begin_step(const StepOptions& options = {}) {
    const shard_step_options c = detail::to_c(options);
    detail::check(shard_engine_begin_step(use(), &c));
  }
  // Takes part in the other ranks' steps until every rank has joined. Returns
  // the number of these steps. COLLECTIVE with their calls, blocks.
  std::int64_t join(double timeout = 0) {
    std::int64_t steps = 0;
    detail::check(shard_engine_join(use(), timeout, &steps));
    return steps;
  }

  // ---- Full parameters, and changes at run time -----------------------------

  // Makes whole private copies of the parameters in `module` and below, on one
  // rank or on all. COLLECTIVE, blocks.
  [[nodiscard]] FullParams summon(ModuleId module = root_module,
                                  std::int32_t rank = all_ranks,
                                  double timeout = 0) {
    detail::check(
        shard_engine_summon(use(), detail::raw(module), rank, timeout));
    return FullParams(state_);
  }

  // Gives parameters a group of their own. Spans of parameters and gradients
  // are no longer valid. COLLECTIVE, blocks.
  GroupId add_param_group(Text optimizer, const std::vector<ParamId>& params,
                          double timeout = 0) {
    const std::vector<std::int32_t> numbers = detail::raw(params);
    std::int32_t group = 0;
    detail::check(shard_engine_add_param_group(use(), optimizer.c_str(),
                                               numbers.data(), numbers.size(),
                                               timeout, &group));
    state().read_plan();
    return GroupId{group};
  }
  // Freezes or trains parameters from here on. Spans of parameters and
  // gradients are no longer valid. COLLECTIVE, blocks.
  void set_trainable(const std::vector<ParamId>& params, bool trainable,
                     double timeout = 0) {
    const std::vector<std::int32_t> numbers = detail::raw(params);
    detail::check(shard_engine_set_trainable(
        use(), numbers.data(), numbers.size(), trainable ? 1 : 0, timeout));
    state().read_plan();
  }

  // ---- Blobs, and what the last load found ----------------------------------

  // Sets bytes of the host's that are saved with every checkpoint from here on.
  // Local.
  void set_blob(Text name, BlobRule rule, std::span<const std::byte> bytes) {
    detail::check(shard_engine_set_blob(use(), name.c_str(),
                                        static_cast<shard_blob_rule>(rule),
                                        bytes.data(), bytes.size()));
  }
  // Returns a blob that was set or loaded. Valid until the name is set again or
  // something is loaded. Local.
  std::span<const std::byte> blob(Text name) const SHARD_LIFETIMEBOUND {
    const void* data = nullptr;
    std::size_t bytes = 0;
    detail::check(shard_engine_blob(use(), name.c_str(), &data, &bytes));
    return {static_cast<const std::byte*>(data), bytes};
  }
  // Returns the missing and unexpected keys of the last load, as JSON. Local.
  std::string last_load_report_json() const {
    return detail::copied_text([&](auto... buffer) {
      return shard_engine_last_load_report_json(use(), buffer...);
    });
  }

  // Returns the handle of the C interface, which stays this object's; NULL when
  // moved from.
  shard_engine* get() const noexcept {
    return state_ == nullptr ? nullptr : state_->handle;
  }

 private:
  friend class Checkpoint;
  friend class StateDict;

  explicit Engine(std::shared_ptr<detail::EngineState> state) noexcept
      : state_(std::move(state)) {}

  detail::EngineState& state() const {
    if (state_ != nullptr) return *state_;
    throw Error(Code::invalid_argument,
                "the engine was moved from; use the one that has it now");
  }
  shard_engine* use() const { return state().use(); }

  std::shared_ptr<detail::EngineState> state_;
};

// Describes the accelerators of this machine as JSON: see shard_devices_json.
// Any thread.
inline std::string devices_json() {
  detail::require_library();
  return detail::copied_text(
      [](auto... buffer) { return shard_devices_json(buffer...); });
}

// Returns the learning rate of step `step`, which counts from 1: see
// shard_schedule_lr. Any thread.
inline double schedule_lr(Text schedule, std::int64_t step) {
  detail::require_library();
  double lr = 0;
  detail::check(shard_schedule_lr(schedule.c_str(), step, &lr));
  return lr;
}

}  // namespace shard

#endif  // SHARD_ENGINE_HPP_
