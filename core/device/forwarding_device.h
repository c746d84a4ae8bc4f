// SPDX-License-Identifier: Apache-2.0
//
// ForwardingDevice: a base of devices that change some of another device's
// methods.

#ifndef SHARD_CORE_DEVICE_FORWARDING_DEVICE_H_
#define SHARD_CORE_DEVICE_FORWARDING_DEVICE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/device/device.h"

namespace shard {

class ForwardingDevice : public Device {
 public:
  explicit ForwardingDevice(std::shared_ptr<Device> device)
      : device_(std::move(device)) {}

  const std::string& name() const override { return device_->name(); }
  DeviceId id() const override { return device_->id(); }
  const Offload* offload() const override { return device_->offload(); }
  StatusOr<DeviceMemory> Allocate(size_t bytes,
                                  std::string_view what) override {
    return device_->Allocate(bytes, what);
  }
  StatusOr<DeviceMemory> AllocateStates(size_t bytes,
                                        std::string_view what) override {
    // A device that changes Allocate changes it for states as well.
    return offload() == nullptr ? Allocate(bytes, what)
                                : device_->AllocateStates(bytes, what);
  }
  bool IsOffloaded(const void* memory) const override {
    return device_->IsOffloaded(memory);
  }
  StatusOr<MemoryRoom> FindMemoryRoom(const Deadline& deadline) override {
    return device_->FindMemoryRoom(deadline);
  }
  bool IsHostMemory() const override { return device_->IsHostMemory(); }
  bool ReachesSharedMemory() const override {
    return device_->ReachesSharedMemory();
  }
  StatusOr<DeviceMemory> AllocateHost(size_t bytes,
                                      std::string_view what) override {
    return device_->AllocateHost(bytes, what);
  }
  StatusOr<std::unique_ptr<Stream>> CreateStream(StreamKind kind) override {
    return device_->CreateStream(kind);
  }
  StatusOr<std::shared_ptr<Stream>> WrapStream(void* native) override {
    return device_->WrapStream(native);
  }
  Status CheckPlace(const void* memory, MemoryPlace place) const override {
    return device_->CheckPlace(memory, place);
  }
  Status Prepare(UpdateList* list) override { return device_->Prepare(list); }
  StatusOr<std::shared_ptr<Collectives>> OpenCollectives(
      Communicator* control, std::span<const RankSet> sets,
      const CollectivesOptions& options, const Deadline& deadline) override {
    return device_->OpenCollectives(control, sets, options, deadline);
  }
  StatusOr<std::string> LoadBlas() override { return device_->LoadBlas(); }

 protected:
  Device& device() const { return *device_; }

 private:
  const std::shared_ptr<Device> device_;
};

}  // namespace shard

#endif  // SHARD_CORE_DEVICE_FORWARDING_DEVICE_H_
