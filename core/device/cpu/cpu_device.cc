// SPDX-License-Identifier: Apache-2.0

#include "core/device/cpu/cpu_device.h"

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/mapping.h"
#include "core/base/strings.h"
#include "core/device/cpu/inline_stream.h"
#include "core/device/cpu/worker_stream.h"
#include "core/device/host_pointer.h"
#include "core/device/work_queue/forked.h"
#include "kernels/cpu/blas.h"

namespace shard::cpu {

namespace {

// Returns the stream's name: at most 15 characters, as for names of threads.
constexpr std::string_view NameOf(StreamKind kind) {
  return kind == StreamKind::kCompute ? "shard-compute" : "shard-comm";
}

class CpuDevice final : public Device {
 public:
  CpuDevice(std::string name, bool async, const Pauses& pauses)
      : name_(std::move(name)),
        async_(async),
        pauses_(pauses),
        monitor_(MakeSharedUnlessForked<Monitor>()),
        blas_(std::make_shared<std::optional<Blas>>()) {}

  const std::string& name() const override { return name_; }

  StatusOr<DeviceMemory> Allocate(size_t bytes,
                                  std::string_view what) override {
    if (bytes == 0) return DeviceMemory();
    StatusOr<Mapping> pages = Mapping::Anonymous(bytes);
    if (!pages.ok()) return pages.status().WithContext(what);
    auto owner = std::make_shared<Mapping>(*std::move(pages));
    std::byte* const data = owner->data();
    return DeviceMemory(data, bytes, std::move(owner));
  }

  bool IsHostMemory() const override { return true; }
  bool ReachesSharedMemory() const override { return true; }

  StatusOr<DeviceMemory> AllocateHost(size_t bytes,
                                      std::string_view what) override {
    return Allocate(bytes, what);
  }

  StatusOr<std::unique_ptr<Stream>> CreateStream(StreamKind kind) override {
    if (!async_ && kind == StreamKind::kCompute) {
      return std::unique_ptr<Stream>(
          std::make_unique<InlineStream>(NameOf(kind), blas_));
    }
    Pauses pauses = pauses_;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      // Far from the numbers of other streams, which count on from their seeds.
      pauses.seed ^= ++num_streams_ << 32;
    }
    SHARD_ASSIGN_OR_RETURN(auto queue,
                           WorkQueue::Start(monitor_, NameOf(kind), pauses));
    return std::unique_ptr<Stream>(
        std::make_unique<WorkerStream>(std::move(queue), blas_));
  }

  StatusOr<std::shared_ptr<Stream>> WrapStream(void* native) override {
    if (native != nullptr) {
      return InvalidArgument(
          "'", name_,
          "' knows no streams that a host made; leave the stream null");
    }
    return std::shared_ptr<Stream>(
        std::make_shared<InlineStream>("shard-host", blas_));
  }

  Status CheckPlace(const void* memory, MemoryPlace) const override {
    return CheckHostPointer(memory);
  }

  StatusOr<std::string> LoadBlas() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    // Never changed once it is set, because streams read it without the lock.
    if (!*blas_) {
      SHARD_ASSIGN_OR_RETURN(*blas_, Blas::Load());
    }
    return (*blas_)->name();
  }

 private:
  const std::string name_;
  const bool async_;
  const Pauses pauses_;
  const std::shared_ptr<Monitor> monitor_;
  std::mutex mutex_;
  uint64_t num_streams_ = 0;                         // GUARDED_BY(mutex_)
  const std::shared_ptr<std::optional<Blas>> blas_;  // Written under mutex_.
};

}  // namespace

StatusOr<std::shared_ptr<Device>> OpenDevice() {
  return std::shared_ptr<Device>(
      std::make_shared<CpuDevice>("cpu", false, Pauses()));
}

StatusOr<std::shared_ptr<Device>> OpenAsyncDevice(const Pauses& pauses) {
  return std::shared_ptr<Device>(std::make_shared<CpuDevice>(
      StrCat("cpu-async?max_delay=", pauses.longest,
             "&seed=", static_cast<int64_t>(pauses.seed)),
      true, pauses));
}

}  // namespace shard::cpu
