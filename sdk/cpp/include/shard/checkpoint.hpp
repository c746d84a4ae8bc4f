// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints: saved and loaded by engines, and read without one.
// shard/checkpoint.h says what each call does.

#ifndef SHARD_CHECKPOINT_HPP_
#define SHARD_CHECKPOINT_HPP_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "shard/arguments.hpp"
#include "shard/checkpoint.h"
#include "shard/checkpoint_info.hpp"
#include "shard/checkpoint_options.hpp"
#include "shard/engine.hpp"
#include "shard/version.hpp"

namespace shard {

// A save in the background: Checkpoint::save_async. The save goes on without
// this object, and without the engine's. Movable.
class Save {
 public:
  Save(Save&&) noexcept = default;
  Save& operator=(Save&&) noexcept = default;

  // Returns true once the save has ended, well or not. Any thread.
  bool done() const noexcept { return shard_save_done(get()) != 0; }

  // Waits for the save, and throws its error, or what its progress function
  // threw, in every call. DEADLINE_EXCEEDED when the save still goes on after
  // `timeout` seconds. Any thread, blocks.
  void wait(double timeout = 0) {
    if (state_ != nullptr) {
      detail::CallbackScope::refuse(state_->progress.handle,
                                    "engine whose save this is");
    }
    shard_error* error = shard_save_wait(get(), timeout);
    // While the save goes on, what its callback threw is its own.
    const bool failed = error != nullptr && state_ != nullptr && done();
    if (failed) state_->reported = true;
    detail::check(error, failed ? state_->progress.thrown : nullptr);
  }

  // Returns the handle of the C interface, which stays this object's; NULL when
  // moved from.
  shard_save* get() const noexcept {
    return state_ == nullptr ? nullptr : state_->handle.get();
  }

 private:
  friend class Checkpoint;

  explicit Save(std::shared_ptr<detail::SaveState> state) noexcept
      : state_(std::move(state)) {}

  std::shared_ptr<detail::SaveState> state_;
};

// A checkpoint, a safetensors file, or the several of an index, to read. Calls
// are local. Immutable: any thread. Movable; a moved-from one is
// INVALID_ARGUMENT in every call. Names that are string_views live as long as
// this object, end in a NUL, and are the bytes of the file.
class Checkpoint {
 public:
  // ---- Of an engine ---------------------------------------------------------

  // Saves the training state as `root`/step-NNNNNN, and returns when that is
  // durable. COLLECTIVE, blocks.
  static void save(Engine& engine, Text root, const SaveOptions& options = {}) {
    detail::EngineState& state = engine.state();
    detail::ProgressCall progress{options.progress, state.comm.get(), {}};
    std::vector<std::int32_t> submodules;
    const shard_save_options c = detail::to_c(options, submodules, progress);
    shard_error* error =
        shard_checkpoint_save(state.use(), root.c_str(), &c, nullptr);
    state.check_saves(error, progress.thrown);
  }

  // Copies the training state, and saves it in the background. COLLECTIVE,
  // blocks while it copies.
  [[nodiscard]] static Save save_async(Engine& engine, Text root,
                                       const SaveOptions& options = {}) {
    detail::EngineState& state = engine.state();
    auto save = std::make_shared<detail::SaveState>();
    save->progress.progress = options.progress;
    save->progress.handle = state.comm.get();
    std::vector<std::int32_t> submodules;
    const shard_save_options c =
        detail::to_c(options, submodules, save->progress);
    state.saves.reserve(state.saves.size() + 1);
    shard_save* handle = nullptr;
    shard_error* error =
        shard_checkpoint_save(state.use(), root.c_str(), &c, &handle);
    save->handle.reset(handle);
    state.check_saves(error, nullptr);
    state.saves.push_back(save);
    return Save(std::move(save));
  }

  // Loads what save() wrote, at whatever world size, or safetensors.
  // COLLECTIVE, blocks.
  static LoadReport load(Engine& engine, Text path,
                         const LoadOptions& options = {}) {
    detail::EngineState& state = engine.state();
    detail::ProgressCall progress{options.progress, state.comm.get(), {}};
    std::vector<std::int32_t> submodules;
    const shard_load_options c = detail::to_c(options, submodules, progress);
    LoadReport report = SHARD_LOAD_REPORT_INIT;
    shard_error* error =
        shard_checkpoint_load(state.use(), path.c_str(), &c, &report);
    state.check_saves(error, progress.thrown);
    return report;
  }

  // ---- Without an engine ----------------------------------------------------

  [[nodiscard]] static Checkpoint open(Text path) {
    detail::require_library();
    shard_checkpoint* handle = nullptr;
    detail::check(shard_checkpoint_open(path.c_str(), &handle));
    return Checkpoint(handle);
  }

  CheckpointInfo info() const {
    CheckpointInfo info = SHARD_CHECKPOINT_INFO_INIT;
    detail::check(shard_checkpoint_get_info(get(), &info));
    return info;
  }
  std::string_view path() const SHARD_LIFETIMEBOUND {
    const char* path = nullptr;
    detail::check(shard_checkpoint_path(get(), &path));
    return path;
  }

  // Tensors are numbered from 0 to info().num_tensors.
  TensorInfo tensor(std::int64_t tensor) const {
    shard_tensor_info info = SHARD_TENSOR_INFO_INIT;
    detail::check(shard_checkpoint_tensor(get(), tensor, &info));
    return detail::from_c(info);
  }
  std::string_view tensor_key(std::int64_t tensor) const SHARD_LIFETIMEBOUND {
    const char* key = nullptr;
    detail::check(shard_checkpoint_tensor_key(get(), tensor, &key));
    return key;
  }
  // Returns the name of the element type; of an opaque one, that in the file.
  std::string_view tensor_type(std::int64_t tensor) const SHARD_LIFETIMEBOUND {
    const char* type = nullptr;
    detail::check(shard_checkpoint_tensor_type(get(), tensor, &type));
    return type;
  }
  std::int64_t find(Text key) const {
    std::int64_t tensor = 0;
    detail::check(shard_checkpoint_find(get(), key.c_str(), &tensor));
    return tensor;
  }
  TensorSlice slice(std::int64_t tensor, std::int32_t index) const {
    TensorSlice slice = SHARD_TENSOR_SLICE_INIT;
    detail::check(shard_checkpoint_slice(get(), tensor, index, &slice));
    return slice;
  }

  // Reads elements of a tensor from `begin` on into all of `elements`. T is the
  // type that they are stored in, or std::byte. Of an opaque type, `begin`
  // counts bytes. Blocks.
  template <class T>
  void read(std::int64_t tensor, std::int64_t begin,
            std::span<T> elements) const {
    static_assert(!std::is_const_v<T>, "read() writes to the elements");
    const TensorInfo info = this->tensor(tensor);
    detail::require_dtype<T>("tensor", tensor, info.dtype);
    const std::size_t size = dtype_size(info.dtype);
    detail::check(shard_checkpoint_read(
        get(), tensor, begin,
        static_cast<std::int64_t>(elements.size_bytes() / (size + (size == 0))),
        elements.data(), elements.size_bytes()));
  }
  // Reads a whole tensor.
  template <class T>
  std::vector<T> read(std::int64_t tensor) const {
    static_assert(!std::is_same_v<T, bool>,
                  "a vector<bool> has no elements to read into; use std::byte");
    const TensorInfo info = this->tensor(tensor);
    // Before memory is taken for elements of another type.
    detail::require_dtype<T>("tensor", tensor, info.dtype);
    std::vector<T> elements(static_cast<std::size_t>(info.bytes / sizeof(T)));
    read(tensor, 0, std::span<T>(elements));
    return elements;
  }

  FileInfo file(std::int32_t file) const SHARD_LIFETIMEBOUND {
    const char* name = nullptr;
    std::uint64_t bytes = 0;
    detail::check(shard_checkpoint_file(get(), file, &name, &bytes));
    return {.name = name, .bytes = bytes};
  }
  // Returns the optimizer of a param group with all values.
  std::string_view group(std::int32_t group) const SHARD_LIFETIMEBOUND {
    const char* optimizer = nullptr;
    detail::check(shard_checkpoint_group(get(), group, &optimizer));
    return optimizer;
  }
  Scalar scalar(std::int32_t scalar) const SHARD_LIFETIMEBOUND {
    const char* name = nullptr;
    double value = 0;
    detail::check(shard_checkpoint_scalar(get(), scalar, &name, &value));
    return {.name = name, .value = value};
  }
  BlobInfo blob_info(std::int32_t blob) const SHARD_LIFETIMEBOUND {
    const char* name = nullptr;
    shard_blob_rule rule = 0;
    std::int32_t rank = 0;
    detail::check(shard_checkpoint_blob_info(get(), blob, &name, &rule, &rank));
    return {.name = name, .rule = BlobRule{rule}, .rank = rank};
  }
  std::vector<std::byte> blob(std::int32_t blob) const {
    return detail::copied_bytes([&](auto... buffer) {
      return shard_checkpoint_blob(get(), blob, buffer...);
    });
  }

  // Reads everything and compares it with its checksums. The detail of CORRUPT
  // lists all problems. Blocks.
  void verify(const VerifyOptions& options = {}) const {
    detail::ProgressCall call{options.progress, get(), {}};
    const shard_verify_options c = detail::to_c(options, call);
    shard_error* error = shard_checkpoint_verify(get(), &c);
    detail::check(error, call.thrown);
  }

  // Writes a checkpoint into `root`: with another number of files, with other
  // types, or from safetensors. Blocks.
  void convert(Text root, const ConvertOptions& options = {}) const {
    detail::ProgressCall call{options.progress, get(), {}};
    const shard_convert_options c = detail::to_c(options, call);
    shard_error* error = shard_checkpoint_convert(get(), root.c_str(), &c);
    detail::check(error, call.thrown);
  }

  // Writes a safetensors file: shard_checkpoint_export, whose name is a word of
  // C++. Blocks.
  void export_to(Text path, const ConvertOptions& options = {}) const {
    detail::ProgressCall call{options.progress, get(), {}};
    const shard_convert_options c = detail::to_c(options, call);
    shard_error* error = shard_checkpoint_export(get(), path.c_str(), &c);
    detail::check(error, call.thrown);
  }

  // Returns the handle of the C interface, which stays this object's; NULL when
  // moved from.
  const shard_checkpoint* get() const noexcept { return handle_.get(); }

 private:
  explicit Checkpoint(shard_checkpoint* handle) noexcept : handle_(handle) {}

  std::unique_ptr<shard_checkpoint, detail::Free<shard_checkpoint_free>>
      handle_;
};

}  // namespace shard

#endif  // SHARD_CHECKPOINT_HPP_
