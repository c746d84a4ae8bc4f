// SPDX-License-Identifier: Apache-2.0

#include "core/device/cpu/worker_stream.h"

#include <cstring>
#include <utility>
#include <vector>

#include "core/device/cpu/fill.h"
#include "core/device/cpu/norm_pass.h"
#include "core/device/cpu/update.h"
#include "kernels/cpu/block_sum.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/q8.h"

namespace shard::cpu {

namespace {

// Copies of arguments on the caller's stack, for work that runs after the call
// has returned.

class SourcesCopy {
 public:
  explicit SourcesCopy(const GradientSources& sources)
      : data_(sources.data, sources.data + sources.count),
        dtype_(sources.dtype) {}
  GradientSources get() const { return {data_.data(), data_.size(), dtype_}; }

 private:
  std::vector<const void*> data_;
  DType dtype_;
};

class RandomCopy {
 public:
  explicit RandomCopy(const RandomStream* random) {
    if (random != nullptr) random_ = *random;
  }
  const RandomStream* get() const { return random_ ? &*random_ : nullptr; }

 private:
  std::optional<RandomStream> random_;
};

}  // namespace

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

void WorkerStream::Fill(std::vector<MemoryFill> parts) {
  if (parts.empty()) return;
  Push("Fill", [parts = std::move(parts)] { cpu::Fill(parts); });
}

void WorkerStream::Count(uint32_t* count, uint32_t* copy) {
  Push("Count", [=] { *copy = ++*count; });
}

void WorkerStream::SumGradients(const GradientSources& sources, size_t begin,
                                size_t count, double scale, double clip_value,
                                float* out) {
  Push("SumGradients", [=, own = SourcesCopy(sources)] {
    shard::SumGradients(own.get(), begin, count, scale, clip_value, out);
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

void WorkerStream::SumBlocks(const BlockSum& sum) {
  Push("SumBlocks", [sum] { shard::SumBlocks(sum); });
}

void WorkerStream::AddToNorm(const UpdateList& list, size_t range,
                             NormPass pass, const StepBlock* block,
                             NormSum* sum) {
  Push("AddToNorm",
       [=, list = &list] { cpu::AddToNorm(*list, range, pass, *block, sum); });
}

void WorkerStream::FinishNorm(NormPass pass, const NormSum* sums, size_t count,
                              StepBlock* block) {
  Push("FinishNorm", [=] { cpu::FinishNorm(pass, sums, count, block); });
}

void WorkerStream::Update(const UpdateList& list, size_t range,
                          const StepBlocks& step,
                          const GradientSources* gradients) {
  std::optional<SourcesCopy> own;
  if (gradients != nullptr) own.emplace(*gradients);
  Push("Update", [=, list = &list, block = step.kernels, own = std::move(own),
                  blas = blas_.get()] {
    const GradientSources given = own ? own->get() : GradientSources();
    cpu::Update(*list, range, *block, own ? &given : nullptr,
                blas->has_value() ? &**blas : nullptr);
  });
}

void WorkerStream::Call(std::string_view what, std::function<Status()> work) {
  queue_->Push(what, std::move(work));
}

}  // namespace shard::cpu
