// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/context.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "core/base/strings.h"
#include "core/device/cuda/device_clock.h"
#include "core/device/work_queue/forked.h"

namespace shard::cuda {

namespace {

// The major number of the oldest compute capability that kernels are built for.
constexpr int kLeastMajor = 8;

}  // namespace

Context::Current::Current(const Context& context)
    : api_(context.api()), result_(Push(context)) {
  if (result_ != CuResult::kSuccess) return;
  is_relaxed_ = api_.ThreadExchangeCaptureMode(&mode_) == CuResult::kSuccess;
}

CuResult Context::Current::Push(const Context& context) {
  // Once more after an error: what frees memory has nobody to report one to,
  // and would lose the memory.
  const CuResult result = context.api().CtxPushCurrent(context.handle());
  if (result == CuResult::kSuccess) return result;
  return context.api().CtxPushCurrent(context.handle());
}

Context::Current::~Current() {
  if (result_ != CuResult::kSuccess) return;
  CuContext popped = nullptr;
  if (is_relaxed_) api_.ThreadExchangeCaptureMode(&mode_);
  api_.CtxPopCurrent(&popped);
}

Context::Context(const Driver* driver, int ordinal)
    : driver_(driver),
      ordinal_(ordinal),
      name_(StrCat("cuda:", ordinal)),
      monitor_(MakeSharedUnlessForked<Monitor>()),
      clock_(std::make_unique<DeviceClock>(this)) {}

StatusOr<std::shared_ptr<Context>> Context::Open(int ordinal) {
  SHARD_ASSIGN_OR_RETURN(const Driver* const driver, Driver::Load());
  const pid_t owner = ::getpid();
  std::shared_ptr<Context> context(new Context(driver, ordinal),
                                   [owner](Context* it) {
                                     if (::getpid() == owner) delete it;
                                   });
  SHARD_RETURN_IF_ERROR(context->Retain().WithContext(context->name()));
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
  int major = 0;
  int minor = 0;
  int unified = 0;
  int multiprocessors = 0;
  SHARD_CUDA_CALL(driver_, DeviceGetAttribute, &major,
                  CuDeviceAttribute::kComputeCapabilityMajor, device_);
  SHARD_CUDA_CALL(driver_, DeviceGetAttribute, &minor,
                  CuDeviceAttribute::kComputeCapabilityMinor, device_);
  SHARD_CUDA_CALL(driver_, DeviceGetAttribute, &unified,
                  CuDeviceAttribute::kUnifiedAddressing, device_);
  SHARD_CUDA_CALL(driver_, DeviceGetAttribute, &multiprocessors,
                  CuDeviceAttribute::kMultiprocessorCount, device_);
  if (major < kLeastMajor) {
    return BackendUnavailable("the device has compute capability ", major, ".",
                              minor, "; libshard needs ", kLeastMajor,
                              ".0 or later: use another GPU");
  }
  if (unified == 0) {
    return BackendUnavailable(
        "the device shares no addresses with the host, which libshard needs; "
        "use a 64-bit system");
  }
  multiprocessors_ = static_cast<unsigned>(std::max(multiprocessors, 1));
  SHARD_CUDA_CALL(driver_, DevicePrimaryCtxRetain, &handle_, device_);
  return Status();
}

Context::~Context() {
  if (handle_ == nullptr || is_abandoned()) return;
  {
    const Current current(*this);
    clock_->End();
    for (const EventPool& pool : events_) {
      for (const CuEvent event : pool.unused) api().EventDestroy(event);
    }
  }
  api().DevicePrimaryCtxRelease(device_);
}

StatusOr<CuEvent> Context::TakeEvent(EventKind kind) {
  const unsigned flags = kind == EventKind::kTimed ? 0 : kEventDisableTiming;
  const std::lock_guard<std::mutex> lock(mutex_);
  EventPool& pool = events_[static_cast<size_t>(kind)];
  if (!pool.unused.empty()) {
    const CuEvent event = pool.unused.back();
    pool.unused.pop_back();
    return event;
  }
  constexpr size_t kMostAhead = 16;
  const size_t more = std::clamp<size_t>(pool.total, 1, kMostAhead);
  // So that ReturnEvent allocates nothing.
  pool.unused.reserve(pool.total + more);
  CuEvent event = nullptr;
  SHARD_CUDA_CALL(driver_, EventCreate, &event, flags);
  ++pool.total;
  for (size_t i = 1; i < more; ++i) {
    CuEvent next = nullptr;
    // The one that is needed is there.
    if (api().EventCreate(&next, flags) != CuResult::kSuccess) break;
    ++pool.total;
    pool.unused.push_back(next);
  }
  return event;
}

void Context::ReturnEvent(CuEvent event, EventKind kind) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  events_[static_cast<size_t>(kind)].unused.push_back(event);
}

Status Context::OutOfMemory(std::string_view what, size_t bytes) const {
  size_t free = 0;
  size_t total = 0;
  SHARD_CUDA_CALL(driver_, MemGetInfo, &free, &total);
  return ResourceExhausted(
      what, ": ", FormatBytes(bytes), " (", bytes, " bytes) of memory of ",
      name_, ", which has ", FormatBytes(free), " free of ", FormatBytes(total),
      "; see what a plan needs before (shardctl plan), shard it over more "
      "ranks, or use a higher stage");
}

bool Context::IsLost() const {
  size_t free = 0;
  size_t total = 0;
  const CuResult result = api().MemGetInfo(&free, &total);
  // The context is not current where a call before has failed.
  return result != CuResult::kSuccess && result != CuResult::kInvalidContext;
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
