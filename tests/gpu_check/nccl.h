// SPDX-License-Identifier: Apache-2.0
//
// The checks of the part nccl, and their means: a rank with its communicator,
// memory that is sent and received, and libshard's calls of NCCL.

#ifndef SHARD_TESTS_GPU_CHECK_NCCL_H_
#define SHARD_TESTS_GPU_CHECK_NCCL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/collectives/nccl/library.h"
#include "core/collectives/nccl/rank_comms.h"
#include "core/collectives/nccl/registration.h"
#include "core/comm/communicator.h"
#include "core/device/cuda/context.h"
#include "tests/gpu_check/gpu.h"
#include "tests/gpu_check/raw_comm.h"
#include "tests/gpu_check/report.h"
#include "tests/gpu_check/timing.h"

namespace shard::gpu_check {

using nccl::NcclApi;
using nccl::NcclComm;
using nccl::NcclLibrary;
using nccl::NcclOp;
using nccl::NcclResult;
using nccl::NcclType;
using nccl::RankComms;

// One rank with its communicator, as an engine has.
class OneRank {
 public:
  explicit OneRank(int ordinal)
      : control_(Take(OpenCommunicator("local:", {}))),
        notices_(Take(control_->OpenNotices("gpu_check", 1, Soon()))) {
    const RankSet all = RankSet::All(1);
    comms_ = Take(RankComms::Open(control_.get(), notices_,
                                  Take(cuda::Context::Open(ordinal)),
                                  Take(nccl::OpenNccl()), {&all, 1}, Soon()));
  }

  static Deadline Soon() { return Deadline::After(kSeconds); }

  Status Enqueue(const char* name, const RankComms::Calls& calls) {
    return comms_->Enqueue(name, RankSet::All(1), calls, InTime());
  }
  StatusOr<RankComms::Allocated> Allocate(size_t bytes) {
    return comms_->Allocate("registered memory", bytes, InTime());
  }
  StatusOr<nccl::NcclWindow> OpenWindow(std::byte* memory) {
    return comms_->OpenWindow(0, memory, InTime());
  }
  std::string WhyNotRegistered() {
    return Take(nccl::Registration::Agree(control_.get(), comms_, Soon()))
        .why_not();
  }
  RankComms& comms() { return *comms_; }

 private:
  static RankComms::Check InTime() {
    return [deadline = Soon()]() -> Status {
      if (!deadline.Expired()) return Status();
      return DeadlineExceeded("not done in time");
    };
  }

  const std::shared_ptr<Communicator> control_;
  const std::shared_ptr<Notices> notices_;
  std::shared_ptr<RankComms> comms_;
};

// Memory that is sent and memory that receives it.
class Buffers {
 public:
  Buffers(Gpu* gpu, size_t bytes)
      : gpu_(gpu),
        send_(static_cast<std::byte*>(gpu->Allocate(bytes))),
        recv_(static_cast<std::byte*>(gpu->Allocate(bytes))),
        sent_(bytes),
        received_(bytes) {}
  ~Buffers() {
    gpu_->Free(recv_);
    gpu_->Free(send_);
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  std::byte* send() const { return send_; }
  std::byte* recv() const { return recv_; }
  size_t bytes() const { return sent_.size(); }

  // Writes other values, and clears what receives them.
  void Write(uint32_t seed) {
    for (size_t i = 0; i < sent_.size(); ++i) {
      sent_[i] = static_cast<std::byte>((i * 7 + i / 251 + seed * 31) % 253);
    }
    gpu_->Copy(send_, sent_.data(), bytes());
    gpu_->FillZeros(recv_, bytes());
    gpu_->Finish();
  }
  // Returns whether the values have come.
  bool Came() {
    gpu_->Copy(received_.data(), recv_, bytes());
    gpu_->Finish();
    return received_ == sent_;
  }

 private:
  Gpu* const gpu_;
  std::byte* const send_;
  std::byte* const recv_;
  std::vector<std::byte> sent_;
  std::vector<std::byte> received_;
};

struct Call {
  const char* name;
  RankComms::Calls calls;
};

// Returns the calls of NcclCollectives.
std::vector<Call> CallsOf(const Buffers& buffers, void* stream);

// Each call brings the bytes that were sent, and takes its time.
void CheckCalls(Gpu* gpu, Buffers* buffers, OneRank* rank, Report* report);
// So do several calls of one group.
void CheckGroup(Gpu* gpu, Buffers* buffers, OneRank* rank, Report* report);
// Each replay of a captured call sends what is in the memory then.
void CheckReplays(Gpu* gpu, Buffers* buffers, OneRank* rank, Report* report);
// The sums of one rank's floats are the floats, bit by bit: also in place,
// where a block of gradients is summed.
void CheckSums(Gpu* gpu, size_t bytes, OneRank* rank, Report* report);
// Memory is registered as that of engines, and NCCL moves it.
void CheckRegistration(int ordinal, Gpu* gpu, size_t bytes, Report* report);
// A window tells the place of a rank's memory to the kernels of a step in one
// kernel. Such a step itself has several ranks, and so several GPUs.
void CheckWindows(int ordinal, Gpu* gpu, size_t bytes, Report* report);
// A call that does not come to its end is ended in time, the stream goes on,
// and another communicator works.
void CheckAbort(int ordinal, Gpu* gpu, Buffers* buffers, Report* report);

}  // namespace shard::gpu_check

#endif  // SHARD_TESTS_GPU_CHECK_NCCL_H_
