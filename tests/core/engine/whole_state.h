// SPDX-License-Identifier: Apache-2.0
//
// The whole training state of a world whose ranks are threads: every parameter
// and every optimizer state as bytes, assembled from the parts that each rank
// owns. It is read from the engines' memory by the layouts of their plans, and
// not by the code that saves and loads.

#ifndef SHARD_TESTS_CORE_ENGINE_WHOLE_STATE_H_
#define SHARD_TESTS_CORE_ENGINE_WHOLE_STATE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/strings.h"
#include "core/engine/engine.h"
#include "core/flat/plan.h"
#include "tests/core/device/guard_memory.h"

namespace shard {

class WholeState {
 public:
  // Adds the parts that this rank owns. Thread-safe.
  void Add(const Engine& engine) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Plan& plan = engine.plan();
    const int range = plan.RangeOf(engine.comm()->rank());
    for (const EngineBuffer& buffer : engine.memory().buffers()) {
      const FlatLayout& layout = buffer.plan->layout;
      for (const SlotSlice& slice : layout.SlicesOf(range)) {
        Put(plan, slice, "param", buffer.plan->dtype,
            buffer.ParamAt(slice.flat_begin));
      }
      for (size_t s = 0; s < buffer.states.size(); ++s) {
        AddState(plan, buffer, s, range);
      }
    }
  }

  // By "parameter's id/param" or "parameter's id/state's name".
  const std::map<std::string, std::vector<unsigned char>>& tensors() const {
    return tensors_;
  }

  bool operator==(const WholeState& other) const {
    return tensors_ == other.tensors_;
  }

  // Returns the names of the tensors that differ.
  std::string Differences(const WholeState& other) const {
    std::string text;
    for (const auto& [name, bytes] : tensors_) {
      const auto found = other.tensors_.find(name);
      if (found == other.tensors_.end() || found->second != bytes) {
        StrAppend(&text, name, " ");
      }
    }
    for (const auto& [name, bytes] : other.tensors_) {
      if (tensors_.count(name) == 0) StrAppend(&text, "+", name, " ");
    }
    return text;
  }

 private:
  void AddState(const Plan& plan, const EngineBuffer& buffer, size_t s,
                int range) {
    const StateTensor& tensor = buffer.plan->states[s].tensor;
    const FlatLayout& layout = buffer.plan->StateLayout(s);
    const int64_t begin = range * layout.shard_numel();
    for (const SlotSlice& slice : layout.SlicesOf(range)) {
      const int64_t at = slice.flat_begin - begin;
      Put(plan, slice, tensor.name, tensor.dtype,
          buffer.states[s] + static_cast<size_t>(at) * DTypeSize(tensor.dtype));
      if (tensor.dtype != DType::kQ8) continue;
      SlotSlice scales = slice;
      scales.param_begin /= kQ8Block;
      scales.numel = (slice.numel + kQ8Block - 1) / kQ8Block;
      Put(plan, scales, tensor.name + " scales", DType::kF32,
          buffer.states[s] + layout.shard_numel() +
              static_cast<size_t>(at / kQ8Block) * sizeof(float));
    }
  }

  void Put(const Plan& plan, const SlotSlice& slice, const std::string& what,
           DType dtype, const void* data) {
    const size_t size = DTypeSize(dtype);
    // Parameters are named by position, because another plan may have other
    // ids.
    auto& bytes = tensors_[StrCat(plan.place(slice.param).position, "/", what)];
    const auto end =
        static_cast<size_t>(slice.param_begin + slice.numel) * size;
    if (bytes.size() < end) bytes.resize(end);
    std::memcpy(bytes.data() + static_cast<size_t>(slice.param_begin) * size,
                testing::KernelView(data),
                static_cast<size_t>(slice.numel) * size);
  }

  std::mutex mutex_;
  std::map<std::string, std::vector<unsigned char>> tensors_;
};

}  // namespace shard

#endif  // SHARD_TESTS_CORE_ENGINE_WHOLE_STATE_H_
