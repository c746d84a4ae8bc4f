// SPDX-License-Identifier: Apache-2.0
//
// The entry points of the fake driver for devices, contexts, streams and
// events.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <utility>

#include "tests/fake_cuda/call.h"

namespace shard::testing::fake_cuda {

namespace {

struct ErrorText {
  CuResult error;
  const char* name;
  const char* text;
};

// Tells the state of a stream's capture, and which it is where there is one.
CuResult LookUpCapture(Call* call, cuda::CuStream handle,
                       cuda::CuCaptureStatus* status, uint64_t* id) {
  Stream* stream = nullptr;
  const CuResult found =
      call->LookUpStream(call->current_handle(), handle, &stream);
  if (found != CuResult::kSuccess) return found;
  auto& captures = call->fake()->captures;
  if (!captures.empty() && stream->is_legacy) {
    return CuResult::kStreamCaptureImplicit;
  }
  const Capture* const capture = FindIn(&captures, HandleOf(handle));
  *status = capture == nullptr    ? cuda::CuCaptureStatus::kNone
            : capture->is_invalid ? cuda::CuCaptureStatus::kInvalidated
                                  : cuda::CuCaptureStatus::kActive;
  if (capture != nullptr) *id = capture->id;
  return CuResult::kSuccess;
}

const ErrorText* FindError(CuResult error) {
  static constexpr ErrorText kErrors[] = {
      {CuResult::kSuccess, "CUDA_SUCCESS", "no error"},
      {CuResult::kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
      {CuResult::kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
      {CuResult::kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED",
       "initialization error"},
      {CuResult::kNoDevice, "CUDA_ERROR_NO_DEVICE",
       "no CUDA-capable device is detected"},
      {CuResult::kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE",
       "invalid device ordinal"},
      {CuResult::kInvalidImage, "CUDA_ERROR_INVALID_IMAGE",
       "device kernel image is invalid"},
      {CuResult::kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT",
       "invalid device context"},
      {CuResult::kNoBinaryForGpu, "CUDA_ERROR_NO_BINARY_FOR_GPU",
       "no kernel image is available for execution on the device"},
      {CuResult::kEccUncorrectable, "CUDA_ERROR_ECC_UNCORRECTABLE",
       "uncorrectable ECC error encountered"},
      {CuResult::kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE",
       "invalid resource handle"},
      {CuResult::kNotFound, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
      {CuResult::kNotReady, "CUDA_ERROR_NOT_READY", "device not ready"},
      {CuResult::kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS",
       "an illegal memory access was encountered"},
      {CuResult::kLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED",
       "unspecified launch failure"},
      {CuResult::kNotSupported, "CUDA_ERROR_NOT_SUPPORTED",
       "operation not supported"},
      {CuResult::kStreamCaptureUnsupported,
       "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
       "operation not permitted when stream is capturing"},
      {CuResult::kStreamCaptureInvalidated,
       "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
       "operation failed due to a previous error during capture"},
      {CuResult::kStreamCaptureMerge, "CUDA_ERROR_STREAM_CAPTURE_MERGE",
       "operation would result in a merge of separate capture sequences"},
      {CuResult::kStreamCaptureIsolation, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
       "dependency created on uncaptured work in another stream"},
      {CuResult::kCapturedEvent, "CUDA_ERROR_CAPTURED_EVENT",
       "operation not permitted on an event last recorded in a capturing "
       "stream"},
      {CuResult::kStreamCaptureImplicit, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
       "operation would make the legacy stream depend on a capturing blocking "
       "stream"},
      {CuResult::kUnknown, "CUDA_ERROR_UNKNOWN", "unknown error"},
  };
  for (const ErrorText& it : kErrors) {
    if (it.error == error) return &it;
  }
  return nullptr;
}

}  // namespace

}  // namespace shard::testing::fake_cuda

namespace shard::cuda {

// NOLINTBEGIN
using namespace shard::testing::fake_cuda;
// NOLINTEND

CuResult cuInit(unsigned flags) {
  pid_t none = 0;
  if (!TheFake()->owner.compare_exchange_strong(none, ::getpid()) &&
      none != ::getpid()) {
    return CuResult::kNotInitialized;
  }
  SHARD_FAKE_CUDA_ENTER(cuInit);
  if (flags != 0) return CuResult::kInvalidValue;
  return fake->options.devices == 0 ? CuResult::kNoDevice : CuResult::kSuccess;
}

CuResult cuDriverGetVersion(int* version) {
  Fake* const fake = TheFake();
  const pid_t owner = fake->owner.load();
  if (owner != 0 && owner != ::getpid()) return CuResult::kNotInitialized;
  const std::lock_guard<std::mutex> lock(fake->mutex);
  ++fake->counters.calls["cuDriverGetVersion"];
  *version = fake->options.driver_version;
  return CuResult::kSuccess;
}

CuResult cuGetErrorName(CuResult error, const char** text) {
  const auto* const found = FindError(error);
  *text = found == nullptr ? nullptr : found->name;
  return found == nullptr ? CuResult::kInvalidValue : CuResult::kSuccess;
}

CuResult cuGetErrorString(CuResult error, const char** text) {
  const auto* const found = FindError(error);
  *text = found == nullptr ? nullptr : found->text;
  return found == nullptr ? CuResult::kInvalidValue : CuResult::kSuccess;
}

CuResult cuDeviceGetCount(int* count) {
  SHARD_FAKE_CUDA_ENTER(cuDeviceGetCount);
  *count = fake->options.devices;
  return CuResult::kSuccess;
}

CuResult cuDeviceGet(CuDevice* device, int ordinal) {
  SHARD_FAKE_CUDA_ENTER(cuDeviceGet);
  if (!IsDevice(*fake, ordinal)) return CuResult::kInvalidDevice;
  *device = ordinal;
  return CuResult::kSuccess;
}

CuResult cuDeviceGetName(char* name, int size, CuDevice device) {
  SHARD_FAKE_CUDA_ENTER(cuDeviceGetName);
  if (!IsDevice(*fake, device)) return CuResult::kInvalidDevice;
  if (size <= 0) return CuResult::kInvalidValue;
  std::strncpy(name, fake->options.device_name.c_str(),
               static_cast<size_t>(size));
  name[size - 1] = '\0';
  return CuResult::kSuccess;
}

CuResult cuDeviceGetUuid_v2(CuUuid* uuid, CuDevice device) {
  SHARD_FAKE_CUDA_ENTER(cuDeviceGetUuid_v2);
  if (!IsDevice(*fake, device)) return CuResult::kInvalidDevice;
  for (int i = 0; i < 16; ++i) uuid->bytes[i] = static_cast<char>(0xF0 + i);
  uuid->bytes[15] = static_cast<char>(device);
  return CuResult::kSuccess;
}

CuResult cuDeviceTotalMem_v2(size_t* bytes, CuDevice device) {
  SHARD_FAKE_CUDA_ENTER(cuDeviceTotalMem_v2);
  if (!IsDevice(*fake, device)) return CuResult::kInvalidDevice;
  *bytes = fake->options.memory_bytes;
  return CuResult::kSuccess;
}

CuResult cuDeviceGetAttribute(int* value, CuDeviceAttribute attribute,
                              CuDevice device) {
  SHARD_FAKE_CUDA_ENTER(cuDeviceGetAttribute);
  if (!IsDevice(*fake, device)) return CuResult::kInvalidDevice;
  const Options& options = fake->options;
  switch (attribute) {
    case CuDeviceAttribute::kMultiprocessorCount:
      *value = options.multiprocessors;
      return CuResult::kSuccess;
    case CuDeviceAttribute::kUnifiedAddressing:
      *value = options.unified_addressing ? 1 : 0;
      return CuResult::kSuccess;
    case CuDeviceAttribute::kComputeCapabilityMajor:
      *value = options.compute_major;
      return CuResult::kSuccess;
    case CuDeviceAttribute::kComputeCapabilityMinor:
      *value = options.compute_minor;
      return CuResult::kSuccess;
    case CuDeviceAttribute::kMemoryPoolsSupported:
      *value = options.memory_pools ? 1 : 0;
      return CuResult::kSuccess;
  }
  return CuResult::kInvalidValue;
}

CuResult cuDevicePrimaryCtxRetain(CuContext* context, CuDevice device) {
  SHARD_FAKE_CUDA_ENTER(cuDevicePrimaryCtxRetain);
  if (!IsDevice(*fake, device)) return CuResult::kInvalidDevice;
  Handle& handle = fake->primary[device];
  if (handle == 0) {
    handle = fake->MakeHandle();
    fake->contexts[handle] = {
        device, 0, fake->scheduler.AddStream(handle, device, true, false)};
  }
  ++fake->contexts[handle].retains;
  *context = reinterpret_cast<CuContext>(handle);
  return CuResult::kSuccess;
}

CuResult cuDevicePrimaryCtxRelease_v2(CuDevice device) {
  Call call("cuDevicePrimaryCtxRelease_v2");
  if (!call.frees()) return call.result();
  Fake* const fake = call.fake();
  if (!IsDevice(*fake, device)) return CuResult::kInvalidDevice;
  const Handle handle = fake->primary[device];
  if (handle == 0) return CuResult::kInvalidContext;
  Context& context = fake->contexts[handle];
  if (--context.retains == 0) {
    fake->scheduler.Drain(handle, call.lock());
    // Another thread may have retained it while this one waited.
    if (context.retains != 0) return call.result();
    fake->scheduler.Destroy(context.legacy.get());
    fake->contexts.erase(handle);
    fake->primary[device] = 0;
  }
  return call.result();
}

CuResult cuCtxPushCurrent_v2(CuContext context) {
  SHARD_FAKE_CUDA_ENTER(cuCtxPushCurrent_v2);
  const Handle handle = HandleOf(context);
  if (FindIn(&fake->contexts, handle) == nullptr) {
    return CuResult::kInvalidContext;
  }
  CurrentContexts(*fake)->push_back(handle);
  return CuResult::kSuccess;
}

CuResult cuCtxPopCurrent_v2(CuContext* context) {
  Call call("cuCtxPopCurrent_v2");
  if (!call.frees()) return call.result();
  auto& stack = *CurrentContexts(*call.fake());
  if (stack.empty()) return CuResult::kInvalidContext;
  *context = reinterpret_cast<CuContext>(stack.back());
  stack.pop_back();
  return call.result();
}

CuResult cuMemGetInfo_v2(size_t* free, size_t* total) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuMemGetInfo_v2);
  *total = fake->options.memory_bytes;
  *free = fake->FreeBytes(call.current()->device);
  return CuResult::kSuccess;
}

CuResult cuStreamCreate(CuStream* stream, unsigned flags) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuStreamCreate);
  if ((flags & ~kStreamNonBlocking) != 0) return CuResult::kInvalidValue;
  const Handle handle = fake->MakeHandle();
  fake->streams[handle] =
      fake->scheduler.AddStream(call.current_handle(), call.current()->device,
                                false, (flags & kStreamNonBlocking) == 0);
  *stream = reinterpret_cast<CuStream>(handle);
  return CuResult::kSuccess;
}

CuResult cuStreamDestroy_v2(CuStream stream) {
  Call call("cuStreamDestroy_v2");
  if (!call.frees()) return call.result();
  Fake* const fake = call.fake();
  const auto found = fake->streams.find(HandleOf(stream));
  if (found == fake->streams.end()) return CuResult::kInvalidHandle;
  fake->scheduler.Destroy(found->second.get());
  fake->streams.erase(found);
  return call.result();
}

CuResult cuStreamWaitEvent(CuStream handle, CuEvent event, unsigned flags) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuStreamWaitEvent);
  SHARD_FAKE_CUDA_FIND_STREAM(handle, stream);
  const Event* const found = FindIn(&fake->events, HandleOf(event));
  if (found == nullptr) return CuResult::kInvalidHandle;
  if (flags != 0) return CuResult::kInvalidValue;
  const auto from = reinterpret_cast<CuStream>(found->captured_in);
  if (fake->IsCaptured(handle)) {
    if (from == handle) return CuResult::kSuccess;
    fake->Invalidate(HandleOf(handle));
    fake->Invalidate(found->captured_in);
    return fake->IsCaptured(from) ? CuResult::kStreamCaptureMerge
                                  : CuResult::kStreamCaptureIsolation;
  }
  if (fake->IsInvalid(from)) return CuResult::kInvalidValue;
  if (found->captured_in != 0) {
    fake->Add(ViolationKind::kDrawnIn,
              "a stream waits for an event of a stream that is captured");
  }
  fake->scheduler.Enqueue(stream, "cuStreamWaitEvent", nullptr, found->record);
  return CuResult::kSuccess;
}

CuResult cuStreamGetCtx(CuStream stream, CuContext* context) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuStreamGetCtx);
  const Handle handle = HandleOf(stream);
  if (handle <= 1) {
    *context = reinterpret_cast<CuContext>(call.current_handle());
    return CuResult::kSuccess;
  }
  const auto* const found = FindIn(&fake->streams, handle);
  if (found == nullptr) return CuResult::kInvalidHandle;
  *context = reinterpret_cast<CuContext>((*found)->context);
  return CuResult::kSuccess;
}

CuResult cuStreamIsCapturing(CuStream handle, CuCaptureStatus* status) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuStreamIsCapturing);
  uint64_t id = 0;
  return LookUpCapture(&call, handle, status, &id);
}

CuResult cuStreamGetCaptureInfo(CuStream handle, CuCaptureStatus* status,
                                uint64_t* id) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuStreamGetCaptureInfo);
  return LookUpCapture(&call, handle, status, id);
}

CuResult cuThreadExchangeStreamCaptureMode(CuCaptureMode* mode) {
  SHARD_FAKE_CUDA_ENTER(cuThreadExchangeStreamCaptureMode);
  *mode = std::exchange(*CaptureMode(), *mode);
  return CuResult::kSuccess;
}

CuResult cuEventCreate(CuEvent* event, unsigned flags) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuEventCreate);
  if ((flags & ~kEventDisableTiming) != 0) return CuResult::kInvalidValue;
  const Handle handle = fake->MakeHandle();
  fake->events[handle].context = call.current_handle();
  fake->events[handle].is_timed = (flags & kEventDisableTiming) == 0;
  *event = reinterpret_cast<CuEvent>(handle);
  return CuResult::kSuccess;
}

CuResult cuEventDestroy_v2(CuEvent event) {
  Call call("cuEventDestroy_v2");
  if (!call.frees()) return call.result();
  return call.fake()->events.erase(HandleOf(event)) == 0
             ? CuResult::kInvalidHandle
             : call.result();
}

CuResult cuEventRecord(CuEvent event, CuStream handle) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuEventRecord);
  SHARD_FAKE_CUDA_FIND_STREAM(handle, stream);
  Event* const found = FindIn(&fake->events, HandleOf(event));
  if (found == nullptr) return CuResult::kInvalidHandle;
  if (found->context != call.current_handle()) return CuResult::kInvalidContext;
  found->captured_in = fake->IsCaptured(handle) ? HandleOf(handle) : 0;
  if (found->captured_in != 0) return CuResult::kSuccess;
  found->record = fake->scheduler.Enqueue(stream, "cuEventRecord", nullptr);
  found->queries = 0;
  return CuResult::kSuccess;
}

CuResult cuEventQuery(CuEvent event) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuEventQuery);
  Event* const found = FindIn(&fake->events, HandleOf(event));
  if (found == nullptr) return CuResult::kInvalidHandle;
  if (found->captured_in != 0) {
    fake->Invalidate(found->captured_in);
    return CuResult::kCapturedEvent;
  }
  // The event may be destroyed while this call waits.
  const std::shared_ptr<Operation> record = found->record;
  if (record == nullptr) return CuResult::kSuccess;
  // A host that has asked so often waits for the event, and does not just look.
  constexpr int kLooks = 8;
  if (!record->is_done) {
    const int queries = ++found->queries;
    if (queries > fake->options.queries_before_progress) {
      fake->scheduler.Need(record);
    }
    if (queries > kLooks) {
      fake->scheduler.AwaitShortly(record.get(), call.lock());
      if (call.is_lost()) {
        fake->scheduler.AwaitRunning(call.lock());
        return fake->lost;
      }
    }
    if (!record->is_done) return CuResult::kNotReady;
  }
  fake->scheduler.TellHost(*record);
  return CuResult::kSuccess;
}

CuResult cuEventElapsedTime(float* milliseconds, CuEvent from, CuEvent to) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuEventElapsedTime);
  std::chrono::steady_clock::time_point ends[2];
  for (const int i : {0, 1}) {
    const Event* const found =
        FindIn(&fake->events, HandleOf(i == 0 ? from : to));
    if (found == nullptr || !found->is_timed || found->captured_in != 0 ||
        found->record == nullptr) {
      return CuResult::kInvalidHandle;
    }
    if (!found->record->is_done) return CuResult::kNotReady;
    ends[i] = found->record->end;
  }
  *milliseconds =
      std::chrono::duration<float, std::milli>(ends[1] - ends[0]).count();
  return CuResult::kSuccess;
}

}  // namespace shard::cuda
