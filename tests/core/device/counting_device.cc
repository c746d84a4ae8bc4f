// SPDX-License-Identifier: Apache-2.0

#include "tests/core/device/counting_device.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "core/device/forwarding_device.h"
#include "core/device/stream.h"

namespace shard::testing {

namespace {

class CountingStream final : public Stream {
 public:
  CountingStream(std::shared_ptr<Stream> stream,
                 std::shared_ptr<OperationCounts> counts)
      : stream_(std::move(stream)), counts_(std::move(counts)) {}

  std::string_view name() const override { return stream_->name(); }
  bool IsInline() const override { return stream_->IsInline(); }

  void FillZeros(void* to, size_t bytes) override {
    counts_->Add("FillZeros");
    stream_->FillZeros(to, bytes);
  }
  void Copy(void* to, const void* from, size_t bytes) override {
    counts_->Add("Copy");
    stream_->Copy(to, from, bytes);
  }
  void Fill(std::vector<MemoryFill> parts) override {
    counts_->Add("Fill");
    stream_->Fill(std::move(parts));
  }
  void SumGradients(const GradientSources& sources, size_t begin, size_t count,
                    double scale, double clip_value, float* out) override {
    counts_->Add("SumGradients");
    stream_->SumGradients(sources, begin, count, scale, clip_value, out);
  }
  void Widen(DType dtype, const void* from, float* to, size_t count) override {
    counts_->Add("Widen");
    stream_->Widen(dtype, from, to, count);
  }
  void Narrow(DType dtype, const float* from, void* to, size_t count,
              const RandomStream* random) override {
    counts_->Add("Narrow");
    stream_->Narrow(dtype, from, to, count, random);
  }
  void EncodeQ8(StateKind kind, const float* from, size_t count,
                const RandomStream* random, uint32_t tensor, uint8_t* codes,
                float* scales) override {
    counts_->Add("EncodeQ8");
    stream_->EncodeQ8(kind, from, count, random, tensor, codes, scales);
  }
  void AddToNorm(const UpdateList& list, size_t range, NormPass pass,
                 const StepBlock* block, NormSum* sum) override {
    counts_->Add("AddToNorm");
    stream_->AddToNorm(list, range, pass, block, sum);
  }
  void FinishNorm(NormPass pass, const NormSum* sums, size_t count,
                  StepBlock* block) override {
    counts_->Add("FinishNorm");
    stream_->FinishNorm(pass, sums, count, block);
  }
  void Update(const UpdateList& list, size_t range, const StepBlocks& step,
              const GradientSources* gradients) override {
    counts_->Add("Update");
    stream_->Update(list, range, step, gradients);
  }
  void OnError(std::function<void(const Status&)> handler) override {
    stream_->OnError(std::move(handler));
  }
  void Call(std::string_view what, std::function<Status()> work) override {
    counts_->Add("Call");
    stream_->Call(what, std::move(work));
  }

  Event Record() override { return stream_->Record(); }
  void Wait(const Event& event, const Deadline& deadline) override {
    stream_->Wait(event, deadline);
  }
  Status Synchronize(const Deadline& deadline) override {
    return stream_->Synchronize(deadline);
  }
  Status status() const override { return stream_->status(); }

 private:
  const std::shared_ptr<Stream> stream_;
  const std::shared_ptr<OperationCounts> counts_;
};

class CountingDevice final : public ForwardingDevice {
 public:
  CountingDevice(std::shared_ptr<Device> device,
                 std::shared_ptr<OperationCounts> counts)
      : ForwardingDevice(std::move(device)), counts_(std::move(counts)) {}

  StatusOr<std::unique_ptr<Stream>> CreateStream(StreamKind kind) override {
    SHARD_ASSIGN_OR_RETURN(auto stream, device().CreateStream(kind));
    return Counting(std::move(stream));
  }
  StatusOr<std::shared_ptr<Stream>> WrapStream(void* native) override {
    SHARD_ASSIGN_OR_RETURN(auto stream, device().WrapStream(native));
    return std::shared_ptr<Stream>(Counting(std::move(stream)));
  }

 private:
  std::unique_ptr<Stream> Counting(std::shared_ptr<Stream> stream) const {
    return std::make_unique<CountingStream>(std::move(stream), counts_);
  }

  const std::shared_ptr<OperationCounts> counts_;
};

}  // namespace

std::shared_ptr<Device> CountOperations(
    std::shared_ptr<Device> device, std::shared_ptr<OperationCounts> counts) {
  return std::make_shared<CountingDevice>(std::move(device), std::move(counts));
}

}  // namespace shard::testing
