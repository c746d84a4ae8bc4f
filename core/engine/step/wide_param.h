// SPDX-License-Identifier: Apache-2.0
//
// WideParam: a whole parameter in fp32 while an optimizer steps it: the master
// copy, the parameter itself where its dtype is fp32, or else a temporary copy.

#ifndef SHARD_CORE_ENGINE_STEP_WIDE_PARAM_H_
#define SHARD_CORE_ENGINE_STEP_WIDE_PARAM_H_

#include <cstdint>

#include "core/base/dtype.h"
#include "core/device/stream.h"
#include "core/engine/step/owned_range.h"
#include "core/engine/step/update.h"
#include "kernels/cpu/random.h"

namespace shard {

class WideParam {
 public:
  // `copy`: room for the parameter's elements, written only where the parameter
  // has no fp32 form of its own.
  WideParam(const OwnedRange& range, const RangeSlice& slice, float* copy,
            Stream* stream)
      : range_(range), slice_(slice), wide_(range.master(slice.begin)) {
    if (wide_ != nullptr) return;
    if (dtype() == DType::kF32) {
      wide_ = static_cast<float*>(range.param(slice.begin));
      return;
    }
    wide_ = copy;
    stream->Widen(dtype(), range.param(slice.begin), wide_, slice.count);
  }

  float* data() const { return wide_; }

  // Rounds data() to the parameter's dtype and stores it in the parameter.
  void Publish(const UpdateInput& input, Stream* stream) const {
    if (dtype() == DType::kF32) return;
    const RandomStream random = {input.seed, static_cast<uint32_t>(input.step),
                                 slice_.position, slice_.param_begin};
    stream->Narrow(
        dtype(), wide_, range_.param(slice_.begin), slice_.count,
        input.masters == Masters::kNoneStochastic ? &random : nullptr);
  }

  // Returns the bytes that widening, stepping and publishing the parameter move
  // besides those of the update in fp32.
  uint64_t extra_bytes() const {
    if (dtype() == DType::kF32) return 0;
    const bool copied = range_.master(slice_.begin) == nullptr;
    return slice_.count * (DTypeSize(dtype()) + sizeof(float)) *
           (copied ? 2 : 1);
  }

 private:
  DType dtype() const { return range_.plan().dtype; }

  const OwnedRange& range_;
  const RangeSlice& slice_;
  float* wide_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_WIDE_PARAM_H_
