// SPDX-License-Identifier: Apache-2.0

#include "core/collectives/nccl/watchdog.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <utility>

#include "core/base/dtype.h"
#include "core/base/strings.h"
#include "core/collectives/nccl/pause.h"

namespace shard::nccl {

namespace {

// Seconds until a collective is given up that a rank took part in which is
// gone: it may have done its part before.
constexpr double kGoneSeconds = 0.5;

// Between the looks at a collective: one that is seen late delays no work.
Pause PauseOfWatch() {
  return Pause(std::chrono::milliseconds(1), std::chrono::milliseconds(20));
}

std::string_view NameOf(Announcement::Kind kind) {
  switch (kind) {
    case Announcement::Kind::kReduceScatter:
      return "a reduce-scatter";
    case Announcement::Kind::kAllToAll:
      return "an all-to-all";
    case Announcement::Kind::kAllGather:
      return "an all-gather";
    default:
      return "a broadcast";
  }
}

}  // namespace

std::string Announcement::ToText() const {
  std::string text = StrCat(NameOf(kind), " '",
                            std::string_view(tag, ::strnlen(tag, kTagBytes)),
                            "' of ", count, " ");
  if (kind == Kind::kReduceScatter || kind == Kind::kAllToAll) {
    StrAppend(&text, DTypeName(static_cast<DType>(dtype)), " to ",
              DTypeName(static_cast<DType>(recv_dtype)),
              add != 0 ? ", added," : "");
    if (block_groups != 1) StrAppend(&text, " in ", block_groups, " groups");
  } else {
    StrAppend(&text, "bytes");
  }
  StrAppend(&text, " over ", ranks, " ranks");
  if (stride != 1) StrAppend(&text, " in steps of ", stride);
  if (kind == Kind::kBroadcast) StrAppend(&text, " from rank ", root);
  return text;
}

StatusOr<std::unique_ptr<Watchdog>> Watchdog::Start(
    std::shared_ptr<Notices> notices, std::shared_ptr<RankComms> comms,
    double timeout) {
  auto shared = std::make_shared<Shared>();
  shared->notices = std::move(notices);
  shared->comms = std::move(comms);
  shared->timeout = timeout;
  std::unique_ptr<Watchdog> watchdog(new Watchdog(std::move(shared)));
  SHARD_ASSIGN_OR_RETURN(watchdog->queue_,
                         WorkQueue::Start(std::make_shared<Monitor>(),
                                          "shard-watchdog", Pauses()));
  watchdog->shared_->queue = watchdog->queue_.get();
  // A watch has failed, or memory ran out in it: no later one runs.
  watchdog->queue_->OnError([shared = watchdog->shared_](const Status& error) {
    // The end of the queue drops watches; a watch may be cancelled before, too.
    const bool is_end = error.code() == StatusCode::kCancelled;
    if (is_end && shared->queue->IsStopping()) return;
    shared->Report(error);
    shared->comms->Abort();
  });
  return watchdog;
}

Status Watchdog::Announce(const Announcement& mine, const Deadline& deadline) {
  ++announced_;
  Status differs;
  const Status posted = shared_->notices->Post(
      &mine,
      [&](int rank, const void* notice) {
        Announcement other;
        std::memcpy(&other, notice, sizeof(other));
        if (std::memcmp(&other, &mine, sizeof(other)) == 0 || !differs.ok()) {
          return;
        }
        differs =
            Desync(rank, "the ranks enqueued different collectives: ", "rank ",
                   shared_->comms->rank(), " ", mine.ToText(), ", rank ", rank,
                   " ", other.ToText(), " (collective ", announced_,
                   "); every rank must make the same calls in the same "
                   "order");
      },
      deadline);
  SHARD_RETURN_IF_ERROR(posted);
  if (!differs.ok()) Report(differs);
  return differs;
}

Watchdog::CheckUntil Watchdog::Checks(std::string name,
                                      std::optional<Deadline> call) const {
  return [shared = shared_, name = std::move(name), number = announced_, call] {
    const Deadline deadline = call.value_or(Deadline::After(shared->timeout));
    return [shared, name, number, deadline] {
      return shared->notices->Check(number, name, deadline);
    };
  };
}

std::shared_ptr<Watchdog::End> Watchdog::Watch(std::string name, Event begin,
                                               std::optional<Deadline> call) {
  auto end = std::make_shared<End>();
  Work work = {std::move(name), announced_, std::move(begin), end, call};
  queue_->Push("watch", [shared = shared_, work = std::move(work)] {
    return WatchOne(shared.get(), work);
  });
  return end;
}

Status Watchdog::FindLate(const Deadline& deadline) const {
  if (!deadline.Expired()) return Status();
  std::string name;
  uint64_t number = 0;
  {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    name = shared_->name;
    number = shared_->number;
  }
  const Status late = shared_->notices->Check(number, name, deadline);
  return late.code() == StatusCode::kDeadlineExceeded && late.rank() >= 0
             ? late
             : Status();
}

void Watchdog::Report(const Status& error) {
  shared_->Report(error);
  // After the watches, which then end.
  queue_->Push("abort", [shared = shared_] {
    shared->comms->Abort();
    return Status();
  });
}

std::shared_ptr<void> Watchdog::OnFailure(Handler handler) {
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  if (!shared_->failed.ok()) handler(shared_->failed);
  auto at =
      shared_->handlers.insert(shared_->handlers.end(), std::move(handler));
  const pid_t owner = ::getpid();
  const auto end = [shared = shared_, at, owner](void*) {
    // In a child of fork the mutex may be held for ever.
    if (::getpid() != owner) return;
    const std::lock_guard<std::mutex> ending(shared->mutex);
    shared->handlers.erase(at);
  };
  return std::shared_ptr<void>(shared_.get(), end);
}

void Watchdog::Shared::Report(const Status& error) noexcept {
  // Where memory runs out, the abort that follows needs the handlers most: they
  // keep what did not come from being used.
  const auto attempt = [](const auto& work) {
    try {
      work();
    } catch (...) {  // NOLINT: no memory for the text of an error
    }
  };
  attempt([&] { notices->Fail(error); });
  const std::lock_guard<std::mutex> lock(mutex);
  if (!failed.ok()) return;
  for (const Handler& handler : handlers) attempt([&] { handler(error); });
  attempt([&] { failed = error; });
}

Status Watchdog::WatchOne(Shared* shared, const Work& work) {
  {
    const std::lock_guard<std::mutex> lock(shared->mutex);
    shared->number = work.number;
    shared->name = work.name;
  }
  std::optional<Deadline> deadline = work.call;
  std::optional<Deadline> gone;
  Pause pause = PauseOfWatch();
  const auto find_error = [&]() -> Status {
    const Deadline never = Deadline::After(shared->timeout);
    const Status late = shared->notices->Check(work.number, work.name,
                                               deadline.value_or(never));
    if (late.code() == StatusCode::kDeadlineExceeded && late.rank() < 0 &&
        !work.end->IsSet()) {
      const int rank = shared->comms->rank();
      return Status(late.code(),
                    StrCat("'", work.name, "': a call of NCCL on rank ", rank,
                           " has not returned within ",
                           deadline.value_or(never).seconds(), " s"),
                    rank);
    }
    SHARD_RETURN_IF_ERROR(late);
    SHARD_RETURN_IF_ERROR(shared->comms->AsyncError());
    // A rank that is gone may have announced later ones before.
    const Status lost = shared->notices->Check(
        std::numeric_limits<uint64_t>::max(), "NCCL's next collective", never);
    if (lost.code() != StatusCode::kRankLost) return Status();
    if (!gone) gone = Deadline::After(kGoneSeconds);
    return gone->Expired() ? lost : Status();
  };
  while (!work.end->IsDone()) {
    if (shared->queue->IsStopping()) return Status();
    if (!deadline && work.begin.IsDone()) {
      deadline = Deadline::After(shared->timeout);
    }
    SHARD_RETURN_IF_ERROR(find_error());
    pause.Take();
  }
  return Status();
}

}  // namespace shard::nccl
