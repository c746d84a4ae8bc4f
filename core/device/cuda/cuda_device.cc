// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/cuda_device.h"

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "core/base/strings.h"
#include "core/collectives/nccl/open.h"
#include "core/device/cuda/context.h"
#include "core/device/cuda/cublas.h"
#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/driver.h"
#include "core/device/cuda/find_device.h"
#include "core/device/cuda/kernels.h"
#include "core/device/cuda/memory.h"
#include "core/device/cuda/update_table.h"
#include "core/device/host_pointer.h"

namespace shard::cuda {

namespace {

CuPointer PointerOf(const void* memory) {
  return reinterpret_cast<CuPointer>(memory);
}

class CudaDevice final : public Device {
 public:
  CudaDevice(std::shared_ptr<Context> context,
             std::shared_ptr<const Kernels> kernels, Memory memory)
      : context_(std::move(context)),
        kernels_(std::move(kernels)),
        memory_(std::move(memory)) {}

  const std::shared_ptr<Context>& context() const { return context_; }

  const std::string& name() const override { return context_->name(); }
  DeviceId id() const override {
    return {DeviceId::Kind::kCuda, context_->ordinal()};
  }

  StatusOr<DeviceMemory> Allocate(size_t bytes,
                                  std::string_view what) override {
    return memory_.Allocate(bytes, what);
  }
  StatusOr<MemoryRoom> FindMemoryRoom(const Deadline& deadline) override {
    return memory_.FindRoom(deadline);
  }
  bool IsHostMemory() const override { return false; }
  bool ReachesSharedMemory() const override { return false; }
  StatusOr<DeviceMemory> AllocateHost(size_t bytes,
                                      std::string_view what) override {
    return memory_.AllocateHost(bytes, what);
  }

  StatusOr<std::unique_ptr<Stream>> CreateStream(StreamKind kind) override {
    return CudaStream::Create(
        context_, kernels_, memory_,
        kind == StreamKind::kCompute ? "shard-compute" : "shard-comm");
  }

  StatusOr<std::shared_ptr<Stream>> WrapStream(void* native) override {
    const auto stream = static_cast<CuStream>(native);
    if (native != nullptr) {
      SHARD_RETURN_IF_ERROR(CheckOfContext(stream));
    }
    return CudaStream::Wrap(context_, kernels_,
                            native == nullptr ? LegacyStream() : stream,
                            "shard-host");
  }

  StatusOr<std::shared_ptr<Collectives>> OpenCollectives(
      Communicator* control, std::span<const RankSet> sets,
      const CollectivesOptions& options, const Deadline& deadline) override {
    return nccl::OpenCollectives(control, this, context_, sets, options,
                                 deadline);
  }

  StatusOr<std::string> LoadBlas() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (cublas_ == nullptr) {
      SHARD_ASSIGN_OR_RETURN(cublas_, Cublas::Open(context_));
    }
    return cublas_->name();
  }

  Status CheckPlace(const void* memory, MemoryPlace place) const override {
    if (place == MemoryPlace::kHost) return CheckHostPointer(memory);
    return context_->Run([&] { return CheckIsTensor(memory); });
  }

  Status Prepare(UpdateList* list) override {
    SHARD_ASSIGN_OR_RETURN(
        list->prepared, UpdateTable::Make(context_, memory_, cublas(), *list));
    return Status();
  }

 private:
  Status CheckOfContext(CuStream stream) const {
    if (stream == PerThreadStream()) {
      return InvalidArgument(
          "the per-thread default stream is another one in each thread; give a "
          "stream that was made, or null for the legacy default stream");
    }
    return context_->Run([&] {
      CuContext owner = nullptr;
      const CuResult result = context_->api().StreamGetCtx(stream, &owner);
      const bool unknown = result == CuResult::kInvalidHandle ||
                           result == CuResult::kInvalidContext ||
                           result == CuResult::kInvalidValue;
      if (unknown || (result == CuResult::kSuccess && owner != handle())) {
        return InvalidArgument(
            "the stream is not one of the primary context of ", name(),
            "; give a CUstream that was made while that device was current, or "
            "null for the legacy default stream");
      }
      return context_->driver()->ToStatus(result, "cuStreamGetCtx");
    });
  }

  // REQUIRES: the context is current.
  Status CheckIsTensor(const void* memory) const {
    // The driver does not know memory that the host has of others.
    CuMemoryType type = CuMemoryType::kHost;
    const CuResult result = context_->api().PointerGetAttribute(
        &type, CuPointerAttribute::kMemoryType, PointerOf(memory));
    if (result != CuResult::kInvalidValue) {
      SHARD_RETURN_IF_ERROR(
          context_->driver()->ToStatus(result, "cuPointerGetAttribute"));
    }
    if (type == CuMemoryType::kHost) {
      return InvalidArgument("the memory at ", FormatHex(PointerOf(memory)),
                             " is the host's; give memory of ", name());
    }
    int ordinal = 0;
    SHARD_CUDA_CALL(context_->driver(), PointerGetAttribute, &ordinal,
                    CuPointerAttribute::kDeviceOrdinal, PointerOf(memory));
    if (ordinal == context_->ordinal()) return Status();
    return InvalidArgument("the memory at ", FormatHex(PointerOf(memory)),
                           " is of cuda:", ordinal, "; give memory of ",
                           name());
  }

  CuContext handle() const { return context_->handle(); }
  std::shared_ptr<const Cublas> cublas() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return cublas_;
  }

  const std::shared_ptr<Context> context_;
  const std::shared_ptr<const Kernels> kernels_;
  const Memory memory_;
  std::mutex mutex_;
  std::shared_ptr<const Cublas> cublas_;  // GUARDED_BY(mutex_).
};

// The devices of the process that are in use: engines on one GPU share its
// kernels and its memory pool. Never destroyed.
struct OpenedDevices {
  std::mutex mutex;
  std::map<int, std::weak_ptr<Device>> devices;  // By ordinal.
};

OpenedDevices* TheOpenedDevices() {
  static auto* const opened = new OpenedDevices();
  return opened;
}

}  // namespace

StatusOr<std::shared_ptr<Device>> OpenDevice(std::string_view id) {
  SHARD_ASSIGN_OR_RETURN(const int ordinal, OrdinalOf(id));
  // First, because the devices are of no use in a child of fork.
  SHARD_RETURN_IF_ERROR(Driver::Load().status());
  OpenedDevices* const opened = TheOpenedDevices();
  const std::lock_guard<std::mutex> lock(opened->mutex);
  std::weak_ptr<Device>& known = opened->devices[ordinal];
  if (auto device = known.lock()) return device;
  SHARD_ASSIGN_OR_RETURN(auto context, Context::Open(ordinal));
  SHARD_ASSIGN_OR_RETURN(auto kernels, Kernels::Load(context));
  SHARD_ASSIGN_OR_RETURN(Memory memory, Memory::Open(context));
  std::shared_ptr<Device> device = std::make_shared<CudaDevice>(
      std::move(context), std::move(kernels), std::move(memory));
  known = device;
  return device;
}

std::shared_ptr<Context> ContextOf(const Device& device) {
  return static_cast<const CudaDevice&>(device).context();
}

}  // namespace shard::cuda
