// SPDX-License-Identifier: Apache-2.0
//
// Devices of tests: those that hosts open, and one on which the host's own work
// is late, as on an accelerator. There the host's streams have threads, and a
// test enqueues on them whatever a host would; an edge that is missing then
// shows as a wrong result, or as a data race under a sanitizer.

#ifndef SHARD_TESTS_CORE_DEVICE_TEST_DEVICE_H_
#define SHARD_TESTS_CORE_DEVICE_TEST_DEVICE_H_

#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/device/device.h"
#include "core/device/forwarding_device.h"

namespace shard::testing {

// A device whose hosts make streams of their own. WrapStream returns those
// streams themselves: the usual one, or the one at the address that is given.
// They live as long as the device, or longer.
class AsyncHostDevice final : public ForwardingDevice {
 public:
  // All but the host's streams are those of `device`.
  explicit AsyncHostDevice(std::shared_ptr<Device> device);

  // Makes a stream of the host's own, whose address WrapStream takes.
  StatusOr<Stream*> MakeHostStream();

  const std::string& name() const override { return name_; }
  StatusOr<std::shared_ptr<Stream>> WrapStream(void* native) override;

 private:
  StatusOr<std::shared_ptr<Stream>> CreateHostStream();

  const std::string name_;
  std::mutex mutex_;
  std::shared_ptr<Stream> usual_;              // GUARDED_BY(mutex_)
  std::vector<std::shared_ptr<Stream>> made_;  // GUARDED_BY(mutex_)
};

// Returns `device` for hosts that work in their threads: its usual host stream
// blocks the thread until the device is done, as on "cpu". So a test of a GPU
// may read and write tensors, where they lie in memory of a fake, between
// calls.
std::shared_ptr<Device> WithHostThread(std::shared_ptr<Device> device);

// Returns `device` for ranks that share no tensors: it does not reach the
// memory that the ranks of a host share, as a GPU does not.
std::shared_ptr<Device> WithoutSharedMemory(std::shared_ptr<Device> device);

// Opens a device as OpenDevice does, which does not know these:
//   cpu-async?host=async   An AsyncHostDevice; with the other parameters of
//                          cpu-async as well.
//   SPEC?offload=states    The device of SPEC with two threads that update
//                          small windows.
//   unshared:SPEC          The device of SPEC, without shared memory.
//   cuda:N                 The device in this program, and not in
//                          libshard_cuda.so. Tensors that the host gives may be
//                          memory of the host.
StatusOr<std::shared_ptr<Device>> OpenTestDevice(std::string_view spec);

// Whether SHARD_TEST_DEVICE in the environment names `device`.
bool TestsAreOn(std::string_view device);

// Whether they are on the fake of CUDA's driver.
inline bool TestsAreOnGpu() {
  return TestsAreOn("fake_cuda") || TestsAreOn("offloaded") ||
         TestsAreOn("fake_nccl");
}

// Returns the devices that a suite is instantiated with: `usual`, or "cuda:0"
// where the tests are on the fake of CUDA's driver ("fake_cuda"), or
// "cuda:0?offload=states" ("offloaded").
std::vector<const char*> DeviceSpecs(std::initializer_list<const char*> usual);

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_DEVICE_TEST_DEVICE_H_
