// SPDX-License-Identifier: Apache-2.0
//
// CudaStream: a stream of a device. Work goes to the driver in the thread that
// enqueues it, until a Call: the driver's own host functions may not use CUDA,
// and cannot fail. From a Call on, work is kept in a queue (work_queue.h)
// whose thread waits until the device has come to the Call, runs it, and gives
// the driver what follows. Once the queue is empty, work goes to the driver at
// once again. So work after a Call that failed never reaches the device.
//
// The host's own stream has no queue: a Wait for work that is behind a Call
// blocks the host until that work was given to the driver, and a Call runs in
// the caller's thread.
//
// An event is an event of the driver, after the queue's work that records it.

#ifndef SHARD_CORE_DEVICE_CUDA_CUDA_STREAM_H_
#define SHARD_CORE_DEVICE_CUDA_CUDA_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/device/cuda/context.h"
#include "core/device/cuda/kernels.h"
#include "core/device/cuda/memory.h"
#include "core/device/cuda/muon_batch.h"
#include "core/device/cuda/stream_core.h"
#include "core/device/stream.h"
#include "kernels/cuda/adafactor.h"
#include "kernels/cuda/update_tensors.h"

namespace shard::cuda {

class CudaStream final : public Stream {
 public:
  // Makes a stream. `name` must outlive it.
  static StatusOr<std::unique_ptr<Stream>> Create(
      std::shared_ptr<Context> context, std::shared_ptr<const Kernels> kernels,
      const Memory& memory, std::string_view name);
  // Wraps a stream of the host, on which no norms are computed.
  static StatusOr<std::shared_ptr<Stream>> Wrap(
      std::shared_ptr<Context> context, std::shared_ptr<const Kernels> kernels,
      CuStream native, std::string_view name);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  std::string_view name() const override { return core_->name(); }
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
  void UpdateAll(const UpdateList& list, const StepBlocks& step) override;
  void OnError(std::function<void(const Status&)> handler) override;
  void Fail(const Status& error) override { core_->Poison(error); }
  void Call(std::string_view what, std::function<Status()> work) override;
  void Native(std::string_view what,
              std::function<Status(void* native)> give) override;
  Event Record() override;
  std::shared_ptr<const Moment> Mark(const Moment* since) override;
  void Wait(const Event& event, const Deadline& deadline) override;
  Status Synchronize(const Deadline& deadline) override;
  void Settle(const Deadline& deadline) noexcept override;
  Status CheckNotCaptured() const override;
  Status BeginCapture(Stream* host) override;
  void EndCapture() override { core_->EndCapture(); }
  StatusOr<uint64_t> CaptureId() const override;
  Status status() const override;

 private:
  CudaStream(std::shared_ptr<StreamCore> core,
             std::shared_ptr<const Kernels> kernels, DeviceMemory norm_scratch)
      : kernels_(std::move(kernels)),
        norm_scratch_(std::move(norm_scratch)),
        core_(std::move(core)) {}

  // Gives the driver `work`, a Status() that may be copied, when the stream
  // comes to it.
  template <typename Work>
  void Submit(std::string_view what, Work work);
  // Returns whether the launch's argument has room for the gradients' pointers,
  // and fails the stream where it has not.
  bool CheckInline(std::string_view what, const GradientSources& sources);
  // Pieces of work that are submitted as one: where the stream fails meanwhile,
  // the driver is given all of them or none.
  using Works = std::vector<std::function<Status()>>;
  void SubmitUpdate(Works works);
  // Add the kernels that update a range with a tensor formula.
  void AddLamb(const UpdateTensorsArgs& args, Works* works) const;
  void AddAdafactor(const AdafactorArgs& args, Works* works) const;
  void AddMuon(const UpdateTensorsArgs& args, const MuonBatch& batch,
               int ns_steps, Works* works) const;

  // Returns work that launches a kernel for so many warps, at least one.
  template <typename Args>
  auto LaunchOf(const Kernel& kernel, const Args& args, uint64_t warps) const;
  // Adds, or submits, such work, unless there are no warps.
  template <typename Args>
  void Add(const Kernel& kernel, const Args& args, uint64_t warps,
           Works* works) const;
  template <typename Args>
  void Launch(std::string_view what, const Kernel& kernel, const Args& args,
              uint64_t warps);

  const std::shared_ptr<const Kernels> kernels_;
  const DeviceMemory norm_scratch_;
  // Shared with the events, which may outlive the stream.
  const std::shared_ptr<StreamCore> core_;
};

}  // namespace shard::cuda

#endif  // SHARD_CORE_DEVICE_CUDA_CUDA_STREAM_H_
