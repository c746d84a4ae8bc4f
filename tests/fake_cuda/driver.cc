// SPDX-License-Identifier: Apache-2.0
//
// The entry points of the fake driver.

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "tests/fake_cuda/fake.h"

// The declarations, which say what is exported.
#define SHARD_FAKE_CUDA_DECLARE(name, symbol, parameters) \
  namespace shard::cuda {                                 \
  extern "C" __attribute__((visibility("default")))       \
  CuResult symbol parameters;                             \
  }
SHARD_CUDA_DRIVER(SHARD_FAKE_CUDA_DECLARE)
#undef SHARD_FAKE_CUDA_DECLARE

namespace shard::testing::fake_cuda {

using cuda::CuCaptureMode;
using cuda::CuResult;

namespace {

// Returns "cuMemAlloc" for "cuMemAlloc_v2".
std::string WithoutVersion(std::string symbol) {
  const size_t end = symbol.size() < 3 ? 0 : symbol.size() - 3;
  if (symbol.compare(end, 3, "_v2") == 0) symbol.resize(end);
  return symbol;
}

// What the calling thread may do while work is captured.
CuCaptureMode* CaptureMode() {
  thread_local CuCaptureMode mode = CuCaptureMode::kGlobal;
  return &mode;
}

// Returns whether a call is forbidden while work is captured, but for threads
// that have said that they know what they do.
bool IsUnsafe(const std::string& symbol) {
  static constexpr const char* kUnsafe[] = {
      "cuEventQuery",  "cuMemAlloc",     "cuMemFree",
      "cuMemFreeHost", "cuMemHostAlloc", "cuModuleLoadData"};
  return std::any_of(std::begin(kUnsafe), std::end(kUnsafe),
                     [&](const char* it) { return symbol == it; });
}

// What each call does first: it takes the fake's mutex, counts, and fails where
// it is to.
class Call {
 public:
  explicit Call(const char* symbol) : fake_(TheFake()) {
    // First, because the mutex may be held for ever in a child of fork.
    if (fake_->owner.load() != ::getpid()) {
      ++fake_->calls_of_child;
      result_ = CuResult::kNotInitialized;
      return;
    }
    lock_ = std::unique_lock<std::mutex>(fake_->mutex);
    const std::string name = WithoutVersion(symbol);
    ++fake_->counters.calls[name];
    for (Failure& it : fake_->failures) {
      if (it.calls == 0 || (!it.symbol.empty() && it.symbol != name)) {
        continue;
      }
      if (--it.calls != 0) continue;
      result_ = it.result;
      if (it.loses) fake_->Lose(it.result);
    }
    if (fake_->captured != 0 && *CaptureMode() != CuCaptureMode::kRelaxed &&
        IsUnsafe(name)) {
      result_ = CuResult::kStreamCaptureUnsupported;
    }
    if (fake_->lost == CuResult::kSuccess) return;
    result_ = fake_->lost;
    // A caller that is told of the loss may free what the device used.
    fake_->scheduler.AwaitRunning(&lock_);
  }

  bool ok() const { return result_ == CuResult::kSuccess; }
  // Whether a call that frees something does so: even one that fails, since the
  // driver's may return the error of earlier work.
  bool frees() const { return lock_.owns_lock(); }
  bool is_lost() const { return fake_->lost != CuResult::kSuccess; }
  CuResult result() const { return result_; }
  Fake* fake() const { return fake_; }
  std::unique_lock<std::mutex>* lock() { return &lock_; }

  // Returns the current context, or null.
  Context* current() const {
    const auto& stack = *CurrentContexts(*fake_);
    if (stack.empty()) return nullptr;
    const auto found = fake_->contexts.find(stack.back());
    return found == fake_->contexts.end() ? nullptr : &found->second;
  }
  Handle current_handle() const { return CurrentContexts(*fake_)->back(); }

  // Finds a stream of the current context.
  CuResult FindStream(cuda::CuStream handle, Stream** stream) const {
    const Context* const context = current();
    if (context == nullptr) return CuResult::kInvalidContext;
    const auto value = reinterpret_cast<Handle>(handle);
    if (value <= 1) {
      *stream = context->legacy.get();
      return CuResult::kSuccess;
    }
    const auto found = fake_->streams.find(value);
    if (found == fake_->streams.end()) return CuResult::kInvalidHandle;
    *stream = found->second.get();
    return (*stream)->context == current_handle() ? CuResult::kSuccess
                                                  : CuResult::kInvalidContext;
  }

 private:
  Fake* const fake_;
  std::unique_lock<std::mutex> lock_;
  CuResult result_ = CuResult::kSuccess;
};

template <typename Pointer>
Handle HandleOf(Pointer handle) {
  return reinterpret_cast<Handle>(handle);
}

template <typename Map>
auto* FindIn(Map* map, Handle handle) {
  const auto found = map->find(handle);
  return found == map->end() ? nullptr : &found->second;
}

bool IsDevice(const Fake& fake, int device) {
  return device >= 0 && device < fake.options.devices;
}

bool IsPinned(const Allocation* allocation) {
  return allocation->kind == MemoryKind::kPinned;
}

// Makes an allocation, unless there is no room. `pool`: its pool, or null.
CuResult Allocate(Fake* fake, MemoryKind kind, int device, Handle context,
                  size_t bytes, Pool* pool, Allocation** allocation) {
  if (bytes == 0) return CuResult::kInvalidValue;
  const bool pinned = kind == MemoryKind::kPinned;
  size_t& used = fake->used_bytes[pinned ? -1 : device];
  const size_t free =
      pinned ? fake->options.pinned_bytes - used : fake->FreeBytes(device);
  const size_t kept = pool == nullptr ? 0 : std::min(bytes, pool->KeptBytes());
  if (bytes - kept > free) return CuResult::kOutOfMemory;
  *allocation = fake->memory.Allocate(kind, device, context, bytes);
  if (*allocation == nullptr) return CuResult::kOutOfMemory;
  for (size_t left = kept; left > 0;) {
    Pool::Kept& last = pool->kept.back();
    const size_t part = std::min(left, last.bytes);
    left -= part;
    last.bytes -= part;
    if (last.bytes == 0) pool->kept.pop_back();
  }
  used += bytes;
  return CuResult::kSuccess;
}

void MarkFreed(Fake* fake, Allocation* allocation, const std::string& by) {
  allocation->is_freed = true;
  allocation->freed_by = by;
  fake->used_bytes[IsPinned(allocation) ? -1 : allocation->device] -=
      allocation->end - allocation->begin;
}

void Release(Fake* fake, Allocation* allocation) {
  if (!fake->memory.Release(allocation)) return;
  fake->Add(ViolationKind::kOverrun,
            "something was written behind the end of the " +
                std::to_string(allocation->end - allocation->begin) +
                " bytes that are freed by " + allocation->freed_by);
}

// Finds an allocation that begins at `begin` and is alive.
Allocation* FindWhole(Fake* fake, uintptr_t begin) {
  Allocation* const found = fake->memory.Find(begin);
  if (found == nullptr || found->begin != begin) return nullptr;
  if (!found->is_freed) return found;
  fake->Add(ViolationKind::kUseAfterFree,
            "memory is freed again that was freed by " + found->freed_by);
  return nullptr;
}

// Frees memory while the host waits for the device.
CuResult FreeNow(Call* call, const char* symbol, uintptr_t begin, bool pinned) {
  Fake* const fake = call->fake();
  Allocation* const allocation = FindWhole(fake, begin);
  if (allocation == nullptr || IsPinned(allocation) != pinned) {
    return CuResult::kInvalidValue;
  }
  const Actor actor = fake->scheduler.HostActor(symbol);
  const size_t before = fake->violations.size();
  // What was dropped with a lost device uses nothing any more.
  if (!call->is_lost()) {
    fake->memory.Check(allocation, Use::kFree, begin, allocation->end, actor,
                       fake->scheduler.host_clock(), &fake->violations);
  }
  const bool is_unordered = fake->violations.size() != before;
  MarkFreed(fake, allocation, actor.name);
  ++fake->counters.waits_of_host;
  // Drivers do, but do not promise it: the host has learned nothing.
  fake->scheduler.Drain(allocation->context, call->lock());
  // Other devices may still use what has no order. They would fault, and the
  // test would not tell why.
  if (!is_unordered) Release(fake, allocation);
  return call->result();
}

void CountCopy(Fake* fake, const Allocation* to, const Allocation* from,
               size_t bytes) {
  Counters& counters = fake->counters;
  const bool to_device = to != nullptr && !IsPinned(to);
  const bool from_device = from != nullptr && !IsPinned(from);
  Traffic& traffic =
      to_device ? (from_device ? counters.on_device : counters.to_device)
                : (from_device ? counters.to_host : counters.on_host);
  ++traffic.count;
  traffic.bytes += bytes;
  if (to == nullptr || from == nullptr) ++counters.pageable_copies;
}

// Notes what a launch accesses. Returns false where the kernel would fault.
bool CheckLaunch(Fake* fake, const cuda::HostKernel& kernel,
                 const std::vector<uint64_t>& args,
                 const Operation& operation) {
  bool valid = true;
  const std::string& name = operation.actor.name;
  const auto use = [&](uintptr_t begin, size_t bytes, Use how) {
    Allocation* allocation = nullptr;
    if (!Resolve(fake, name, begin, bytes, &allocation)) {
      valid = false;
    } else if (allocation != nullptr) {
      fake->memory.Check(allocation, how, begin, begin + bytes, operation.actor,
                         operation.clock, &fake->violations);
    } else {
      // The host's build of the kernel reaches it.
      fake->Add(ViolationKind::kUnreachable,
                name + " uses memory of the host that is not pinned");
    }
  };
  for (const uint64_t word : args) {
    // A small number, beside padding that holds whatever was there before.
    if (static_cast<uint32_t>(word) < 16) continue;
    const Allocation* const found = fake->memory.Find(word);
    // A pointer to the end is used by none.
    if (found != nullptr && word < found->end) use(word, 1, Use::kKernel);
  }
  const auto described = fake->descriptions.find(kernel.name);
  if (described == fake->descriptions.end() || !valid) return valid;
  // An operation that runs has opened the memory, and closes it.
  const bool opens = !fake->scheduler.is_running();
  if (opens) fake->memory.Protect(true);
  const std::vector<Access> accesses = described->second(args.data());
  if (opens) fake->memory.Protect(false);
  for (const Access& access : accesses) {
    use(reinterpret_cast<uintptr_t>(access.memory), access.bytes,
        access.writes ? Use::kWrite : Use::kRead);
  }
  return valid;
}

const cuda::HostKernel* FindKernel(const char* name) {
  for (const cuda::HostKernel& it : cuda::HostKernels()) {
    if (std::strcmp(it.name, name) == 0) return &it;
  }
  return nullptr;
}

struct ErrorText {
  CuResult error;
  const char* name;
  const char* text;
};

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

bool Resolve(Fake* fake, const std::string& what, uintptr_t begin, size_t bytes,
             Allocation** allocation) {
  *allocation = fake->memory.Find(begin);
  if (*allocation == nullptr) return true;
  if ((*allocation)->is_freed) {
    fake->Add(
        ViolationKind::kUseAfterFree,
        what + " uses memory that was freed by " + (*allocation)->freed_by);
    return false;
  }
  if (begin <= (*allocation)->end && bytes <= (*allocation)->end - begin) {
    return true;
  }
  fake->Add(ViolationKind::kOutOfBounds,
            what + " uses " + std::to_string(bytes) + " bytes from byte " +
                std::to_string(begin - (*allocation)->begin) + " of " +
                std::to_string((*allocation)->end - (*allocation)->begin));
  return false;
}

}  // namespace shard::testing::fake_cuda

namespace shard::cuda {

// NOLINTBEGIN
using namespace shard::testing::fake_cuda;
// NOLINTEND

// Returns from an entry point what its Call is to return.
#define SHARD_FAKE_CUDA_ENTER(symbol)   \
  Call call(#symbol);                   \
  if (!call.ok()) return call.result(); \
  Fake* const fake = call.fake();       \
  static_cast<void>(fake)
// The same, where a context must be current.
#define SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(symbol) \
  SHARD_FAKE_CUDA_ENTER(symbol);                 \
  if (call.current() == nullptr) return CuResult::kInvalidContext
// The same, where `stream` becomes the Stream of a handle.
#define SHARD_FAKE_CUDA_FIND_STREAM(handle, stream)            \
  Stream* stream = nullptr;                                    \
  if (const CuResult found = call.FindStream(handle, &stream); \
      found != CuResult::kSuccess) {                           \
    return found;                                              \
  }

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

CuResult cuModuleLoadData(CuModule* module, const void* image) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuModuleLoadData);
  if (image == nullptr) return CuResult::kInvalidValue;
  const Handle handle = fake->MakeHandle();
  fake->modules[handle] = {call.current_handle()};
  *module = reinterpret_cast<CuModule>(handle);
  return CuResult::kSuccess;
}

CuResult cuModuleUnload(CuModule module) {
  Call call("cuModuleUnload");
  if (!call.frees()) return call.result();
  Fake* const fake = call.fake();
  const Handle handle = HandleOf(module);
  if (fake->modules.erase(handle) == 0) return CuResult::kInvalidHandle;
  std::erase_if(fake->functions, [handle](const auto& it) {
    return it.second.module == handle;
  });
  return call.result();
}

CuResult cuModuleGetFunction(CuFunction* function, CuModule module,
                             const char* name) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuModuleGetFunction);
  const Handle from = HandleOf(module);
  const Module* const found = FindIn(&fake->modules, from);
  if (found == nullptr) return CuResult::kInvalidHandle;
  if (found->context != call.current_handle()) return CuResult::kInvalidContext;
  const HostKernel* const kernel = FindKernel(name);
  if (kernel == nullptr) return CuResult::kNotFound;
  const Handle handle = fake->MakeHandle();
  fake->functions[handle] = {from, kernel};
  *function = reinterpret_cast<CuFunction>(handle);
  return CuResult::kSuccess;
}

CuResult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks,
                                                     CuFunction function,
                                                     int threads,
                                                     size_t /*shared_bytes*/) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuOccupancyMaxActiveBlocksPerMultiprocessor);
  if (FindIn(&fake->functions, HandleOf(function)) == nullptr) {
    return CuResult::kInvalidHandle;
  }
  if (threads <= 0 || threads > 1024) return CuResult::kInvalidValue;
  *blocks = fake->options.blocks_per_multiprocessor;
  return CuResult::kSuccess;
}

CuResult cuLaunchKernel(CuFunction function, unsigned grid_x, unsigned grid_y,
                        unsigned grid_z, unsigned block_x, unsigned block_y,
                        unsigned block_z, unsigned shared_bytes,
                        CuStream handle, void** params, void** extra) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuLaunchKernel);
  const Function* const found = FindIn(&fake->functions, HandleOf(function));
  if (found == nullptr) return CuResult::kInvalidHandle;
  if (fake->modules[found->module].context != call.current_handle()) {
    return CuResult::kInvalidContext;
  }
  SHARD_FAKE_CUDA_FIND_STREAM(handle, stream);
  constexpr unsigned kMostShared = 48 << 10;  // That need not be asked for.
  // The host's kernels are of one dimension.
  if (grid_x == 0 || grid_y != 1 || grid_z != 1 || block_x == 0 ||
      block_x > 1024 || block_x % 32 != 0 || block_y != 1 || block_z != 1 ||
      shared_bytes > kMostShared || params == nullptr || params[0] == nullptr ||
      extra != nullptr) {
    return CuResult::kInvalidValue;
  }
  if (fake->IsCaptured(handle)) return CuResult::kSuccess;
  const HostKernel& kernel = *found->kernel;
  std::vector<uint64_t> args((kernel.arg_bytes + 7) / 8);
  std::memcpy(args.data(), params[0], kernel.arg_bytes);
  const auto operation = fake->scheduler.Enqueue(stream, kernel.name, nullptr);
  ++fake->counters.launches[kernel.name];
  if (CheckLaunch(fake, kernel, args, *operation)) {
    operation->run = [&kernel, args, grid_x, block_x] {
      kernel.run(args.data(), grid_x, block_x);
    };
  }
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
  if (fake->IsCaptured(handle)) {
    return found->is_captured ? CuResult::kSuccess
                              : CuResult::kStreamCaptureIsolation;
  }
  if (found->is_captured) {
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
  SHARD_FAKE_CUDA_FIND_STREAM(handle, stream);
  const bool any = fake->captured != 0;
  if (any && stream->is_legacy) return CuResult::kStreamCaptureImplicit;
  *status = fake->IsCaptured(handle) ? CuCaptureStatus::kActive
                                     : CuCaptureStatus::kNone;
  return CuResult::kSuccess;
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
  found->is_captured = fake->IsCaptured(handle);
  if (found->is_captured) return CuResult::kSuccess;
  found->record = fake->scheduler.Enqueue(stream, "cuEventRecord", nullptr);
  found->queries = 0;
  return CuResult::kSuccess;
}

CuResult cuEventQuery(CuEvent event) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuEventQuery);
  Event* const found = FindIn(&fake->events, HandleOf(event));
  if (found == nullptr) return CuResult::kInvalidHandle;
  if (found->is_captured) return CuResult::kCapturedEvent;
  if (found->record == nullptr) return CuResult::kSuccess;
  if (found->record->is_done) {
    fake->scheduler.TellHost(*found->record);
    return CuResult::kSuccess;
  }
  if (++found->queries > fake->options.queries_before_progress) {
    fake->scheduler.Need(found->record);
  }
  return CuResult::kNotReady;
}

CuResult cuMemAlloc_v2(CuPointer* memory, size_t bytes) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuMemAlloc_v2);
  Allocation* allocation = nullptr;
  const CuResult result =
      Allocate(fake, MemoryKind::kDevice, call.current()->device,
               call.current_handle(), bytes, nullptr, &allocation);
  if (result == CuResult::kSuccess) *memory = allocation->begin;
  return result;
}

CuResult cuMemFree_v2(CuPointer memory) {
  Call call("cuMemFree_v2");
  if (!call.frees()) return call.result();
  if (!call.is_lost() && call.current() == nullptr)
    return CuResult::kInvalidContext;
  return FreeNow(&call, "cuMemFree", memory, false);
}

CuResult cuMemPoolCreate(CuMemoryPool* pool, const CuMemoryPoolProps* props) {
  SHARD_FAKE_CUDA_ENTER(cuMemPoolCreate);
  if (!fake->options.memory_pools) return CuResult::kNotSupported;
  if (props->allocation_type != 1 || props->location_type != 1 ||
      props->handle_types != 0) {
    return CuResult::kInvalidValue;
  }
  if (!IsDevice(*fake, props->location_id)) return CuResult::kInvalidDevice;
  const Handle handle = fake->MakeHandle();
  fake->pools[handle].device = props->location_id;
  *pool = reinterpret_cast<CuMemoryPool>(handle);
  return CuResult::kSuccess;
}

CuResult cuMemPoolDestroy(CuMemoryPool pool) {
  Call call("cuMemPoolDestroy");
  if (!call.frees()) return call.result();
  return call.fake()->pools.erase(HandleOf(pool)) == 0 ? CuResult::kInvalidValue
                                                       : call.result();
}

CuResult cuMemPoolTrimTo(CuMemoryPool pool, size_t bytes) {
  SHARD_FAKE_CUDA_ENTER(cuMemPoolTrimTo);
  Pool* const found = FindIn(&fake->pools, HandleOf(pool));
  if (found == nullptr) return CuResult::kInvalidValue;
  if (bytes != 0) return CuResult::kNotSupported;  // Of the fake.
  const Clock& host = fake->scheduler.host_clock();
  std::erase_if(found->kept, [&host](const Pool::Kept& it) {
    return host.Has(it.free.stream, it.free.number);
  });
  return CuResult::kSuccess;
}

CuResult cuMemAllocFromPoolAsync(CuPointer* memory, size_t bytes,
                                 CuMemoryPool pool, CuStream handle) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuMemAllocFromPoolAsync);
  SHARD_FAKE_CUDA_FIND_STREAM(handle, stream);
  Pool* const found = FindIn(&fake->pools, HandleOf(pool));
  if (found == nullptr) return CuResult::kInvalidValue;
  Allocation* allocation = nullptr;
  const CuResult result = Allocate(fake, MemoryKind::kPool, found->device,
                                   stream->context, bytes, found, &allocation);
  if (result != CuResult::kSuccess) return result;
  allocation->pool = HandleOf(pool);
  const auto operation =
      fake->scheduler.Enqueue(stream, "cuMemAllocFromPoolAsync", nullptr);
  fake->memory.Check(allocation, Use::kAllocate, allocation->begin,
                     allocation->end, operation->actor, operation->clock,
                     &fake->violations);
  *memory = allocation->begin;
  return CuResult::kSuccess;
}

CuResult cuMemFreeAsync(CuPointer memory, CuStream handle) {
  Call call("cuMemFreeAsync");
  if (!call.frees()) return call.result();
  Fake* const fake = call.fake();
  SHARD_FAKE_CUDA_FIND_STREAM(handle, stream);
  Allocation* const allocation = FindWhole(fake, memory);
  if (allocation == nullptr || allocation->kind != MemoryKind::kPool) {
    return CuResult::kInvalidValue;
  }
  if (call.is_lost()) {
    MarkFreed(fake, allocation, "cuMemFreeAsync");
    return call.result();
  }
  const auto operation =
      fake->scheduler.Enqueue(stream, "cuMemFreeAsync", nullptr);
  const size_t before = fake->violations.size();
  fake->memory.Check(allocation, Use::kFree, allocation->begin, allocation->end,
                     operation->actor, operation->clock, &fake->violations);
  MarkFreed(fake, allocation, operation->actor.name);
  if (Pool* const pool = FindIn(&fake->pools, allocation->pool)) {
    pool->kept.push_back(
        {operation->actor, allocation->end - allocation->begin});
  }
  // What is not ordered before it would fault, and the test would not tell why.
  if (fake->violations.size() != before) return call.result();
  operation->run = [fake, allocation] {
    const std::lock_guard<std::mutex> lock(fake->mutex);
    Release(fake, allocation);
  };
  return call.result();
}

CuResult cuMemHostAlloc(void** memory, size_t bytes, unsigned flags) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuMemHostAlloc);
  if ((flags & ~(kHostAllocPortable | kHostAllocDeviceMap)) != 0) {
    return CuResult::kInvalidValue;
  }
  Allocation* allocation = nullptr;
  const CuResult result =
      Allocate(fake, MemoryKind::kPinned, call.current()->device,
               call.current_handle(), bytes, nullptr, &allocation);
  if (result == CuResult::kSuccess) {
    *memory = reinterpret_cast<void*>(allocation->begin);
  }
  return result;
}

CuResult cuMemFreeHost(void* memory) {
  Call call("cuMemFreeHost");
  if (!call.frees()) return call.result();
  if (!call.is_lost() && call.current() == nullptr)
    return CuResult::kInvalidContext;
  return FreeNow(&call, "cuMemFreeHost", reinterpret_cast<uintptr_t>(memory),
                 true);
}

CuResult cuMemcpyAsync(CuPointer to, CuPointer from, size_t bytes,
                       CuStream handle) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuMemcpyAsync);
  SHARD_FAKE_CUDA_FIND_STREAM(handle, stream);
  if (bytes == 0 || fake->IsCaptured(handle)) return CuResult::kSuccess;
  if (to == 0 || from == 0) return CuResult::kInvalidValue;
  const std::string name =
      "cuMemcpyAsync of " + std::to_string(bytes) + " bytes";
  Allocation* target = nullptr;
  Allocation* source = nullptr;
  if (!Resolve(fake, name, to, bytes, &target) ||
      !Resolve(fake, name, from, bytes, &source)) {
    return CuResult::kInvalidValue;
  }
  const auto operation =
      fake->scheduler.Enqueue(stream, name, [to, from, bytes] {
        std::memmove(reinterpret_cast<void*>(to),
                     reinterpret_cast<const void*>(from), bytes);
      });
  if (source != nullptr) {
    fake->memory.Check(source, Use::kRead, from, from + bytes, operation->actor,
                       operation->clock, &fake->violations);
  }
  if (target != nullptr) {
    fake->memory.Check(target, Use::kWrite, to, to + bytes, operation->actor,
                       operation->clock, &fake->violations);
  }
  CountCopy(fake, target, source, bytes);
  return CuResult::kSuccess;
}

CuResult cuMemsetD8Async(CuPointer to, unsigned char value, size_t bytes,
                         CuStream handle) {
  SHARD_FAKE_CUDA_ENTER_IN_CONTEXT(cuMemsetD8Async);
  SHARD_FAKE_CUDA_FIND_STREAM(handle, stream);
  if (bytes == 0 || fake->IsCaptured(handle)) return CuResult::kSuccess;
  const std::string name =
      "cuMemsetD8Async of " + std::to_string(bytes) + " bytes";
  Allocation* target = nullptr;
  if (!Resolve(fake, name, to, bytes, &target)) return CuResult::kInvalidValue;
  // A device reaches no memory of the host but what is pinned.
  if (target == nullptr) return CuResult::kInvalidValue;
  const auto operation =
      fake->scheduler.Enqueue(stream, name, [to, value, bytes] {
        std::memset(reinterpret_cast<void*>(to), value, bytes);
      });
  fake->memory.Check(target, Use::kWrite, to, to + bytes, operation->actor,
                     operation->clock, &fake->violations);
  ++fake->counters.memsets.count;
  fake->counters.memsets.bytes += bytes;
  return CuResult::kSuccess;
}

CuResult cuPointerGetAttribute(void* value, CuPointerAttribute attribute,
                               CuPointer pointer) {
  SHARD_FAKE_CUDA_ENTER(cuPointerGetAttribute);
  const Allocation* const found = fake->memory.Find(pointer);
  if (found == nullptr || found->is_freed || pointer >= found->end) {
    return CuResult::kInvalidValue;
  }
  switch (attribute) {
    case CuPointerAttribute::kMemoryType:
      *static_cast<CuMemoryType*>(value) =
          IsPinned(found) ? CuMemoryType::kHost : CuMemoryType::kDevice;
      return CuResult::kSuccess;
    case CuPointerAttribute::kDeviceOrdinal:
      *static_cast<int*>(value) = found->device;
      return CuResult::kSuccess;
  }
  return CuResult::kInvalidValue;
}

}  // namespace shard::cuda
