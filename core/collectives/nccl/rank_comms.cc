// SPDX-License-Identifier: Apache-2.0

#include "core/collectives/nccl/rank_comms.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "core/base/strings.h"
#include "core/collectives/nccl/pause.h"
#include "core/device/work_queue/work_queue.h"

namespace shard::nccl {

namespace {

constexpr std::string_view kOpen = "open NCCL's communicators";

// Seconds for communicators to end by themselves. All ranks that end theirs at
// about the same time take much less; a rank that is alone aborts its own.
constexpr double kFinalizeSeconds = 2;

// Between the polls of a call that is in progress, for which a host waits.
Pause PauseOfCall() {
  return Pause(std::chrono::microseconds(1), std::chrono::microseconds(500));
}

}  // namespace

RankComms::RankComms(std::shared_ptr<cuda::Context> context,
                     NcclLibrary library, int world_size)
    : context_(std::move(context)),
      library_(std::move(library)),
      world_size_(world_size),
      owner_(::getpid()) {}

StatusOr<std::unique_ptr<RankComms>> RankComms::Open(
    Communicator* control, Notices* notices,
    std::shared_ptr<cuda::Context> context, NcclLibrary library,
    std::span<const RankSet> sets, const Deadline& deadline) {
  // NCCL starts threads, which may run its code as long as the process lives.
  library.library.Keep();
  std::unique_ptr<RankComms> comms(new RankComms(
      std::move(context), std::move(library), control->world_size()));
  NcclId id = {};
  Status made;
  if (control->rank() == 0) {
    made = comms->context_->Run([&] {
      return comms->library_.ToStatus(comms->api_.GetUniqueId(&id),
                                      "ncclGetUniqueId", nullptr);
    });
  }
  SHARD_RETURN_IF_ERROR(AgreeOnStatus(control, kOpen, made, deadline));
  SHARD_RETURN_IF_ERROR(
      control->Broadcast(kOpen, 0, id.bytes, sizeof(id.bytes), deadline));
  const Status opened = comms->context_->Run([&] {
    return comms->OpenAll(id, sets, control->rank(), [&]() -> Status {
      constexpr double kLong = 3600;  // The deadline is not that of a notice.
      SHARD_RETURN_IF_ERROR(notices->Check(1, Deadline::After(kLong)));
      if (!deadline.Expired()) return Status();
      return DeadlineExceeded(
          "NCCL has not made its communicators within ", deadline.seconds(),
          " s; run with NCCL_DEBUG=INFO, or give a longer timeout");
    });
  });
  if (!opened.ok()) {
    // Other ranks wait in NCCL for this one.
    notices->Fail(opened);
    return opened;
  }
  SHARD_RETURN_IF_ERROR(control->Barrier(kOpen, deadline));
  return comms;
}

Status RankComms::OpenAll(const NcclId& id, std::span<const RankSet> sets,
                          int rank, const Check& check) {
  const RankSet all = RankSet::All(world_size_);
  SHARD_RETURN_IF_ERROR(Init(id, all, rank, check));
  for (const RankSet& set : sets) {
    if (set == all || set.count == 1) continue;
    SHARD_RETURN_IF_ERROR(Split(set, rank, check));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  opened_ = true;
  return Status();
}

Status RankComms::Init(const NcclId& id, const RankSet& all, int rank,
                       const Check& check) {
  NcclConfig config;
  std::unique_lock<std::mutex> lock(mutex_);
  comms_.push_back(std::make_unique<Opened>());
  Opened* const made = comms_.back().get();
  made->set = all;
  const NcclResult result =
      api_.CommInitRankConfig(&made->comm, all.count, id, rank, &config);
  return Await("ncclCommInitRankConfig", result, made->comm, check, &lock);
}

Status RankComms::Split(const RankSet& set, int rank, const Check& check) {
  NcclConfig config;
  std::unique_lock<std::mutex> lock(mutex_);
  const NcclComm parent = comms_.front()->comm;
  comms_.push_back(std::make_unique<Opened>());
  Opened* const made = comms_.back().get();
  made->set = set;
  // The first rank of a set names it: sets of one stride have no rank in
  // common.
  const NcclResult result = api_.CommSplit(parent, set.first, set.IndexOf(rank),
                                           &made->comm, &config);
  SHARD_RETURN_IF_ERROR(Await("ncclCommSplit", result, parent, check, &lock));
  return Await("ncclCommSplit", NcclResult::kInProgress, made->comm, check,
               &lock);
}

Status RankComms::Await(std::string_view call, NcclResult result, NcclComm comm,
                        const Check& check,
                        std::unique_lock<std::mutex>* lock) {
  Pause pause = PauseOfCall();
  for (bool first = true; result == NcclResult::kInProgress; first = false) {
    if (!first) {
      lock->unlock();
      const Status ended = check();
      pause.Take();
      lock->lock();
      SHARD_RETURN_IF_ERROR(ended);
    }
    if (aborted_) {
      return Cancelled("NCCL's communicators were aborted during ", call);
    }
    NcclResult now = NcclResult::kSuccess;
    result = api_.CommGetAsyncError(comm, &now);
    if (result == NcclResult::kSuccess) result = now;
  }
  return library_.ToStatus(result, call, comm);
}

NcclComm RankComms::Find(const RankSet& set) const {
  for (const auto& opened : comms_) {
    if (opened->set == set) return opened->comm;
  }
  return nullptr;
}

Status RankComms::Enqueue(std::string_view what, const RankSet& set,
                          const Calls& calls, const Check& check) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (aborted_) {
    return Cancelled("NCCL's communicators were aborted before '", what, "'");
  }
  const NcclComm comm = Find(set);
  NcclResult result = api_.GroupStart();
  if (result != NcclResult::kSuccess) {
    return library_.ToStatus(result, "ncclGroupStart", comm);
  }
  const NcclResult called = calls(api_, comm);
  // The group ends whatever its calls have returned: the thread is in it.
  result = api_.GroupEnd();
  if (called != NcclResult::kSuccess && called != NcclResult::kInProgress) {
    return library_.ToStatus(called, what, comm);
  }
  return Await(what, result, comm, check, &lock);
}

Status RankComms::AsyncError() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (aborted_) return Status();
  for (const auto& opened : comms_) {
    NcclResult error = NcclResult::kSuccess;
    const NcclResult asked = api_.CommGetAsyncError(opened->comm, &error);
    if (asked == NcclResult::kSuccess && error == NcclResult::kInProgress) {
      continue;
    }
    SHARD_RETURN_IF_ERROR(
        library_.ToStatus(asked, "ncclCommGetAsyncError", opened->comm));
    SHARD_RETURN_IF_ERROR(library_.ToStatus(error, "NCCL", opened->comm));
  }
  return Status();
}

RankComms::~RankComms() {
  if (::getpid() != owner_) return;
  if (!Finalize()) Abort();
}

std::shared_ptr<RankComms::Comms> RankComms::TakeAll() {
  auto taken = std::make_shared<Comms>();
  const std::lock_guard<std::mutex> lock(mutex_);
  aborted_ = true;
  taken->swap(comms_);
  return taken;
}

bool RankComms::Abort() noexcept {
  try {
    // An abort hangs where the device or its driver does, so it has a thread
    // that can be left to it.
    auto queue =
        WorkQueue::Start(std::make_shared<Monitor>(), "shard-abort", Pauses());
    const std::shared_ptr<Comms> comms = TakeAll();
    if (comms->empty()) return true;
    const auto end_all = [api = api_, context = context_, comms] {
      return context->Run([&] {
        // The first waits for a split that goes on, which then gives a handle.
        for (const auto& opened : *comms) {
          if (opened->comm != nullptr) api.CommAbort(opened->comm);
        }
        return Status();
      });
    };
    if (!queue.ok()) return end_all().ok();
    (*queue)->Push("abort", end_all);
    const Status done = (*queue)->Synchronize(Deadline::After(kAbortSeconds));
    if (done.code() != StatusCode::kDeadlineExceeded) return true;
    static_cast<void>(queue->release());
  } catch (...) {  // NOLINT: out of memory
  }
  context_->Abandon();
  return false;
}

bool RankComms::Finalize() noexcept {
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_) return true;
    if (!opened_) return false;
    const cuda::Context::Current current(*context_);
    const Deadline deadline = Deadline::After(kFinalizeSeconds);
    for (const auto& opened : comms_) {
      const NcclResult result = api_.CommFinalize(opened->comm);
      if (result != NcclResult::kSuccess && result != NcclResult::kInProgress) {
        return false;
      }
    }
    for (const auto& opened : comms_) {
      Pause pause = PauseOfCall();
      for (;;) {
        NcclResult state = NcclResult::kSuccess;
        if (api_.CommGetAsyncError(opened->comm, &state) !=
            NcclResult::kSuccess) {
          return false;
        }
        if (state == NcclResult::kSuccess) break;
        if (state != NcclResult::kInProgress || deadline.Expired()) {
          return false;
        }
        pause.Take();
      }
    }
    for (auto it = comms_.rbegin(); it != comms_.rend(); ++it) {
      api_.CommDestroy((*it)->comm);
    }
    comms_.clear();
    aborted_ = true;
    return true;
  } catch (...) {  // NOLINT: out of memory
    return false;
  }
}

}  // namespace shard::nccl
