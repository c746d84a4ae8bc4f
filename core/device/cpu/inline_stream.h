// SPDX-License-Identifier: Apache-2.0
//
// InlineStream: a stream that does all work in the caller's thread before the
// call returns. Allocates nothing. Its events are therefore always done, a Wait
// blocks, and the host's next work needs no further ordering.

#ifndef SHARD_CORE_DEVICE_CPU_INLINE_STREAM_H_
#define SHARD_CORE_DEVICE_CPU_INLINE_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/device/stream.h"
#include "kernels/cpu/blas.h"

namespace shard::cpu {

class InlineStream final : public Stream {
 public:
  // `name` must outlive the stream. `blas` is read when it is needed.
  InlineStream(std::string_view name,
               std::shared_ptr<const std::optional<Blas>> blas)
      : name_(name), blas_(std::move(blas)) {}

  std::string_view name() const override { return name_; }
  bool IsInline() const override { return true; }
  void FillZeros(void* to, size_t bytes) override;
  void Copy(void* to, const void* from, size_t bytes) override;
  void Fill(std::vector<MemoryFill> parts) override;
  void Count(uint32_t* count, uint32_t* copy) override;
  void SumGradients(const GradientSources& sources, size_t begin, size_t count,
                    double scale, double clip_value, float* out) override;
  void Widen(DType dtype, const void* from, float* to, size_t count) override;
  void Narrow(DType dtype, const float* from, void* to, size_t count,
              const RandomStream* random) override;
  void EncodeQ8(StateKind kind, const float* from, size_t count,
                const RandomStream* random, uint32_t tensor, uint8_t* codes,
                float* scales) override;
  void SumBlocks(const BlockSum& sum) override;
  void AddToNorm(const UpdateList& list, size_t range, NormPass pass,
                 const StepBlock* block, NormSum* sum) override;
  void FinishNorm(NormPass pass, const NormSum* sums, size_t count,
                  StepBlock* block) override;
  void Update(const UpdateList& list, size_t range, const StepBlocks& step,
              const GradientSources* gradients) override;
  void OnError(std::function<void(const Status&)> handler) override {
    on_error_ = std::move(handler);
  }
  void Call(std::string_view what, std::function<Status()> work) override;
  Event Record() override { return Event(error_); }
  void Wait(const Event& event, const Deadline& deadline) override;
  Status Synchronize(const Deadline&) override { return error_; }
  Status status() const override { return error_; }

 private:
  // Fails the stream where `status` is an error.
  void Take(const Status& status);

  const std::string_view name_;
  const std::shared_ptr<const std::optional<Blas>> blas_;
  std::function<void(const Status&)> on_error_;
  Status error_;
};

}  // namespace shard::cpu

#endif  // SHARD_CORE_DEVICE_CPU_INLINE_STREAM_H_
