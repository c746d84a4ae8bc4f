// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/cuda_device.h"

#include <string>
#include <utility>

#include "core/device/cuda/context.h"
#include "core/device/cuda/cuda_stream.h"
#include "core/device/cuda/device_names.h"
#include "core/device/cuda/kernels.h"
#include "core/device/cuda/memory.h"
#include "core/device/cuda/update_table.h"

namespace shard::cuda {

namespace {

class CudaDevice final : public Device {
 public:
  CudaDevice(std::shared_ptr<Context> context,
             std::shared_ptr<const Kernels> kernels, Memory memory)
      : context_(std::move(context)),
        kernels_(std::move(kernels)),
        memory_(std::move(memory)) {}

  const std::string& name() const override { return context_->name(); }
  DeviceId id() const override {
    return {DeviceId::Kind::kCuda, context_->ordinal()};
  }

  StatusOr<DeviceMemory> Allocate(size_t bytes,
                                  std::string_view what) override {
    return memory_.Allocate(bytes, what);
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

  StatusOr<std::string> LoadBlas() override {
    return Unimplemented(name(),
                         ": muon has no CUDA kernels yet; use another "
                         "optimizer, or the device \"cpu\"");
  }

  Status Prepare(UpdateList* list) override {
    SHARD_ASSIGN_OR_RETURN(list->prepared, UpdateTable::Make(memory_, *list));
    return Status();
  }

 private:
  Status CheckOfContext(CuStream stream) const {
    return context_->Run([&] {
      CuContext owner = nullptr;
      const CuResult result = context_->api().StreamGetCtx(stream, &owner);
      if (result == CuResult::kSuccess && owner == context_->handle()) {
        return Status();
      }
      return InvalidArgument(
          "the stream is not one of the primary context of ", name(),
          "; give a CUstream that was made while that device was current, or "
          "null for the legacy default stream");
    });
  }

  const std::shared_ptr<Context> context_;
  const std::shared_ptr<const Kernels> kernels_;
  const Memory memory_;
};

}  // namespace

StatusOr<std::shared_ptr<Device>> OpenDevice(std::string_view id) {
  SHARD_ASSIGN_OR_RETURN(const int ordinal, OrdinalOf(id));
  SHARD_ASSIGN_OR_RETURN(auto context, Context::Open(ordinal));
  SHARD_ASSIGN_OR_RETURN(auto kernels, Kernels::Load(context));
  SHARD_ASSIGN_OR_RETURN(Memory memory, Memory::Open(context));
  return std::shared_ptr<Device>(std::make_shared<CudaDevice>(
      std::move(context), std::move(kernels), std::move(memory)));
}

}  // namespace shard::cuda
