// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/context.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "core/base/strings.h"
#include "core/device/work_queue/forked.h"

namespace shard::cuda {

namespace {

// The contexts of the process that live. Never destroyed.
struct Registry {
  std::mutex mutex;
  std::map<int, std::weak_ptr<Context>> contexts;  // By ordinal.
};

Registry* TheRegistry() {
  static auto* const registry = new Registry();
  return registry;
}

}  // namespace

Context::Context(const Driver* driver, int ordinal)
    : driver_(driver),
      ordinal_(ordinal),
      name_(StrCat("cuda:", ordinal)),
      monitor_(MakeSharedUnlessForked<Monitor>()) {}

StatusOr<std::shared_ptr<Context>> Context::Open(int ordinal) {
  // First, because the registry is of no use in a child of fork.
  SHARD_ASSIGN_OR_RETURN(const Driver* const driver, Driver::Load());
  Registry* const registry = TheRegistry();
  const std::lock_guard<std::mutex> lock(registry->mutex);
  std::weak_ptr<Context>& known = registry->contexts[ordinal];
  if (auto context = known.lock()) return context;
  const pid_t owner = ::getpid();
  std::shared_ptr<Context> context(new Context(driver, ordinal),
                                   [owner](Context* it) {
                                     if (::getpid() == owner) delete it;
                                   });
  SHARD_RETURN_IF_ERROR(context->Retain().WithContext(context->name()));
  known = context;
  return context;
}

Status Context::Retain() {
  int count = 0;
  SHARD_CUDA_CALL(driver_, DeviceGetCount, &count);
  if (ordinal_ < 0 || ordinal_ >= count) {
    return InvalidArgument("the driver shows ", count, " device",
                           count == 1 ? "" : "s", ", numbered from 0",
                           "; look at nvidia-smi and CUDA_VISIBLE_DEVICES");
  }
  SHARD_CUDA_CALL(driver_, DeviceGet, &device_, ordinal_);
  int unified = 0;
  int multiprocessors = 0;
  SHARD_CUDA_CALL(driver_, DeviceGetAttribute, &unified,
                  CuDeviceAttribute::kUnifiedAddressing, device_);
  SHARD_CUDA_CALL(driver_, DeviceGetAttribute, &multiprocessors,
                  CuDeviceAttribute::kMultiprocessorCount, device_);
  if (unified == 0) {
    return BackendUnavailable(
        "the device shares no addresses with the host; libshard needs a "
        "device of compute capability 8.0 or later");
  }
  multiprocessors_ = static_cast<unsigned>(std::max(multiprocessors, 1));
  SHARD_CUDA_CALL(driver_, DevicePrimaryCtxRetain, &handle_, device_);
  return Status();
}

Context::~Context() {
  if (handle_ == nullptr) return;
  if (api().CtxPushCurrent(handle_) == CuResult::kSuccess) {
    for (const CuEvent event : events_) api().EventDestroy(event);
    CuContext popped = nullptr;
    api().CtxPopCurrent(&popped);
  }
  api().DevicePrimaryCtxRelease(device_);
}

StatusOr<CuEvent> Context::TakeEvent() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!events_.empty()) {
      const CuEvent event = events_.back();
      events_.pop_back();
      return event;
    }
    // So that ReturnEvent allocates nothing.
    events_.reserve(events_.capacity() + 1);
  }
  CuEvent event = nullptr;
  SHARD_CUDA_CALL(driver_, EventCreate, &event, kEventDisableTiming);
  return event;
}

void Context::ReturnEvent(CuEvent event) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  events_.push_back(event);
}

StatusOr<bool> Context::Await(CuEvent event, const Deadline& deadline,
                              const std::function<bool()>& stop) const {
  // Short work ends while the thread is at it; longer work costs little of a
  // core, and is seen at most a tenth of a millisecond late.
  constexpr int kSpins = 32;
  constexpr std::chrono::microseconds kLongest(100);
  std::chrono::microseconds pause(1);
  for (int i = 0;; ++i) {
    const CuResult result = api().EventQuery(event);
    if (result == CuResult::kSuccess) return true;
    if (result != CuResult::kNotReady) {
      return driver_->ToStatus(result, StrCat(name_, ": cuEventQuery"));
    }
    if (deadline.Expired() || (stop && stop())) return false;
    if (i < kSpins) continue;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongest);
  }
}

}  // namespace shard::cuda
