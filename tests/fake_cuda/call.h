// SPDX-License-Identifier: Apache-2.0
//
// What the entry points of the fake driver have in common.

#ifndef SHARD_TESTS_FAKE_CUDA_CALL_H_
#define SHARD_TESTS_FAKE_CUDA_CALL_H_

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/device/cuda/driver_api.h"
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

// Returns "cuMemAlloc" for "cuMemAlloc_v2".
inline std::string WithoutVersion(std::string symbol) {
  const size_t end = symbol.size() < 3 ? 0 : symbol.size() - 3;
  if (symbol.compare(end, 3, "_v2") == 0) symbol.resize(end);
  return symbol;
}

// What the calling thread may do while work is captured.
inline CuCaptureMode* CaptureMode() {
  thread_local CuCaptureMode mode = CuCaptureMode::kGlobal;
  return &mode;
}

// Returns whether a call is forbidden while work is captured, but for threads
// that have said that they know what they do.
inline bool IsUnsafe(const std::string& symbol) {
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
      if (it.result == CuResult::kStreamCaptureUnsupported ||
          it.result == CuResult::kStreamCaptureInvalidated) {
        for (auto& [stream, capture] : fake_->captures) {
          capture.is_invalid = true;
        }
      }
    }
    if (IsUnsafe(name) && InvalidateCaptures()) {
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
    if (current() == nullptr) return CuResult::kInvalidContext;
    return FindStreamOf(current_handle(), handle, stream);
  }
  // Finds a stream of any context, for work: while a capture of the stream is
  // invalid, nothing can be done with it but to end the capture.
  CuResult FindStreamOf(Handle context_handle, cuda::CuStream handle,
                        Stream** stream) const {
    const CuResult found = LookUpStream(context_handle, handle, stream);
    if (found != CuResult::kSuccess) return found;
    return fake_->IsInvalid(handle) ? CuResult::kStreamCaptureInvalidated
                                    : CuResult::kSuccess;
  }
  // The same, whatever is done with the stream.
  CuResult LookUpStream(Handle context_handle, cuda::CuStream handle,
                        Stream** stream) const {
    const auto context = fake_->contexts.find(context_handle);
    if (context == fake_->contexts.end()) return CuResult::kInvalidContext;
    const auto value = reinterpret_cast<Handle>(handle);
    if (value <= 1) {
      *stream = context->second.legacy.get();
      return CuResult::kSuccess;
    }
    const auto found = fake_->streams.find(value);
    if (found == fake_->streams.end()) return CuResult::kInvalidHandle;
    *stream = found->second.get();
    return (*stream)->context == context_handle ? CuResult::kSuccess
                                                : CuResult::kInvalidContext;
  }

 private:
  // Makes those captures invalid that forbid this thread what is unsafe: its
  // own, and global ones of others. Returns whether there are any.
  bool InvalidateCaptures() {
    const CuCaptureMode mine = *CaptureMode();
    if (mine == CuCaptureMode::kRelaxed) return false;
    bool any = false;
    for (auto& [stream, capture] : fake_->captures) {
      const bool is_own = capture.thread == std::this_thread::get_id();
      const bool forbids = is_own ? capture.mode != CuCaptureMode::kRelaxed
                                  : mine == CuCaptureMode::kGlobal &&
                                        capture.mode == CuCaptureMode::kGlobal;
      if (!forbids) continue;
      capture.is_invalid = true;
      any = true;
    }
    return any;
  }

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

inline bool IsDevice(const Fake& fake, int device) {
  return device >= 0 && device < fake.options.devices;
}

inline bool IsPinned(const Allocation* allocation) {
  return allocation->kind == MemoryKind::kPinned;
}
}  // namespace shard::testing::fake_cuda

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

#endif  // SHARD_TESTS_FAKE_CUDA_CALL_H_
