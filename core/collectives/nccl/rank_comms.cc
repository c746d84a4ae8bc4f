// SPDX-License-Identifier: Apache-2.0

#include "core/collectives/nccl/rank_comms.h"

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/collectives/nccl/pause.h"

namespace shard::nccl {

namespace {

// Tells the call that is made, where that is asked for, as long as this lives.
class SetWhile {
 public:
  explicit SetWhile(RankComms::Calling* calling, const char* call = nullptr)
      : calling_(calling) {
    Set(call);
  }
  ~SetWhile() { Set(nullptr); }
  SetWhile(const SetWhile&) = delete;
  SetWhile& operator=(const SetWhile&) = delete;

  void Set(const char* call) const {
    if (calling_ != nullptr) *calling_ = call;
  }

 private:
  RankComms::Calling* const calling_;
};

constexpr std::string_view kOpenComms = "open NCCL's communicators";

// Adds what to look at where NCCL does not start.
Status WithRemedy(const Status& status) {
  const char* const names = std::getenv("NCCL_SOCKET_IFNAME");
  return Status(
      status.code(),
      StrCat(status.message(), "; look at NCCL's network, memory and variables",
             names == nullptr ? "" : " (NCCL_SOCKET_IFNAME=",
             names == nullptr ? "" : names, names == nullptr ? "" : ")",
             " with shardctl doctor --nccl"),
      status.rank(), std::string(status.detail()));
}

}  // namespace

RankComms::RankComms(std::shared_ptr<cuda::Context> context,
                     NcclLibrary library, int rank, int world_size)
    : state_(std::make_shared<State>(std::move(context), std::move(library))),
      rank_(rank),
      world_size_(world_size),
      owner_(::getpid()),
      memory_(this) {
  state_->slots = memory_.slots();
}

StatusOr<std::unique_ptr<RankComms>> RankComms::Open(
    Communicator* control, std::shared_ptr<Notices> notices,
    std::shared_ptr<cuda::Context> context, NcclLibrary library,
    std::span<const RankSet> sets, const Deadline& deadline) {
  // NCCL starts threads, which may run its code as long as the process lives.
  library.library.Keep();
  const int rank = control->rank();
  std::unique_ptr<RankComms> comms(new RankComms(
      std::move(context), std::move(library), rank, control->world_size()));
  comms->notices_ = notices;
  NcclId id = {};
  Status made;
  if (rank == 0) {
    made = comms->state_->context->Run([&] {
      return comms->library().ToStatus(comms->api_.GetUniqueId(&id),
                                       "ncclGetUniqueId", nullptr);
    });
    if (!made.ok()) made = WithRemedy(made);
  }
  SHARD_RETURN_IF_ERROR(AgreeOnStatus(control, kOpenComms, made, deadline));
  SHARD_RETURN_IF_ERROR(
      control->Broadcast(kOpenComms, 0, id.bytes, sizeof(id.bytes), deadline));
  Status ended;
  Status opened = comms->state_->context->Run([&] {
    return comms->OpenAll(id, sets, [&]() -> Status {
      constexpr double kLong = 3600;  // The deadline is not that of a notice.
      ended = notices->Check(1, kOpenComms, Deadline::After(kLong));
      SHARD_RETURN_IF_ERROR(ended);
      if (!deadline.Expired()) return Status();
      return DeadlineExceeded("NCCL has not made its communicators within ",
                              deadline.seconds(),
                              " s; give a longer timeout, or run with "
                              "NCCL_DEBUG=INFO");
    });
  });
  // The first error is that of all.
  const auto first_or = [&](const Status& error) {
    const Status first = notices->failure();
    return first.ok() ? error : first;
  };
  if (!opened.ok()) {
    if (ended.ok()) opened = WithRemedy(opened);
    // Other ranks wait in NCCL for this one.
    notices->Fail(opened);
    return first_or(opened);
  }
  const Status met = control->Barrier(kOpenComms, deadline);
  if (met.ok()) return comms;
  // A rank that has not come here finalizes nothing.
  comms->Abort();
  return first_or(met);
}

Status RankComms::OpenAll(const NcclId& id, std::span<const RankSet> sets,
                          const Check& check) {
  const RankSet all = RankSet::All(world_size_);
  SHARD_RETURN_IF_ERROR(Init(id, all, check));
  for (const RankSet& set : sets) {
    if (set == all || set.count == 1) continue;
    SHARD_RETURN_IF_ERROR(Split(set, check));
  }
  is_opened_ = true;
  return Status();
}

Status RankComms::Init(const NcclId& id, const RankSet& all,
                       const Check& check) {
  NcclConfig config;
  state_->comms.push_back(std::make_unique<Opened>());
  Opened* const made = state_->comms.back().get();
  made->set = all;
  std::unique_lock<std::mutex> lock(made->mutex);
  const NcclResult result =
      api_.CommInitRankConfig(&made->comm, all.count, id, rank_, &config);
  // NCCL has told the handle, by which the call is ended.
  made->is_made = true;
  return Await("ncclCommInitRankConfig", result, *made, check, &lock);
}

Status RankComms::Split(const RankSet& set, const Check& check) {
  NcclConfig config;
  state_->comms.push_back(std::make_unique<Opened>());
  Opened& parent = *state_->comms.front();
  Opened* const made = state_->comms.back().get();
  made->set = set;
  std::unique_lock<std::mutex> lock(parent.mutex);
  // The first rank of a set names it: sets of one stride have no rank in
  // common.
  const NcclResult result = api_.CommSplit(
      parent.comm, set.first, set.IndexOf(rank_), &made->comm, &config);
  SHARD_RETURN_IF_ERROR(Await("ncclCommSplit", result, parent, check, &lock));
  made->is_made = true;
  lock.unlock();
  lock = std::unique_lock<std::mutex>(made->mutex);
  return Await("ncclCommSplit", NcclResult::kInProgress, *made, check, &lock);
}

Status RankComms::Lock(std::string_view call, const Opened& opened,
                       const Check& check, std::unique_lock<std::mutex>* lock,
                       Calling* calling) {
  Pause pause = PauseOfCall();
  const SetWhile waits(calling);
  while (!state_->ended && !lock->try_lock()) {
    const char* const holder = opened.calling;
    waits.Set(holder);
    if (const Status over = check(); !over.ok()) {
      const bool is_late =
          over.code() == StatusCode::kDeadlineExceeded && over.rank() < 0;
      if (holder == nullptr || !is_late) return over;
      return Status(over.code(),
                    StrCat(over.message(), "; ", holder, " on rank ", rank_,
                           " has not returned"),
                    rank_);
    }
    pause.Take();
  }
  if (!state_->ended) return Status();
  return Cancelled("NCCL's communicators were aborted before the end of ",
                   call);
}

Status RankComms::Await(std::string_view call, NcclResult result,
                        const Opened& opened, const Check& check,
                        std::unique_lock<std::mutex>* lock) {
  Pause pause = PauseOfCall();
  for (bool first = true; result == NcclResult::kInProgress; first = false) {
    if (!first) {
      lock->unlock();
      SHARD_RETURN_IF_ERROR(check());
      pause.Take();
      SHARD_RETURN_IF_ERROR(Lock(call, opened, check, lock));
    }
    NcclResult now = NcclResult::kSuccess;
    result = api_.CommGetAsyncError(opened.comm, &now);
    if (result == NcclResult::kSuccess) result = now;
  }
  return ToStatus(result, call, opened.comm);
}

Status RankComms::CallOn(size_t comm, const char* call,
                         const std::function<NcclResult(NcclComm comm)>& make,
                         const Check& check) {
  Opened& opened = *state_->comms[comm];
  std::unique_lock<std::mutex> lock(opened.mutex, std::defer_lock);
  SHARD_RETURN_IF_ERROR(Lock(call, opened, check, &lock));
  SHARD_RETURN_IF_ERROR(
      Await(call, NcclResult::kInProgress, opened, check, &lock));
  const SetWhile in_call(&opened.calling, call);
  return library().ToStatus(make(opened.comm), call, opened.comm);
}

Status RankComms::ToStatus(NcclResult result, std::string_view call,
                           NcclComm comm) const {
  const Status status = library().ToStatus(result, call, comm);
  if (status.ok()) return status;
  return Status(status.code(), StrCat("rank ", rank_, ": ", status.message()),
                rank_);
}

RankComms::Opened* RankComms::Find(const RankSet& set) const {
  for (const auto& opened : state_->comms) {
    if (opened->set == set) return opened.get();
  }
  return nullptr;
}

Status RankComms::Enqueue(std::string_view what, const RankSet& set,
                          const Calls& calls, const Check& check,
                          Calling* calling) {
  Opened& opened = *Find(set);
  std::unique_lock<std::mutex> lock(opened.mutex, std::defer_lock);
  SHARD_RETURN_IF_ERROR(Lock(what, opened, check, &lock, calling));
  // NCCL refuses calls while another one is in progress: that of another
  // stream, between its polls, or one that was given up.
  SHARD_RETURN_IF_ERROR(
      Await(what, NcclResult::kInProgress, opened, check, &lock));
  const NcclComm comm = opened.comm;
  std::optional<SetWhile> in_call;
  in_call.emplace(calling, "a call of NCCL");
  NcclResult result = api_.GroupStart();
  if (result != NcclResult::kSuccess) {
    return ToStatus(result, "ncclGroupStart", comm);
  }
  const NcclResult called = calls(api_, comm);
  // The group ends whatever its calls have returned: the thread is in it.
  result = api_.GroupEnd();
  in_call.reset();
  if (called != NcclResult::kSuccess && called != NcclResult::kInProgress) {
    return ToStatus(called, what, comm);
  }
  return Await(what, result, opened, check, &lock);
}

Status RankComms::AsyncError() {
  for (const auto& opened : state_->comms) {
    const std::unique_lock<std::mutex> lock(opened->mutex, std::try_to_lock);
    if (state_->ended) return Status();
    // The caller comes again.
    if (!lock.owns_lock()) continue;
    NcclResult error = NcclResult::kSuccess;
    const NcclResult asked = api_.CommGetAsyncError(opened->comm, &error);
    if (asked == NcclResult::kSuccess && error == NcclResult::kInProgress) {
      continue;
    }
    SHARD_RETURN_IF_ERROR(
        ToStatus(asked, "ncclCommGetAsyncError", opened->comm));
    SHARD_RETURN_IF_ERROR(ToStatus(error, "NCCL", opened->comm));
  }
  return Status();
}

StatusOr<RankComms::Allocated> RankComms::Allocate(std::string_view what,
                                                   size_t bytes,
                                                   const Check& check) {
  StatusOr<Allocated> made = Cancelled("not allocated");
  SHARD_RETURN_IF_ERROR(state_->context->Run([&] {
    made = memory_.Allocate(what, bytes, check);
    return Status();
  }));
  return made;
}

StatusOr<NcclWindow> RankComms::OpenWindow(size_t comm, std::byte* memory,
                                           const Check& check) {
  StatusOr<NcclWindow> made = Cancelled("not made");
  SHARD_RETURN_IF_ERROR(state_->context->Run([&] {
    made = memory_.OpenWindow(comm, memory, check);
    return Status();
  }));
  return made;
}

Status RankComms::CloseWindows(std::byte* memory, const Check& check) {
  return state_->context->Run(
      [&] { return memory_.CloseWindows(memory, check); });
}

void RankComms::Free(std::byte* memory) noexcept {
  if (::getpid() != owner_ || state_->context->is_abandoned()) return;
  try {
    const cuda::Context::Current current(*state_->context);
    const Status freed = memory_.Free(memory);
    // An abort leaves all memory to the end of the communicators.
    if (!freed.ok() && !has_ended()) LogUnfreed(freed);
  } catch (...) {  // NOLINT: out of memory
  }
}

void RankComms::SetObserver(Observer* observer) {
  // In a child of fork the mutex may be held for ever.
  if (::getpid() != owner_) return;
  const std::lock_guard<std::mutex> lock(observer_mutex_);
  observer_ = observer;
}

void RankComms::LogUnfreed(const Status& why) noexcept {
  if (has_logged_unfreed_.exchange(true)) return;
  const std::lock_guard<std::mutex> lock(observer_mutex_);
  if (observer_ == nullptr) return;
  observer_->Log(EventId::kKeptMemory, "rank ", rank_, ": memory of ",
                 context().name(),
                 " that is registered with NCCL is freed only with NCCL's "
                 "communicators, since it is not deregistered: ",
                 why.message());
}

}  // namespace shard::nccl
