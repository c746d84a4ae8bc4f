// SPDX-License-Identifier: Apache-2.0
//
// WorkerStream: a stream with a thread of its own that does the work
// (work_queue.h). Arguments on the caller's stack are copied, so a method costs
// an allocation or two.

#ifndef SHARD_CORE_DEVICE_CPU_WORKER_STREAM_H_
#define SHARD_CORE_DEVICE_CPU_WORKER_STREAM_H_

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
#include "core/device/work_queue/work_queue.h"
#include "kernels/cpu/blas.h"

namespace shard::cpu {

class WorkerStream final : public Stream {
 public:
  // `blas` is read when it is needed.
  WorkerStream(std::unique_ptr<WorkQueue> queue,
               std::shared_ptr<const std::optional<Blas>> blas)
      : blas_(std::move(blas)), queue_(std::move(queue)) {}

  std::string_view name() const override { return queue_->name(); }
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
    queue_->OnError(std::move(handler));
  }
  void Fail(const Status& error) override { queue_->Fail(error); }
  void Call(std::string_view what, std::function<Status()> work) override;
  Event Record() override { return queue_->Record(); }
  void Wait(const Event& event, const Deadline& deadline) override {
    queue_->PushWait(event, deadline);
  }
  Status Synchronize(const Deadline& deadline) override {
    return queue_->Synchronize(deadline);
  }
  Status status() const override { return queue_->status(); }

 private:
  // Pushes work that cannot fail.
  template <typename Kernel>
  void Push(std::string_view what, Kernel kernel);

  const std::shared_ptr<const std::optional<Blas>> blas_;
  // The last member, so that the thread ends before the members that it uses.
  const std::unique_ptr<WorkQueue> queue_;
};

}  // namespace shard::cpu

#endif  // SHARD_CORE_DEVICE_CPU_WORKER_STREAM_H_
