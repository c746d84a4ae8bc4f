// SPDX-License-Identifier: Apache-2.0
//
// State dicts: named tensors and numbers in memory. shard/state.h says what
// each call does.

#ifndef SHARD_STATE_HPP_
#define SHARD_STATE_HPP_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "shard/arguments.hpp"
#include "shard/checkpoint_info.hpp"
#include "shard/checkpoint_options.hpp"
#include "shard/engine.hpp"
#include "shard/state.h"
#include "shard/version.hpp"

namespace shard {

// Receives a tensor, whose bytes are there during the call only; none for an
// alias. Returns true to end the gathering, which is then CANCELLED.
using TakeTensor = Function<bool(std::string_view key, const TensorInfo& info,
                                 std::span<const std::byte> bytes)>;

// The elements of a tensor that this rank holds, from `begin` on.
template <class T>
struct LocalElements {
  std::int64_t begin;
  std::span<const T> elements;
};

// The address of these elements, which may be in the memory of a GPU, and their
// number.
template <class T>
struct LocalPtr {
  std::int64_t begin;
  const T* data;
  std::size_t size;
};

struct Number {
  std::string key;
  double value;
};

// A state dict. Movable; a moved-from one has nothing in it, and is
// INVALID_ARGUMENT where it is filled or read.
class StateDict {
 public:
  // Gets the part of an engine's state that this rank owns. Without
  // StateDictOptions::copy its elements are the engine's memory, valid until
  // the next call that changes the engine; the state dict keeps the engine
  // alive. Local.
  [[nodiscard]] static StateDict get(Engine& engine,
                                     const StateDictOptions& options = {}) {
    detail::EngineState& state = engine.state();
    std::vector<std::int32_t> submodules;
    const shard_state_dict_options c = detail::to_c(options, submodules);
    shard_state_dict* handle = nullptr;
    detail::check(shard_state_dict_get(state.use(), &c, &handle));
    StateDict dict(handle);
    if (!options.copy) dict.engine_ = engine.state_;
    return dict;
  }

  // Calls `take` with every tensor, whole, on one rank or on all; elsewhere it
  // may be empty. What it throws, this call throws on its rank, and CANCELLED
  // on the others. COLLECTIVE, blocks.
  static void gather(Engine& engine, std::int32_t rank, const TakeTensor& take,
                     const StateDictOptions& options = {}) {
    detail::EngineState& state = engine.state();
    std::vector<std::int32_t> submodules;
    const shard_state_dict_options c = detail::to_c(options, submodules);
    TakeCall call{take, state.comm.get(), nullptr};
    shard_error* error = shard_state_dict_gather(
        state.use(), &c, rank, take ? &TakeCall::call : nullptr, &call);
    detail::check(error, call.thrown);
  }

  // ---- Read. Any thread -----------------------------------------------------

  std::int64_t num_tensors() const noexcept {
    return shard_state_dict_num_tensors(get());
  }
  TensorInfo tensor(std::int64_t tensor) const {
    shard_tensor_info info = SHARD_TENSOR_INFO_INIT;
    detail::check(shard_state_dict_tensor(get(), tensor, &info));
    return detail::from_c(info);
  }
  std::string tensor_key(std::int64_t tensor) const {
    return detail::copied_text([&](auto... buffer) {
      return shard_state_dict_tensor_key(get(), tensor, buffer...);
    });
  }
  // Returns where the elements lie that this rank holds.
  DeviceId device(std::int64_t tensor) const {
    DeviceId id;
    shard_device_kind kind = 0;
    detail::check(shard_state_dict_device(get(), tensor, &kind, &id.ordinal));
    id.kind = static_cast<DeviceKind>(kind);
    return id;
  }
  std::int64_t find(Text key) const {
    std::int64_t tensor = 0;
    detail::check(shard_state_dict_find(get(), key.c_str(), &tensor));
    return tensor;
  }
  // Returns the elements that this rank holds. T is the type that they are
  // stored in, or std::byte. FAILED_PRECONDITION where they are in the memory
  // of a GPU: without StateDictOptions::copy, all but buffers of the model and
  // states that the engine's device offloads.
  template <class T>
  LocalElements<T> local(std::int64_t tensor) const SHARD_LIFETIMEBOUND {
    const TensorInfo info = this->tensor(tensor);
    const LocalElements<T> found = find_local<T>(tensor, info);
    if (engine_ != nullptr && device(tensor).kind != DeviceKind::cpu) {
      engine_->refuse_device("tensor '" + tensor_key(tensor) + "'",
                             "get the state dict with copy, or take the "
                             "address by local_ptr()");
    }
    return found;
  }
  // Returns the address of these elements in the memory that they are in.
  template <class T>
  LocalPtr<T> local_ptr(std::int64_t tensor) const SHARD_LIFETIMEBOUND {
    const LocalElements<T> found = find_local<T>(tensor, this->tensor(tensor));
    return {found.begin, found.elements.data(), found.elements.size()};
  }

  std::int64_t num_numbers() const noexcept {
    return shard_state_dict_num_numbers(get());
  }
  // Returns a number with its key, by ascending key.
  Number number(std::int64_t number) const {
    double value = 0;
    std::string key = detail::copied_text([&](auto... buffer) {
      return shard_state_dict_number(get(), number, &value, buffer...);
    });
    return {std::move(key), value};
  }

  // ---- Fill and load --------------------------------------------------------

  [[nodiscard]] static StateDict create() {
    detail::require_library();
    shard_state_dict* handle = nullptr;
    detail::check(shard_state_dict_create(&handle));
    return StateDict(handle);
  }

  // Adds a whole tensor. A span, because its elements stay the host's, and must
  // stay where they are until the state dict was loaded or destroyed.
  template <class T>
  void add(Text key, const Shape& shape, std::span<T> elements) {
    add(key, dtype_of<T>, shape, std::as_bytes(elements));
  }
  void add(Text key, DType dtype, const Shape& shape,
           std::span<const std::byte> bytes) {
    detail::check(shard_state_dict_add(
        get(), key.c_str(), static_cast<shard_dtype>(dtype), shape.data(),
        shape.size(), bytes.data(), bytes.size()));
  }
  void add_number(Text key, double value) {
    detail::check(shard_state_dict_add_number(get(), key.c_str(), value));
  }

  // Loads a state dict that every rank gives. COLLECTIVE, blocks.
  static LoadReport load(Engine& engine, const StateDict& state,
                         const LoadOptions& options = {}) {
    return load(engine, state.get(), false, options);
  }
  // Loads rank 0's state dict; other ranks may give nullptr. COLLECTIVE,
  // blocks.
  static LoadReport load_from_rank0(Engine& engine, const StateDict* state,
                                    const LoadOptions& options = {}) {
    return load(engine, state == nullptr ? nullptr : state->get(), true,
                options);
  }

  // Returns the handle of the C interface, which stays this object's; NULL when
  // moved from.
  shard_state_dict* get() const noexcept { return handle_.get(); }

 private:
  struct TakeCall {
    static std::int32_t call(const char* key, const shard_tensor_info* info,
                             const void* data, void* user_data) noexcept {
      auto& self = *static_cast<TakeCall*>(user_data);
      return detail::guarded(self.handle, self.thrown, std::int32_t{1}, [&] {
        const std::size_t bytes =
            data == nullptr ? 0 : static_cast<std::size_t>(info->bytes);
        return std::int32_t{
            self.take(key, detail::from_c(*info),
                      {static_cast<const std::byte*>(data), bytes})};
      });
    }

    const TakeTensor& take;
    const void* handle;
    std::exception_ptr thrown;
  };

  explicit StateDict(shard_state_dict* handle) noexcept : handle_(handle) {}

  // Returns the elements where they lie, which may be the memory of a GPU.
  template <class T>
  LocalElements<T> find_local(std::int64_t tensor,
                              const TensorInfo& info) const {
    std::int64_t begin = 0;
    std::int64_t numel = 0;
    const void* data = nullptr;
    detail::check(shard_state_dict_local(get(), tensor, &begin, &numel, &data));
    return {begin,
            detail::view<const T>("tensor", tensor, info.dtype, data, numel)};
  }

  static LoadReport load(Engine& engine, const shard_state_dict* state,
                         bool from_rank0, const LoadOptions& options) {
    detail::EngineState& engine_state = engine.state();
    detail::ProgressCall progress{
        options.progress, engine_state.comm.get(), {}};
    std::vector<std::int32_t> submodules;
    const shard_load_options c = detail::to_c(options, submodules, progress);
    LoadReport report = SHARD_LOAD_REPORT_INIT;
    shard_error* error = shard_state_dict_load(engine_state.use(), state, &c,
                                               from_rank0 ? 1 : 0, &report);
    engine_state.check_saves(error, progress.thrown);
    return report;
  }

  // Before the handle, which points into it.
  std::shared_ptr<detail::EngineState> engine_;
  std::unique_ptr<shard_state_dict, detail::Free<shard_state_dict_free>>
      handle_;
};

}  // namespace shard

#endif  // SHARD_STATE_HPP_
