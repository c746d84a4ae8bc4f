// SPDX-License-Identifier: Apache-2.0

#include "core/device/cpu/worker_stream.h"

#include <cstring>

#include "core/device/cpu/arguments.h"
#include "core/device/cpu/gradient_norm.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/muon_step.h"
#include "kernels/cpu/q8.h"

namespace shard::cpu {

template <typename Kernel>
void WorkerStream::Push(std::string_view what, Kernel kernel) {
  queue_->Push(what, [kernel = std::move(kernel)] {
    kernel();
    return Status();
  });
}

void WorkerStream::FillZeros(void* to, size_t bytes) {
  if (bytes == 0) return;
  Push("FillZeros", [=] { std::memset(to, 0, bytes); });
}

void WorkerStream::Copy(void* to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  Push("Copy", [=] { std::memcpy(to, from, bytes); });
}

void WorkerStream::FusedStep(Formula formula, const double* hypers,
                             int64_t step, const FusedStepArgs& args) {
  Push("FusedStep", [formula, own_hypers = HypersCopy(formula, hypers), step,
                     own = FusedStepCopy(formula, args)] {
    shard::FusedStep(formula, own_hypers.get(), step, own.get());
  });
}

void WorkerStream::SumGradients(const GradientSources& sources, size_t begin,
                                size_t count, double scale, double clip_value,
                                float* out) {
  Push("SumGradients", [=, own = SourcesCopy(sources)] {
    shard::SumGradients(own.get(), begin, count, scale, clip_value, out);
  });
}

void WorkerStream::AddToNorm(NormType type, double p, double reference,
                             const float* values, size_t count, NormSum* sum) {
  Push("AddToNorm",
       [=] { shard::AddToNorm(type, p, reference, values, count, sum); });
}

void WorkerStream::AddGradientsToNorm(NormType type, double p, double reference,
                                      const GradientSources& sources,
                                      size_t begin, size_t count, float* out,
                                      NormSum* sum) {
  Push("AddGradientsToNorm", [=, own = SourcesCopy(sources)] {
    cpu::AddGradientsToNorm(type, p, reference, own.get(), begin, count, out,
                            sum);
  });
}

void WorkerStream::Widen(DType dtype, const void* from, float* to,
                         size_t count) {
  Push("Widen", [=] { shard::Widen(dtype, from, to, count); });
}

void WorkerStream::Narrow(DType dtype, const float* from, void* to,
                          size_t count, const RandomStream* random) {
  Push("Narrow", [=, own = RandomCopy(random)] {
    shard::Narrow(dtype, from, to, count, own.get());
  });
}

void WorkerStream::EncodeQ8(StateKind kind, const float* from, size_t count,
                            const RandomStream* random, uint32_t tensor,
                            uint8_t* codes, float* scales) {
  Push("EncodeQ8", [=, own = RandomCopy(random)] {
    shard::EncodeQ8(kind, from, count, own.get(), tensor, codes, scales);
  });
}

void WorkerStream::TensorStep(Formula formula, const double* hypers,
                              int64_t step, const TensorStepArgs& args) {
  Push("TensorStep", [formula, own_hypers = HypersCopy(formula, hypers), step,
                      own = TensorStepCopy(formula, args)] {
    shard::TensorStep(formula, own_hypers.get(), step, own.get());
  });
}

void WorkerStream::MuonMomentum(const double* hypers, float* gradient,
                                float* momentum_buffer, size_t count) {
  Push("MuonMomentum", [=, own = HypersCopy(Formula::kMuon, hypers)] {
    shard::MuonMomentum(own.get(), gradient, momentum_buffer, count);
  });
}

void WorkerStream::Orthogonalize(const MatrixBatch& batch, int steps,
                                 double eps, float* workspace) {
  Push("Orthogonalize", [=, blas = blas_.get()] {
    shard::Orthogonalize(**blas, batch, steps, eps, workspace);
  });
}

void WorkerStream::MuonApply(const double* hypers, int64_t rows, int64_t cols,
                             const float* direction, float* param,
                             size_t count) {
  Push("MuonApply", [=, own = HypersCopy(Formula::kMuon, hypers)] {
    shard::MuonApply(own.get(), rows, cols, direction, param, count);
  });
}

void WorkerStream::Call(std::string_view what, std::function<Status()> work) {
  queue_->Push(what, std::move(work));
}

}  // namespace shard::cpu
