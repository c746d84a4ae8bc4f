// SPDX-License-Identifier: Apache-2.0
//
// The host's side of a GPU, as a training engine has one: memory, a stream of
// its own, and copies. By the driver alone, so that it runs on any machine with
// a GPU.

#ifndef SHARD_TESTS_GPU_CHECK_GPU_H_
#define SHARD_TESTS_GPU_CHECK_GPU_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/device/cuda/driver.h"
#include "tests/fake_cuda/graph_api.h"

namespace shard::gpu_check {

// Throws std::runtime_error with the message of the driver. One thread.
class Gpu {
 public:
  explicit Gpu(int ordinal);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  // Returns "NVIDIA H100 80GB HBM3, driver for CUDA 13.0, ...".
  std::string Describe() const;

  // A stream of the host's, and as it is given to the engine.
  void* stream() const { return stream_; }

  void* Allocate(size_t bytes);
  void Free(void* memory);

  // Memory of the host that the device reaches.
  void* AllocatePinned(size_t bytes);
  void FreePinned(void* memory);

  // Copies in the order of the stream.
  void Copy(void* to, const void* from, size_t bytes);
  void FillZeros(void* to, size_t bytes);
  // Waits for all that the stream was given.
  void Finish();

  // Begin and end a capture of the stream's work, which Launch then gives it.
  void BeginCapture();
  void EndCapture();
  void Launch();

 private:
  void Check(cuda::CuResult result, const char* what) const;
  const cuda::DriverApi& api() const { return driver_->api(); }

  const cuda::Driver* driver_ = nullptr;
  cuda::CuDevice device_ = 0;
  cuda::CuStream stream_ = nullptr;
  cuda::CuEvent event_ = nullptr;
  cuda::GraphApi graphs_;
  cuda::CuGraphExec graph_ = nullptr;  // Of the last capture.
};

}  // namespace shard::gpu_check

#endif  // SHARD_TESTS_GPU_CHECK_GPU_H_
