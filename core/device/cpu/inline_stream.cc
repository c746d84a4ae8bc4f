// SPDX-License-Identifier: Apache-2.0

#include "core/device/cpu/inline_stream.h"

#include <cstring>

#include "core/device/cpu/fill.h"
#include "core/device/cpu/norm_pass.h"
#include "core/device/cpu/update.h"
#include "kernels/cpu/block_sum.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/q8.h"

namespace shard::cpu {

void InlineStream::FillZeros(void* to, size_t bytes) {
  if (error_.ok() && bytes > 0) std::memset(to, 0, bytes);
}

void InlineStream::Copy(void* to, const void* from, size_t bytes) {
  if (error_.ok() && bytes > 0) std::memcpy(to, from, bytes);
}

void InlineStream::Fill(std::vector<MemoryFill> parts) {
  if (error_.ok()) cpu::Fill(parts);
}

void InlineStream::Count(uint32_t* count, uint32_t* copy) {
  if (error_.ok()) *copy = ++*count;
}

void InlineStream::SumGradients(const GradientSources& sources, size_t begin,
                                size_t count, double scale, double clip_value,
                                float* out) {
  if (!error_.ok()) return;
  shard::SumGradients(sources, begin, count, scale, clip_value, out);
}

void InlineStream::Widen(DType dtype, const void* from, float* to,
                         size_t count) {
  if (error_.ok()) shard::Widen(dtype, from, to, count);
}

void InlineStream::Narrow(DType dtype, const float* from, void* to,
                          size_t count, const RandomStream* random) {
  if (error_.ok()) shard::Narrow(dtype, from, to, count, random);
}

void InlineStream::EncodeQ8(StateKind kind, const float* from, size_t count,
                            const RandomStream* random, uint32_t tensor,
                            uint8_t* codes, float* scales) {
  if (!error_.ok()) return;
  shard::EncodeQ8(kind, from, count, random, tensor, codes, scales);
}

void InlineStream::SumBlocks(const BlockSum& sum) {
  if (error_.ok()) shard::SumBlocks(sum);
}

void InlineStream::AddToNorm(const UpdateList& list, size_t range,
                             NormPass pass, const StepBlock* block,
                             NormSum* sum) {
  if (error_.ok()) cpu::AddToNorm(list, range, pass, *block, sum);
}

void InlineStream::FinishNorm(NormPass pass, const NormSum* sums, size_t count,
                              StepBlock* block) {
  if (error_.ok()) cpu::FinishNorm(pass, sums, count, block);
}

void InlineStream::Update(const UpdateList& list, size_t range,
                          const StepBlocks& step,
                          const GradientSources* gradients) {
  if (!error_.ok()) return;
  cpu::Update(list, range, *step.kernels, gradients,
              blas_->has_value() ? &**blas_ : nullptr);
}

void InlineStream::Call(std::string_view, std::function<Status()> work) {
  if (error_.ok()) Take(work());
}

void InlineStream::Wait(const Event& event, const Deadline& deadline) {
  if (error_.ok()) Take(event.Synchronize(EndOfWait(deadline)));
}

void InlineStream::Take(const Status& status) {
  if (status.ok()) return;
  error_ = status;
  if (on_error_) on_error_(error_);
}

}  // namespace shard::cpu
