// SPDX-License-Identifier: Apache-2.0

#include "tests/core/device/test_device.h"

#include <cstddef>
#include <string>
#include <utility>

#include "core/base/strings.h"

namespace shard::testing {

namespace {

// The device that it is given, but for the host's stream.
class AsyncHostDevice final : public Device {
 public:
  explicit AsyncHostDevice(std::shared_ptr<Device> device)
      : device_(std::move(device)),
        name_(StrCat(device_->name(), "&host=async")) {}

  const std::string& name() const override { return name_; }
  StatusOr<DeviceMemory> Allocate(size_t bytes,
                                  std::string_view what) override {
    return device_->Allocate(bytes, what);
  }
  bool IsHostMemory() const override { return device_->IsHostMemory(); }
  StatusOr<DeviceMemory> AllocateHost(size_t bytes,
                                      std::string_view what) override {
    return device_->AllocateHost(bytes, what);
  }
  StatusOr<std::unique_ptr<Stream>> CreateStream(StreamKind kind) override {
    return device_->CreateStream(kind);
  }
  StatusOr<std::unique_ptr<Stream>> WrapStream(void* native) override {
    if (native != nullptr) return device_->WrapStream(native);
    return device_->CreateStream(StreamKind::kCompute);
  }
  StatusOr<std::string> LoadBlas() override { return device_->LoadBlas(); }

 private:
  const std::shared_ptr<Device> device_;
  const std::string name_;
};

// Takes host=async out of a spec; returns whether the spec had it.
bool TakeAsyncHost(std::string* spec) {
  for (const std::string_view part :
       {"&host=async", "host=async&", "?host=async"}) {
    const size_t at = spec->find(part);
    if (at == std::string::npos) continue;
    spec->erase(at, part.size());
    return true;
  }
  return false;
}

}  // namespace

StatusOr<std::shared_ptr<Device>> OpenTestDevice(std::string_view spec) {
  std::string text(spec);
  const bool async_host = TakeAsyncHost(&text);
  SHARD_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, OpenDevice(text));
  if (!async_host) return device;
  return std::shared_ptr<Device>(
      std::make_shared<AsyncHostDevice>(std::move(device)));
}

}  // namespace shard::testing
