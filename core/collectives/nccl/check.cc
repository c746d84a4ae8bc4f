// SPDX-License-Identifier: Apache-2.0

#include "core/collectives/nccl/check.h"

#include <chrono>
#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>

#include "core/base/strings.h"
#include "core/base/transport.h"
#include "core/collectives/nccl/library.h"
#include "core/collectives/nccl/open.h"
#include "core/collectives/nccl/pause.h"
#include "core/collectives/nccl/rank_comms.h"
#include "core/comm/notices.h"
#include "core/comm/rank_set.h"

namespace shard::nccl {

namespace {

constexpr std::string_view kCheck = "check NCCL";

// Bytes of a rank's block: several pieces of most of NCCL's protocols.
constexpr size_t kBytes = size_t{1} << 20;

// Seconds for what a stream still does after an abort.
constexpr double kSettleSeconds = 5;

// Returns byte i of a rank's block.
std::byte Value(int rank, size_t i) {
  return static_cast<std::byte>(
      (i * 7 + i / 251 + static_cast<size_t>(rank) * 31) % 253);
}

// One rank's part of the check.
class Checker {
 public:
  Checker(int rank, Device* device, RankComms* comms, Notices* notices,
          const Deadline& deadline)
      : rank_(rank),
        ranks_(comms->world_size()),
        device_(device),
        comms_(comms),
        notices_(notices),
        deadline_(deadline) {}

  Status Run() {
    Status status = Allocate();
    if (status.ok()) status = RunCalls();
    if (status.ok()) return status;
    // Else the stream, and other ranks, would wait for NCCL.
    notices_->FailUnlogged(status);
    comms_->Abort();
    if (stream_ != nullptr) stream_->Settle(Deadline::After(kSettleSeconds));
    notices_->Fail(status);
    return status;
  }

 private:
  Status Allocate() {
    const size_t all = kBytes * static_cast<size_t>(ranks_);
    SHARD_ASSIGN_OR_RETURN(send_, device_->Allocate(kBytes, kCheck));
    SHARD_ASSIGN_OR_RETURN(recv_, device_->Allocate(all, kCheck));
    SHARD_ASSIGN_OR_RETURN(host_, device_->AllocateHost(all, kCheck));
    SHARD_ASSIGN_OR_RETURN(stream_,
                           device_->CreateStream(StreamKind::kCommunication));
    return Status();
  }

  Status RunCalls() {
    const int next = (rank_ + 1) % ranks_;
    const int previous = (rank_ + ranks_ - 1) % ranks_;
    std::byte* const send = send_.data();
    std::byte* const recv = recv_.data();
    SHARD_RETURN_IF_ERROR(
        Try("ncclAllGather", 0, ranks_,
            [=](const NcclApi& api, NcclComm comm, void* stream) {
              return api.AllGather(send, recv, kBytes, NcclType::kInt8, comm,
                                   stream);
            }));
    SHARD_RETURN_IF_ERROR(
        Try("ncclBroadcast", 0, 1,
            [=](const NcclApi& api, NcclComm comm, void* stream) {
              return api.Broadcast(send, recv, kBytes, NcclType::kInt8, 0, comm,
                                   stream);
            }));
    SHARD_RETURN_IF_ERROR(Try(
        "ncclSend and ncclRecv", previous, 1,
        [=](const NcclApi& api, NcclComm comm, void* stream) {
          const NcclResult sent =
              api.Send(send, kBytes, NcclType::kInt8, next, comm, stream);
          if (sent != NcclResult::kSuccess && sent != NcclResult::kInProgress) {
            return sent;
          }
          return api.Recv(recv, kBytes, NcclType::kInt8, previous, comm,
                          stream);
        }));
    return TrySum();
  }

  // Makes a call, after which `recv_` is to have the blocks of ranks
  // [first, first + count).
  template <typename Call>
  Status Try(std::string_view name, int first, int count, const Call& call) {
    const size_t bytes = kBytes * static_cast<size_t>(count);
    for (size_t i = 0; i < kBytes; ++i) host_.data()[i] = Value(rank_, i);
    stream_->FillZeros(recv_.data(), recv_.size());
    stream_->Copy(send_.data(), host_.data(), kBytes);
    SHARD_RETURN_IF_ERROR(Make(name, bytes, call));
    for (int block = 0; block < count; ++block) {
      for (size_t i = 0; i < kBytes; ++i) {
        const size_t at = static_cast<size_t>(block) * kBytes + i;
        if (host_.data()[at] == Value(first + block, i)) continue;
        return Internal(name, ": byte ", i, " of the block of rank ",
                        first + block, " is not what that rank has sent");
      }
    }
    return Status();
  }

  // Sums integers, which are exact in any order, in place: a block for each
  // rank.
  Status TrySum() {
    constexpr std::string_view kName = "ncclReduceScatter";
    constexpr size_t kCount = kBytes / sizeof(float);
    const auto value = [](int rank, size_t i) {
      return static_cast<float>(i % 1000 + static_cast<size_t>(rank));
    };
    auto* const values = reinterpret_cast<float*>(host_.data());
    for (size_t i = 0; i < kCount * static_cast<size_t>(ranks_); ++i) {
      values[i] = value(rank_, i);
    }
    stream_->Copy(recv_.data(), host_.data(), recv_.size());
    std::byte* const all = recv_.data();
    std::byte* const own = all + kBytes * static_cast<size_t>(rank_);
    SHARD_RETURN_IF_ERROR(
        Make(kName, recv_.size(),
             [=](const NcclApi& api, NcclComm comm, void* stream) {
               return api.ReduceScatter(all, own, kCount, NcclType::kFloat32,
                                        NcclOp::kSum, comm, stream);
             }));
    const size_t begin = kCount * static_cast<size_t>(rank_);
    for (size_t i = begin; i < begin + kCount; ++i) {
      float sum = 0;
      for (int rank = 0; rank < ranks_; ++rank) sum += value(rank, i);
      if (values[i] == sum) continue;
      return Internal(kName, ": element ", i, " is ", values[i],
                      ", and not the ranks' sum, ", sum);
    }
    return Status();
  }

  // Makes a call, copies the begin of `recv_` to the host, and waits for it.
  template <typename Call>
  Status Make(std::string_view name, size_t bytes, const Call& call) {
    stream_->Native(name, [=, this](void* native) {
      return comms_->Enqueue(
          name, RankSet::All(ranks_),
          [&](const NcclApi& api, NcclComm comm) {
            return call(api, comm, native);
          },
          [=, this] { return CheckTime(name); });
    });
    stream_->Copy(host_.data(), recv_.data(), bytes);
    SHARD_RETURN_IF_ERROR(Await(name));
    return comms_->AsyncError();
  }

  // Waits for the stream, unless another rank fails.
  Status Await(std::string_view name) {
    const Event end = stream_->Record();
    Pause pause(std::chrono::microseconds(10), std::chrono::milliseconds(1));
    while (!end.IsDone()) {
      SHARD_RETURN_IF_ERROR(CheckTime(name));
      SHARD_RETURN_IF_ERROR(comms_->AsyncError());
      pause.Take();
    }
    return stream_->status();
  }

  Status CheckTime(std::string_view name) const {
    // No notice is posted: a rank that is late is found by its call.
    constexpr double kLong = 3600;
    SHARD_RETURN_IF_ERROR(notices_->Check(1, name, Deadline::After(kLong)));
    if (!deadline_.Expired()) return Status();
    return DeadlineExceeded(name, " was not done within ", deadline_.seconds(),
                            " s; look at the GPU (nvidia-smi), and at NCCL's "
                            "log (NCCL_DEBUG=INFO)");
  }

  const int rank_;
  const int ranks_;
  Device* const device_;
  RankComms* const comms_;
  Notices* const notices_;
  const Deadline deadline_;
  DeviceMemory send_;
  DeviceMemory recv_;
  DeviceMemory host_;
  // Destroyed first: its work uses the memory.
  std::unique_ptr<Stream> stream_;
};

}  // namespace

Status CheckCollectives(Communicator* control,
                        const StatusOr<std::shared_ptr<Device>>& device,
                        const std::shared_ptr<cuda::Context>& context,
                        const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(
      AgreeOnStatus(control, kCheck, device.status(), deadline));
  auto library = FindNccl(control, device->get(), Transport::kNccl, deadline);
  if (library.status().code() == StatusCode::kNotFound) {
    return BackendUnavailable("NCCL: ", library.status().message());
  }
  SHARD_RETURN_IF_ERROR(library.status());
  SHARD_ASSIGN_OR_RETURN(auto opened,
                         control->OpenNotices(kCheck, sizeof(char), deadline));
  const std::shared_ptr<Notices> notices = std::move(opened);
  const RankSet all = RankSet::All(control->world_size());
  SHARD_ASSIGN_OR_RETURN(
      const auto comms,
      RankComms::Open(control, notices, context, *std::move(library), {&all, 1},
                      deadline));
  Status status;
  {
    Checker checker(control->rank(), device->get(), comms.get(), notices.get(),
                    deadline);
    status = checker.Run();
  }
  if (status.ok()) status = control->Barrier(kCheck, deadline);
  // The first error of all ranks.
  const Status failed = notices->failure();
  return failed.ok() ? status : failed;
}

}  // namespace shard::nccl
