// SPDX-License-Identifier: Apache-2.0

#include "tests/core/device/test_device.h"

#include <string>
#include <utility>

#include "core/base/strings.h"

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

}  // namespace

AsyncHostDevice::AsyncHostDevice(std::shared_ptr<Device> device)
    : device_(std::move(device)),
      name_(StrCat(device_->name(), "&host=async")) {}

StatusOr<std::shared_ptr<Stream>> AsyncHostDevice::CreateHostStream() {
  SHARD_ASSIGN_OR_RETURN(auto stream,
                         device_->CreateStream(StreamKind::kCompute));
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

StatusOr<std::shared_ptr<Device>> OpenTestDevice(std::string_view spec) {
  std::string text(spec);
  const bool async_host = TakeAsyncHost(&text);
  SHARD_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, OpenDevice(text));
  if (!async_host) return device;
  return std::shared_ptr<Device>(
      std::make_shared<AsyncHostDevice>(std::move(device)));
}

}  // namespace shard::testing
