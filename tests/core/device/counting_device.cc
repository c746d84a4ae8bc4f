// SPDX-License-Identifier: Apache-2.0

#include "tests/core/device/counting_device.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "core/device/forwarding_device.h"
#include "core/device/forwarding_stream.h"
#include "core/device/stream.h"

namespace shard::testing {

namespace {

class CountingStream final : public ForwardingStream {
 public:
  CountingStream(std::shared_ptr<Stream> stream,
                 std::shared_ptr<OperationCounts> counts)
      : ForwardingStream(std::move(stream)), counts_(std::move(counts)) {}

  void FillZeros(void* to, size_t bytes) override {
    counts_->Add("FillZeros");
    stream().FillZeros(to, bytes);
  }
  void Copy(void* to, const void* from, size_t bytes) override {
    counts_->Add("Copy");
    stream().Copy(to, from, bytes);
  }
  void Fill(std::vector<MemoryFill> parts) override {
    counts_->Add("Fill");
    stream().Fill(std::move(parts));
  }
  void Count(uint32_t* count, uint32_t* copy) override {
    counts_->Add("Count");
    stream().Count(count, copy);
  }
  void SumGradients(const GradientSources& sources, size_t begin, size_t count,
                    double scale, double clip_value, float* out) override {
    counts_->Add("SumGradients");
    stream().SumGradients(sources, begin, count, scale, clip_value, out);
  }
  void Widen(DType dtype, const void* from, float* to, size_t count) override {
    counts_->Add("Widen");
    stream().Widen(dtype, from, to, count);
  }
  void Narrow(DType dtype, const float* from, void* to, size_t count,
              const RandomStream* random) override {
    counts_->Add("Narrow");
    stream().Narrow(dtype, from, to, count, random);
  }
  void EncodeQ8(StateKind kind, const float* from, size_t count,
                const RandomStream* random, uint32_t tensor, uint8_t* codes,
                float* scales) override {
    counts_->Add("EncodeQ8");
    stream().EncodeQ8(kind, from, count, random, tensor, codes, scales);
  }
  void SumBlocks(const BlockSum& sum) override {
    counts_->Add("SumBlocks");
    stream().SumBlocks(sum);
  }
  void AddToNorm(const UpdateList& list, size_t range, NormPass pass,
                 const StepBlock* block, NormSum* sum) override {
    counts_->Add("AddToNorm");
    stream().AddToNorm(list, range, pass, block, sum);
  }
  void FinishNorm(NormPass pass, const NormSum* sums, size_t count,
                  StepBlock* block) override {
    counts_->Add("FinishNorm");
    stream().FinishNorm(pass, sums, count, block);
  }
  void Update(const UpdateList& list, size_t range, const StepBlocks& step,
              const GradientSources* gradients) override {
    counts_->Add("Update");
    stream().Update(list, range, step, gradients);
  }
  void Call(std::string_view what, std::function<Status()> work) override {
    counts_->Add("Call");
    stream().Call(what, std::move(work));
  }

 private:
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
