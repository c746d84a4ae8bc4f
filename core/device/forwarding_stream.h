// SPDX-License-Identifier: Apache-2.0
//
// ForwardingStream: a base of streams that change some of another stream's
// methods. Its events are those of the other stream.

#ifndef SHARD_CORE_DEVICE_FORWARDING_STREAM_H_
#define SHARD_CORE_DEVICE_FORWARDING_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "core/device/stream.h"

namespace shard {

class ForwardingStream : public Stream {
 public:
  explicit ForwardingStream(std::shared_ptr<Stream> stream)
      : stream_(std::move(stream)) {}

  std::string_view name() const override { return stream_->name(); }
  bool IsInline() const override { return stream_->IsInline(); }
  void FillZeros(void* to, size_t bytes) override {
    stream_->FillZeros(to, bytes);
  }
  void Copy(void* to, const void* from, size_t bytes) override {
    stream_->Copy(to, from, bytes);
  }
  void Fill(std::vector<MemoryFill> parts) override {
    stream_->Fill(std::move(parts));
  }
  void Count(uint32_t* count, uint32_t* copy) override {
    stream_->Count(count, copy);
  }
  void SumGradients(const GradientSources& sources, size_t begin, size_t count,
                    double scale, double clip_value, float* out) override {
    stream_->SumGradients(sources, begin, count, scale, clip_value, out);
  }
  void Widen(DType dtype, const void* from, float* to, size_t count) override {
    stream_->Widen(dtype, from, to, count);
  }
  void Narrow(DType dtype, const float* from, void* to, size_t count,
              const RandomStream* random) override {
    stream_->Narrow(dtype, from, to, count, random);
  }
  void EncodeQ8(StateKind kind, const float* from, size_t count,
                const RandomStream* random, uint32_t tensor, uint8_t* codes,
                float* scales) override {
    stream_->EncodeQ8(kind, from, count, random, tensor, codes, scales);
  }
  void SumBlocks(const BlockSum& sum) override { stream_->SumBlocks(sum); }
  void AddToNorm(const UpdateList& list, size_t range, NormPass pass,
                 const StepBlock* block, NormSum* sum) override {
    stream_->AddToNorm(list, range, pass, block, sum);
  }
  void FinishNorm(NormPass pass, const NormSum* sums, size_t count,
                  StepBlock* block) override {
    stream_->FinishNorm(pass, sums, count, block);
  }
  void Update(const UpdateList& list, size_t range, const StepBlocks& step,
              const GradientSources* gradients) override {
    stream_->Update(list, range, step, gradients);
  }
  void OnError(std::function<void(const Status&)> handler) override {
    stream_->OnError(std::move(handler));
  }
  void Fail(const Status& error) override { stream_->Fail(error); }
  void Call(std::string_view what, std::function<Status()> work) override {
    stream_->Call(what, std::move(work));
  }
  void Native(std::string_view what,
              std::function<Status(void* native)> give) override {
    stream_->Native(what, std::move(give));
  }
  Event Record() override { return stream_->Record(); }
  std::shared_ptr<const Moment> Mark(const Moment* since) override {
    return stream_->Mark(since);
  }
  void Wait(const Event& event, const Deadline& deadline) override {
    stream_->Wait(event, deadline);
  }
  Status Synchronize(const Deadline& deadline) override {
    return stream_->Synchronize(deadline);
  }
  void Settle(const Deadline& deadline) noexcept override {
    stream_->Settle(deadline);
  }
  Status CheckNotCaptured() const override {
    return stream_->CheckNotCaptured();
  }
  Status BeginCapture(Stream* host) override {
    return stream_->BeginCapture(host);
  }
  void EndCapture() override { stream_->EndCapture(); }
  StatusOr<uint64_t> CaptureId() const override { return stream_->CaptureId(); }
  Status status() const override { return stream_->status(); }

 protected:
  Stream& stream() const { return *stream_; }

 private:
  const std::shared_ptr<Stream> stream_;
};

}  // namespace shard

#endif  // SHARD_CORE_DEVICE_FORWARDING_STREAM_H_
