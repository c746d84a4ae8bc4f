// SPDX-License-Identifier: Apache-2.0

#include "core/device/cpu/inline_stream.h"

#include <cstring>

#include "core/device/cpu/gradient_norm.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/muon_step.h"
#include "kernels/cpu/q8.h"

namespace shard::cpu {

void InlineStream::FillZeros(void* to, size_t bytes) {
  if (error_.ok() && bytes > 0) std::memset(to, 0, bytes);
}

void InlineStream::Copy(void* to, const void* from, size_t bytes) {
  if (error_.ok() && bytes > 0) std::memcpy(to, from, bytes);
}

void InlineStream::FusedStep(Formula formula, const double* hypers,
                             int64_t step, const FusedStepArgs& args) {
  if (error_.ok()) shard::FusedStep(formula, hypers, step, args);
}

void InlineStream::SumGradients(const GradientSources& sources, size_t begin,
                                size_t count, double scale, double clip_value,
                                float* out) {
  if (!error_.ok()) return;
  shard::SumGradients(sources, begin, count, scale, clip_value, out);
}

void InlineStream::AddToNorm(NormType type, double p, double reference,
                             const float* values, size_t count, NormSum* sum) {
  if (!error_.ok()) return;
  shard::AddToNorm(type, p, reference, values, count, sum);
}

void InlineStream::AddGradientsToNorm(NormType type, double p, double reference,
                                      const GradientSources& sources,
                                      size_t begin, size_t count, float* out,
                                      NormSum* sum) {
  if (!error_.ok()) return;
  cpu::AddGradientsToNorm(type, p, reference, sources, begin, count, out, sum);
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

void InlineStream::TensorStep(Formula formula, const double* hypers,
                              int64_t step, const TensorStepArgs& args) {
  if (error_.ok()) shard::TensorStep(formula, hypers, step, args);
}

void InlineStream::MuonMomentum(const double* hypers, float* gradient,
                                float* momentum_buffer, size_t count) {
  if (!error_.ok()) return;
  shard::MuonMomentum(hypers, gradient, momentum_buffer, count);
}

void InlineStream::Orthogonalize(const MatrixBatch& batch, int steps,
                                 double eps, float* workspace) {
  if (error_.ok()) shard::Orthogonalize(**blas_, batch, steps, eps, workspace);
}

void InlineStream::MuonApply(const double* hypers, int64_t rows, int64_t cols,
                             const float* direction, float* param,
                             size_t count) {
  if (!error_.ok()) return;
  shard::MuonApply(hypers, rows, cols, direction, param, count);
}

void InlineStream::Call(std::string_view, std::function<Status()> work) {
  if (error_.ok()) error_ = work();
}

void InlineStream::Wait(const Event& event, const Deadline& deadline) {
  if (error_.ok()) error_ = event.Synchronize(deadline);
}

}  // namespace shard::cpu
