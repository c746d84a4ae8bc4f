// SPDX-License-Identifier: Apache-2.0

#include "tests/core/device/test_device.h"

#include <cstdlib>
#include <string>
#include <utility>

#include "core/base/strings.h"
#include "core/device/cuda/cuda_device.h"
#include "core/device/offload/offloading_device.h"

namespace shard::testing {

namespace {

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

class HostThreadDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;

  StatusOr<std::shared_ptr<Stream>> WrapStream(void* native) override {
    if (native != nullptr) return device().WrapStream(native);
    SHARD_ASSIGN_OR_RETURN(const auto cpu, OpenDevice("cpu"));
    return cpu->WrapStream(nullptr);
  }
};

// Takes memory of the host for that of the fake's devices, which lies there
// too.
class LenientDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;

  Status CheckPlace(const void*, MemoryPlace) const override {
    return Status();
  }
};

class UnsharedDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;

  bool ReachesSharedMemory() const override { return false; }
};

}  // namespace

std::shared_ptr<Device> WithHostThread(std::shared_ptr<Device> device) {
  return std::make_shared<HostThreadDevice>(std::move(device));
}

std::shared_ptr<Device> WithoutSharedMemory(std::shared_ptr<Device> device) {
  return std::make_shared<UnsharedDevice>(std::move(device));
}

AsyncHostDevice::AsyncHostDevice(std::shared_ptr<Device> device)
    : ForwardingDevice(std::move(device)),
      name_(StrCat(ForwardingDevice::name(), "&host=async")) {}

StatusOr<std::shared_ptr<Stream>> AsyncHostDevice::CreateHostStream() {
  SHARD_ASSIGN_OR_RETURN(auto stream,
                         device().CreateStream(StreamKind::kCompute));
  return std::shared_ptr<Stream>(std::move(stream));
}

StatusOr<Stream*> AsyncHostDevice::MakeHostStream() {
  SHARD_ASSIGN_OR_RETURN(auto stream, CreateHostStream());
  const std::lock_guard<std::mutex> lock(mutex_);
  made_.push_back(std::move(stream));
  return made_.back().get();
}

StatusOr<std::shared_ptr<Stream>> AsyncHostDevice::WrapStream(void* native) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (native == nullptr) {
    if (usual_ == nullptr) {
      SHARD_ASSIGN_OR_RETURN(usual_, CreateHostStream());
    }
    return usual_;
  }
  for (const std::shared_ptr<Stream>& stream : made_) {
    if (stream.get() == native) return stream;
  }
  return InvalidArgument("'", name_,
                         "' did not make the stream; give one of its own, or "
                         "null");
}

bool TestsAreOn(std::string_view device) {
  const char* const named = std::getenv("SHARD_TEST_DEVICE");
  return named != nullptr && named == device;
}

std::vector<const char*> DeviceSpecs(std::initializer_list<const char*> usual) {
  if (TestsAreOn("fake_cuda") || TestsAreOn("fake_nccl")) return {"cuda:0"};
  if (TestsAreOn("offloaded")) return {"cuda:0?offload=states"};
  return usual;
}

StatusOr<std::shared_ptr<Device>> OpenTestDevice(std::string_view spec) {
  constexpr std::string_view kOffloaded = "?offload=states";
  if (spec.ends_with(kOffloaded)) {
    spec.remove_suffix(kOffloaded.size());
    SHARD_ASSIGN_OR_RETURN(auto device, OpenTestDevice(spec));
    SHARD_ASSIGN_OR_RETURN(auto host, OpenDevice("cpu"));
    return OffloadStates(std::move(device), std::move(host),
                         {.threads = 2, .window = 512});
  }
  if (spec.starts_with("cuda:")) {
    SHARD_ASSIGN_OR_RETURN(auto device, cuda::OpenDevice(spec.substr(5)));
    return std::shared_ptr<Device>(
        std::make_shared<LenientDevice>(std::move(device)));
  }
  constexpr std::string_view kUnshared = "unshared:";
  if (spec.starts_with(kUnshared)) {
    SHARD_ASSIGN_OR_RETURN(auto device,
                           OpenTestDevice(spec.substr(kUnshared.size())));
    return WithoutSharedMemory(std::move(device));
  }
  std::string text(spec);
  const bool async_host = TakeAsyncHost(&text);
  SHARD_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, OpenDevice(text));
  if (!async_host) return device;
  return std::shared_ptr<Device>(
      std::make_shared<AsyncHostDevice>(std::move(device)));
}

}  // namespace shard::testing
