// SPDX-License-Identifier: Apache-2.0
//
// Devices of tests: those that hosts open, and one on which the host's own work
// is late, as on an accelerator. There the host's streams have threads, and a
// test enqueues on them whatever a host would; an edge that is missing then
// shows as a wrong result, or as a data race under a sanitizer.

#ifndef SHARD_TESTS_CORE_DEVICE_TEST_DEVICE_H_
#define SHARD_TESTS_CORE_DEVICE_TEST_DEVICE_H_

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/device/device.h"

namespace shard::testing {

// A device whose hosts make streams of their own. WrapStream returns those
// streams themselves: the usual one, or the one at the address that is given.
// They live as long as the device, or longer.
class AsyncHostDevice final : public Device {
 public:
  // All but the host's streams are those of `device`.
  explicit AsyncHostDevice(std::shared_ptr<Device> device);

  // Makes a stream of the host's own, whose address WrapStream takes.
  StatusOr<Stream*> MakeHostStream();

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
  StatusOr<std::shared_ptr<Stream>> WrapStream(void* native) override;
  StatusOr<std::string> LoadBlas() override { return device_->LoadBlas(); }

 private:
  StatusOr<std::shared_ptr<Stream>> CreateHostStream();

  const std::shared_ptr<Device> device_;
  const std::string name_;
  std::mutex mutex_;
  std::shared_ptr<Stream> usual_;              // GUARDED_BY(mutex_)
  std::vector<std::shared_ptr<Stream>> made_;  // GUARDED_BY(mutex_)
};

// Opens a device as OpenDevice does, which knows no host=async:
//   cpu-async?host=async   An AsyncHostDevice; with the other parameters of
//                          cpu-async as well.
StatusOr<std::shared_ptr<Device>> OpenTestDevice(std::string_view spec);

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_DEVICE_TEST_DEVICE_H_
