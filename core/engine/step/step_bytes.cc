// SPDX-License-Identifier: Apache-2.0

#include "core/engine/step/step_bytes.h"

#include <cstddef>
#include <span>

#include "kernels/cpu/tensor_step.h"

namespace shard {

namespace {

// Returns the bytes per element of an element formula, scales left out.
uint64_t ElementBytes(const UpdateRange& range, size_t num_sources,
                      DType grad_dtype) {
  const size_t param = DTypeSize(range.param_dtype);
  // A parameter with a master copy is only written.
  return num_sources * DTypeSize(grad_dtype) +
         (range.master != nullptr ? param + 2 * sizeof(float) : 2 * param) +
         range.num_states * 2 * DTypeSize(range.state_dtype);
}

// Returns the bytes per element that widening and publishing a whole parameter
// move besides those of the update in fp32.
uint64_t WideBytes(const UpdateRange& range) {
  if (range.param_dtype == DType::kF32) return 0;
  const bool copied = range.master == nullptr;
  return (DTypeSize(range.param_dtype) + sizeof(float)) * (copied ? 2 : 1);
}

// Returns the bytes of an update in fp32.
uint64_t TensorBytes(const UpdateRange& range, const UpdateSlice& slice,
                     std::span<const int64_t> shape) {
  // Muon: gradients and momentum (16), the update (12).
  if (range.formula == Formula::kMuon) return slice.count * (16 + 12);
  return TensorStepBytes(range.formula, shape.data(),
                         static_cast<int>(shape.size()));
}

}  // namespace

uint64_t NormBytes(const UpdateList& list, const UpdateRange& range,
                   NormPass pass) {
  const bool second = pass == NormPass::kSecond;
  const GradientSources from = list.GradientsOf(range, second);
  const bool stores = range.keeps_sum && from.count != 1;
  return range.count *
         (from.count * DTypeSize(from.dtype) + (stores ? sizeof(float) : 0));
}

uint64_t UpdateBytes(const UpdateList& list, const UpdateRange& range,
                     const StepBlock& block, const GradientSources& gradients,
                     DType grad_dtype) {
  if (!range.is_tensor) {
    uint64_t elements = 0;
    ForEachRun(list, range, block,
               [&](size_t, size_t count, uint32_t, const UpdateSlice&) {
                 elements += count;
               });
    return elements * ElementBytes(range, gradients.count, grad_dtype);
  }
  const std::span<const UpdateSlice> slices = list.SlicesOf(range);
  uint64_t bytes = 0;
  for (size_t i = 0; i < slices.size(); ++i) {
    const UpdateSlice& slice = slices[i];
    if (block.RowOf(range.group, slice.position) == kNotStepped) continue;
    // The sum of the gradients is made first.
    bytes += slice.count * (gradients.count * DTypeSize(gradients.dtype) +
                            sizeof(float) + WideBytes(range)) +
             TensorBytes(range, slice,
                         list.ShapeOf(list.tensors[range.first_tensor + i]));
  }
  return bytes;
}

}  // namespace shard
