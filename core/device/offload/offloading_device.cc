// SPDX-License-Identifier: Apache-2.0

#include "core/device/offload/offloading_device.h"

#include <atomic>
#include <cstddef>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/strings.h"
#include "core/device/forwarding_device.h"
#include "core/device/forwarding_stream.h"
#include "core/device/offload/host_updates.h"
#include "core/device/work_queue/forked.h"

namespace shard {

namespace {

class OffloadingStream final : public ForwardingStream {
 public:
  using ForwardingStream::ForwardingStream;
  // The stream that this one forwards to waits for the update that runs.
  ~OffloadingStream() override { *ended_ = true; }

  void AddToNorm(const UpdateList& list, size_t range, NormPass pass,
                 const StepBlock* block, NormSum* sum) override {
    stream().AddToNorm(HostUpdates::Of(list)->norms(), range, pass, block, sum);
  }

  void Update(const UpdateList& list, size_t range, const StepBlocks& step,
              const GradientSources* gradients) override {
    if (list.ranges[range].count == 0) return;
    const GradientSources sources =
        gradients != nullptr
            ? *gradients
            : list.GradientsOf(list.ranges[range], step.host->has_norm);
    // One rank's own gradients, or a sum: ranks share no memory of a device.
    const bool reads =
        sources.count == 1 && sources.dtype == list.ranges[range].source_dtype;
    const void* const grads = reads ? sources.data[0] : nullptr;
    stream().Call("update on the host",
                  [updates = HostUpdates::Of(list), range, block = step.host,
                   grads, ended = ended_]() -> Status {
                    if (grads == nullptr) {
                      return Internal(
                          "gradients of several ranks, or of another dtype "
                          "than planned");
                    }
                    return updates->Run(range, *block, grads, *ended);
                  });
  }

  Status BeginCapture(Stream*) override {
    return Unimplemented(
        "with offloaded optimizer states a step is work of the host, which is "
        "no part of a graph; step without one, or leave offload out");
  }

 private:
  const std::shared_ptr<std::atomic<bool>> ended_ =
      std::make_shared<std::atomic<bool>>(false);
};

// The memory of states that is allocated. Thread-safe.
class StateMemory : public std::enable_shared_from_this<StateMemory> {
 public:
  DeviceMemory Keep(DeviceMemory memory) {
    std::byte* const data = memory.data();
    const size_t size = memory.size();
    if (size == 0) return memory;
    const auto owner =
        MakeSharedUnlessForked<Piece>(shared_from_this(), std::move(memory));
    const std::lock_guard<std::mutex> lock(mutex_);
    pieces_.emplace(data, size);
    return DeviceMemory(data, size, owner);
  }

  bool Has(const void* memory) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto* const at = static_cast<const std::byte*>(memory);
    const auto after = pieces_.upper_bound(at);
    if (after == pieces_.begin()) return false;
    const auto& [begin, size] = *std::prev(after);
    return at < begin + size;
  }

 private:
  class Piece {
   public:
    Piece(std::shared_ptr<StateMemory> all, DeviceMemory memory)
        : all_(std::move(all)), memory_(std::move(memory)) {}
    ~Piece() {
      const std::lock_guard<std::mutex> lock(all_->mutex_);
      all_->pieces_.erase(memory_.data());
    }
    Piece(const Piece&) = delete;
    Piece& operator=(const Piece&) = delete;

   private:
    const std::shared_ptr<StateMemory> all_;
    const DeviceMemory memory_;
  };

  mutable std::mutex mutex_;
  std::map<const std::byte*, size_t> pieces_;  // GUARDED_BY(mutex_)
};

class OffloadingDevice final : public ForwardingDevice {
 public:
  OffloadingDevice(std::shared_ptr<Device> device, std::shared_ptr<Device> host,
                   const Offload& offload)
      : ForwardingDevice(std::move(device)),
        name_(StrCat(
            ForwardingDevice::name(),
            ForwardingDevice::name().find('?') == std::string::npos ? "?" : "&",
            "offload=states&offload_threads=", offload.threads)),
        host_(std::move(host)),
        offload_(offload),
        states_(std::make_shared<StateMemory>()) {}

  const std::string& name() const override { return name_; }
  const Offload* offload() const override { return &offload_; }

  StatusOr<DeviceMemory> AllocateStates(size_t bytes,
                                        std::string_view what) override {
    SHARD_ASSIGN_OR_RETURN(DeviceMemory memory, AllocateHost(bytes, what));
    return states_->Keep(std::move(memory));
  }
  bool IsOffloaded(const void* memory) const override {
    return states_->Has(memory);
  }

  StatusOr<std::unique_ptr<Stream>> CreateStream(StreamKind kind) override {
    SHARD_ASSIGN_OR_RETURN(auto stream, device().CreateStream(kind));
    return std::unique_ptr<Stream>(
        std::make_unique<OffloadingStream>(std::move(stream)));
  }

  Status Prepare(UpdateList* list) override {
    SHARD_ASSIGN_OR_RETURN(list->prepared,
                           HostUpdates::Make(&device(), host_.get(), *list));
    return Status();
  }

  StatusOr<std::string> LoadBlas() override { return host_->LoadBlas(); }

 private:
  const std::string name_;
  const std::shared_ptr<Device> host_;
  const Offload offload_;
  const std::shared_ptr<StateMemory> states_;
};

}  // namespace

std::shared_ptr<Device> OffloadStates(std::shared_ptr<Device> device,
                                      std::shared_ptr<Device> host,
                                      const Offload& offload) {
  return std::make_shared<OffloadingDevice>(std::move(device), std::move(host),
                                            offload);
}

}  // namespace shard
