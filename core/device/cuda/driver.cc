// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <utility>

#include "core/base/strings.h"

namespace shard::cuda {

namespace {

constexpr char kLibrary[] = "libcuda.so.1";

constexpr char kRemedy[] =
    "; install NVIDIA's driver, and in a container give it the GPU "
    "(--gpus all)";

// Returns the code of an error, and what to do about it.
std::pair<StatusCode, std::string_view> Describe(CuResult result) {
  if (result == CuResult::kStreamCaptureInvalidated) {
    return {StatusCode::kFailedPrecondition,
            "; a call that the capture of a CUDA graph forbids, as one that "
            "allocates memory or waits, has made it invalid: leave the call "
            "out, and capture anew"};
  }
  if (result >= CuResult::kStreamCaptureUnsupported &&
      result <= CuResult::kCapturedEvent) {
    return {
        StatusCode::kFailedPrecondition,
        "; the host captures a CUDA graph: call libshard before the capture "
        "begins, or after it has ended"};
  }
  switch (result) {
    case CuResult::kOutOfMemory:
      return {StatusCode::kResourceExhausted,
              "; free memory of the GPU (nvidia-smi says who has it) or of the "
              "host, or plan for less (shardctl plan)"};
    case CuResult::kInvalidValue:
    case CuResult::kInvalidHandle:
    case CuResult::kInvalidContext:
      return {StatusCode::kInvalidArgument, ""};
    case CuResult::kNoDevice:
      return {StatusCode::kBackendUnavailable,
              "; look at nvidia-smi, and at CUDA_VISIBLE_DEVICES"};
    case CuResult::kInvalidDevice:
      return {StatusCode::kInvalidArgument, ""};
    case CuResult::kStubLibrary:
      return {StatusCode::kBackendUnavailable,
              "; the toolkit's stub was found before the driver: take its "
              "folder out of LD_LIBRARY_PATH"};
    case CuResult::kNotInitialized:
    case CuResult::kDeinitialized:
      return {StatusCode::kFailedPrecondition,
              "; the driver ends with the process, and works in no child of "
              "fork"};
    case CuResult::kInvalidImage:
    case CuResult::kNoBinaryForGpu:
    case CuResult::kInvalidPtx:
    case CuResult::kUnsupportedPtxVersion:
    case CuResult::kCallRequiresNewerDriver:
    case CuResult::kSystemDriverMismatch:
    case CuResult::kNotSupported:
      return {StatusCode::kBackendUnavailable, ""};
    case CuResult::kDeviceUnavailable:
      return {
          StatusCode::kBackendUnavailable,
          "; another process has the device for itself: look at nvidia-smi, "
          "and at its compute mode (nvidia-smi -c)"};
    case CuResult::kMpsConnectionFailed:
    case CuResult::kMpsRpcFailure:
    case CuResult::kMpsServerNotReady:
      return {StatusCode::kBackendUnavailable,
              "; look at nvidia-cuda-mps-control, which shares the device"};
    case CuResult::kNotPermitted:
      return {StatusCode::kFailedPrecondition, ""};
    default:
      // After most of these the device's context is of no use any more.
      return {StatusCode::kUnavailable,
              "; the device may be lost to this process: destroy what uses it, "
              "look at nvidia-smi and the kernel's log (Xid), and start anew"};
  }
}

// The symbols that a library lacks.
class Missing {
 public:
  void Add(const char* symbol) {
    if (++count_ == 1) first_ = symbol;
  }
  bool any() const { return count_ > 0; }
  // Returns " and lacks cuInit and 3 more".
  std::string Text() const {
    if (count_ == 0) return "";
    std::string text = StrCat(" and lacks ", first_);
    if (count_ > 1) StrAppend(&text, " and ", count_ - 1, " more");
    return text;
  }

 private:
  int count_ = 0;
  std::string_view first_;
};

template <typename Function>
void Find(void* library, const char* symbol, Function** function,
          Missing* missing) {
  *function = reinterpret_cast<Function*>(dlsym(library, symbol));
  if (*function == nullptr) missing->Add(symbol);
}

}  // namespace

std::string Driver::VersionText(int version) {
  return StrCat(version / 1000, ".", version % 1000 / 10);
}

Status Driver::ToStatus(CuResult result, std::string_view call) const {
  if (result == CuResult::kSuccess) return Status();
  const char* name = nullptr;
  const char* text = nullptr;
  // Neither knows errors of newer drivers.
  if (api_.GetErrorName(result, &name) != CuResult::kSuccess) name = nullptr;
  if (api_.GetErrorString(result, &text) != CuResult::kSuccess) text = nullptr;
  const auto [code, remedy] = Describe(result);
  return Status(
      code, StrCat(call, ": ", name == nullptr ? "unknown error" : name, " (",
                   static_cast<int>(result), ")", text == nullptr ? "" : ": ",
                   text == nullptr ? "" : text, remedy));
}

StatusOr<Driver> Driver::Open(int* version) {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = dlerror();
    return BackendUnavailable(
        "no CUDA driver: ", reason == nullptr ? kLibrary : reason, kRemedy);
  }
  Driver driver;
  Missing missing;
#define SHARD_CUDA_FIND(name, symbol, parameters) \
  Find(library, #symbol, &driver.api_.name, &missing);
  SHARD_CUDA_DRIVER(SHARD_CUDA_FIND)
#undef SHARD_CUDA_FIND
  if (driver.api_.DriverGetVersion != nullptr) {
    static_cast<void>(driver.api_.DriverGetVersion(&driver.version_));
  }
  *version = driver.version_;
  if (missing.any() || driver.version_ < kOldestVersion) {
    return BackendUnavailable(
        kLibrary, " is of CUDA ", VersionText(driver.version_), missing.Text(),
        "; libshard needs a driver for CUDA ", VersionText(kOldestVersion),
        " or later: update NVIDIA's driver");
  }
  SHARD_RETURN_IF_ERROR(
      driver.ToStatus(driver.api_.Init(0), "cuInit").WithContext(kLibrary));
  return driver;
}

StatusOr<const Driver*> Driver::Load(int* version) {
  int unused = 0;
  if (version == nullptr) version = &unused;
  *version = 0;
  // Never destroyed: devices may be, when the process ends.
  struct Loaded {
    std::mutex mutex;
    std::atomic<pid_t> owner = 0;
    Driver driver;
  };
  static Loaded* const loaded = new Loaded();
  const pid_t self = ::getpid();
  // Before the mutex, which a child of fork may find held for ever.
  if (const pid_t owner = loaded->owner.load(); owner != 0 && owner != self) {
    *version = loaded->driver.version_;
    return FailedPrecondition(
        "process ", self, " was forked from process ", owner,
        ", which had used CUDA before, and cannot use it; fork first, or start "
        "a new program (exec)");
  }
  const std::lock_guard<std::mutex> lock(loaded->mutex);
  if (loaded->owner.load() == self) {
    *version = loaded->driver.version_;
    return &loaded->driver;
  }
  // An error is not kept: the next call may find what is missing.
  SHARD_ASSIGN_OR_RETURN(loaded->driver, Open(version));
  loaded->owner.store(self);
  return &loaded->driver;
}

}  // namespace shard::cuda
