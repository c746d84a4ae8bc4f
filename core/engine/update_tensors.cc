// SPDX-License-Identifier: Apache-2.0

#include <array>

#include "core/base/dtype.h"
#include "core/engine/update.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/tensor_step.h"

namespace shard {

namespace {

// A parameter in fp32 while it is stepped: its master copy, itself when it is
// fp32, or else a copy that `Publish` rounds.
class WideParam {
 public:
  // `copy`: room for the parameter's elements, used where it has no fp32 form.
  WideParam(const Range& range, const RangeSlice& slice, float* copy)
      : dtype_(range.plan().dtype),
        count_(slice.count),
        param_(range.param(slice.begin)),
        wide_(range.master(slice.begin)) {
    if (wide_ != nullptr) return;
    if (dtype_ == DType::kF32) {
      wide_ = static_cast<float*>(param_);
      return;
    }
    wide_ = copy;
    Widen(dtype_, param_, wide_, count_);
  }

  float* data() const { return wide_; }

  void Publish(const RandomStream* random) const {
    if (dtype_ != DType::kF32) Narrow(dtype_, wide_, param_, count_, random);
  }

 private:
  DType dtype_;
  size_t count_;
  void* param_;
  float* wide_;
};

}  // namespace

uint64_t UpdateTensors(const Range& range, const Optimizer& optimizer,
                       const UpdateInput& input, float* workspace) {
  const FlatBufferPlan& plan = range.plan();
  const GradientSources gradients = range.gradients(input.reduced);
  std::array<float*, kMaxStates> states = {};
  uint64_t bytes = 0;
  for (const RangeSlice& slice : range.slices()) {
    float* const grad = workspace;
    float* const copy = grad + slice.count;
    const bool copied = plan.dtype != DType::kF32 && !plan.has_masters;
    SumGradients(gradients, slice.begin, slice.count, input.scale,
                 input.clip_value, grad);
    const WideParam param(range, slice, copy);
    for (size_t s = 0; s < range.num_states(); ++s) {
      states[s] = static_cast<float*>(range.state(s, slice.state_begins[s]));
    }
    TensorStepArgs args;
    args.grad = grad;
    args.param = param.data();
    args.states = states.data();
    args.shape = slice.shape->data();
    args.ndim = static_cast<int>(slice.shape->size());
    args.scratch = copied ? copy + slice.count : copy;
    TensorStep(optimizer.formula(), optimizer.hypers().data(), input.step,
               args);
    const RandomStream random = {input.seed, static_cast<uint32_t>(input.step),
                                 slice.position, slice.param_begin};
    param.Publish(input.masters == Masters::kNoneStochastic ? &random
                                                            : nullptr);
    bytes += slice.count;
  }
  return bytes;
}

}  // namespace shard
