// SPDX-License-Identifier: Apache-2.0
//
// The abort of a call behind a stream that is stuck.

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>

#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/device/cuda/driver_api.h"
#include "tests/gpu_check/nccl.h"

namespace shard::gpu_check {

namespace {

// A stream that goes on only when the host says so.
class Gate {
 public:
  explicit Gate(Gpu* gpu) : flag_(gpu) {
    void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const auto wait = reinterpret_cast<Wait>(
        driver == nullptr ? nullptr : dlsym(driver, "cuStreamWaitValue32_v2"));
    if (wait == nullptr) throw std::runtime_error("no cuStreamWaitValue32");
    constexpr unsigned kAtLeast = 0;
    if (wait(static_cast<cuda::CuStream>(gpu->stream()), flag_.address(), 1,
             kAtLeast) != cuda::CuResult::kSuccess) {
      throw std::runtime_error("cuStreamWaitValue32 fails");
    }
  }
  ~Gate() { Open(); }
  void Open() { flag_.Set(); }

 private:
  using Wait = cuda::CuResult (*)(cuda::CuStream, cuda::CuPointer, uint32_t,
                                  unsigned);

  // Pinned memory of the host.
  class Flag {
   public:
    explicit Flag(Gpu* gpu)
        : gpu_(gpu),
          value_(
              static_cast<uint32_t*>(gpu->AllocatePinned(sizeof(uint32_t)))) {
      *value_ = 0;
    }
    ~Flag() { gpu_->FreePinned(value_); }
    Flag(const Flag&) = delete;
    Flag& operator=(const Flag&) = delete;
    cuda::CuPointer address() const {
      return reinterpret_cast<cuda::CuPointer>(value_);
    }
    void Set() { std::atomic_ref<uint32_t>(*value_).store(1); }

   private:
    Gpu* const gpu_;
    uint32_t* const value_;
  };

  Flag flag_;
};

// NCCL's kernels have not begun, and its abort may wait for their stream. The
// bound is libshard's: the abort is then left to a thread.
constexpr double kBound = RankComms::kAbortSeconds + 1;

// Waits until the abort that was left has ended.
bool AwaitAbort(RankComms* comms) {
  const Deadline deadline = Deadline::After(RankComms::kAbortSeconds);
  while (!comms->Abort()) {
    if (deadline.Expired()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace

void CheckAbort(int ordinal, Gpu* gpu, Buffers* buffers, Report* report) {
  const Call call = CallsOf(*buffers, gpu->stream())[2];
  OneRank rank(ordinal);
  // NCCL connects at a first call.
  Require(rank.Enqueue(call.name, call.calls));
  gpu->Finish();
  double seconds = 0;
  bool ended = false;
  {
    Gate gate(gpu);
    Require(rank.Enqueue(call.name, call.calls));
    const auto start = Clock::now();
    ended = rank.comms().Abort();
    seconds = SecondsSince(start);
    gate.Open();
    gpu->Finish();
  }
  report->Check("the abort behind a stuck stream is waited for in time",
                seconds < kBound, StrCat("it has taken ", seconds, " s"));
  report->Number("time of that abort", seconds * 1e3, "ms");
  const bool ended_later = ended || AwaitAbort(&rank.comms());
  report->Check("that abort ends once the stream goes on", ended_later,
                "it does not end, or has an error of NCCL");
  if (ended_later) {
    report->Text("that abort", ended ? "ends while the stream is stuck"
                                     : "waits for the stream");
  }
  Try(
      "another communicator after the abort",
      [&] {
        OneRank another(ordinal);
        buffers->Write(77);
        Require(another.Enqueue(call.name, call.calls));
        if (!buffers->Came()) throw std::runtime_error("other bytes came");
      },
      report);
}

}  // namespace shard::gpu_check
