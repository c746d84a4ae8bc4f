// SPDX-License-Identifier: Apache-2.0

#include "core/collectives/nccl/watchdog.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/strings.h"
#include "core/collectives/nccl/pause.h"
#include "core/comm/first_difference.h"

namespace shard::nccl {

namespace {

// Seconds until a collective is given up that a rank took part in which is
// gone: it may have done its part before.
constexpr double kGoneRankSeconds = 0.5;

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
    case Announcement::Kind::kTogether:
      return "a kernel of all ranks";
    default:
      return "a broadcast";
  }
}

constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();

bool IsSame(const Announcement& a, const Announcement& b) {
  return std::memcmp(&a, &b, sizeof(Announcement)) == 0;
}

// Does what is left undone where memory runs out.
template <typename Work>
void Attempt(const Work& work) noexcept {
  try {
    work();
  } catch (...) {  // NOLINT: no memory for the text of an error
  }
}

// Returns what announcements are compared with: a CompareFirst.
Notices::Compare CompareCalls(uint64_t* first) {
  return [first](int, uint64_t number, const void* theirs, const void* ours) {
    if (std::memcmp(theirs, ours, sizeof(Announcement)) == 0) return;
    *first = std::min(*first, number);
  };
}

}  // namespace

std::string Announcement::ToText() const {
  std::string text = StrCat(NameOf(kind), " '", tag_text(), "'");
  if (kind == Kind::kReduceScatter || kind == Kind::kAllToAll) {
    StrAppend(&text, " of ", count, " ", DTypeName(static_cast<DType>(dtype)),
              " to ", DTypeName(static_cast<DType>(recv_dtype)),
              add != 0 ? ", added," : "");
    if (block_groups != 1) StrAppend(&text, " in ", block_groups, " groups");
  } else if (kind != Kind::kTogether) {
    StrAppend(&text, " of ", count, " bytes");
  }
  StrAppend(&text, " over ", ranks, " ranks");
  if (stride != 1) StrAppend(&text, " in steps of ", stride);
  if (kind == Kind::kBroadcast) StrAppend(&text, " from rank ", root);
  return text;
}

EventId Announcement::event() const {
  switch (kind) {
    case Kind::kReduceScatter:
    case Kind::kAllToAll:
      return EventId::kReduceScatter;
    case Kind::kAllGather:
      return EventId::kAllGatherBlocks;
    case Kind::kTogether:
      return EventId::kUpdate;
    default:
      return EventId::kBroadcast;
  }
}

void Announcement::DescribeTo(CollectiveCall* call) const {
  call->operation = event();
  call->what = tag_text();
  call->bytes = count;
  call->set_first = -1;
  call->set_stride = stride;
  call->set_ranks = ranks;
  if (kind == Kind::kBroadcast) call->root = root;
  if (kind == Kind::kReduceScatter || kind == Kind::kAllToAll) {
    call->bytes = count * DTypeSize(static_cast<DType>(dtype));
    call->dtype = static_cast<int8_t>(dtype);
    call->recv_dtype = static_cast<int8_t>(recv_dtype);
  }
}

StatusOr<std::unique_ptr<Watchdog>> Watchdog::Start(
    std::shared_ptr<Notices> notices, std::shared_ptr<RankComms> comms,
    double timeout) {
  auto shared = std::make_shared<Shared>();
  shared->notices = std::move(notices);
  shared->comms = std::move(comms);
  shared->timeout = timeout;
  shared->notices->DescribeBy([](const void* notice, CollectiveCall* call) {
    static_cast<const Announcement*>(notice)->DescribeTo(call);
  });
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
    shared->Abort(error);
  });
  return watchdog;
}

Status Watchdog::Announce(const Announcement& mine, const Deadline& deadline) {
  ++announced_;
  uint64_t different = kNone;
  const Status posted =
      shared_->notices->Post(&mine, CompareCalls(&different), deadline);
  // The watches tell the error that has ended the family as it is, and this is
  // the same one.
  const Status first = posted.code() == StatusCode::kPoisoned
                           ? shared_->notices->failure()
                           : Status();
  SHARD_RETURN_IF_ERROR(first);
  SHARD_RETURN_IF_ERROR(posted);
  if (different == kNone) return Status();
  const Status differs = FindDifferent(different, deadline);
  Report(differs);
  return differs;
}

Status Watchdog::FindDifferent(uint64_t number, const Deadline& deadline) {
  std::vector<Announcement> all(
      static_cast<size_t>(shared_->comms->world_size()));
  SHARD_RETURN_IF_ERROR(AwaitFirstDifference(
      shared_->notices.get(), CompareCalls, &number, all.data(), deadline));
  // Where any two ranks differ, one differs from rank 0.
  size_t other = 1;
  while (other + 1 < all.size() && IsSame(all[other], all[0])) ++other;
  shared_->notices->FailUnlogged(Desync(
      static_cast<int>(other),
      "the ranks enqueued different collectives: rank 0 ", all[0].ToText(),
      ", rank ", other, " ", all[other].ToText(), " (collective ", number,
      "); every rank must make the same calls in the same order"));
  return shared_->notices->failure();
}

Watchdog::CheckUntil Watchdog::Checks(std::string name,
                                      std::optional<Deadline> call) const {
  return [shared = shared_, name = std::move(name), number = announced_,
          watch = watches_ + 1, call] {
    const Deadline deadline = call.value_or(Deadline::After(shared->timeout));
    return [shared, name, number, watch, deadline] {
      return shared->Check(number, watch, name, deadline);
    };
  };
}

std::shared_ptr<Watchdog::End> Watchdog::Watch(std::string name, Event begin,
                                               std::optional<Deadline> call) {
  auto end = std::make_shared<End>();
  ++watches_;
  {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->watched.push_back({watches_, name, end});
  }
  Shared* const shared = shared_.get();
  Late find_late = [shared, number = announced_, watch = watches_,
                    name](const Deadline& deadline) {
    return shared->Check(number, watch, name, deadline);
  };
  Work work = {std::move(name),     announced_, watches_,
               std::move(begin),    end,        call,
               std::move(find_late)};
  queue_->Push("watch", [shared = shared_, work = std::move(work)] {
    {
      const std::lock_guard<std::mutex> lock(shared->mutex);
      shared->find_late = work.find_late;
    }
    return WatchOne(shared.get(), work,
                    [&] { return shared->queue->IsStopping(); });
  });
  return end;
}

void Watchdog::WatchHere(std::string name, const Event& end,
                         const Late& find_late,
                         const std::function<bool()>& stops) {
  {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->find_late_here = find_late;
  }
  auto ends = std::make_shared<End>();
  ends->Set(end);
  const Status ended = WatchOne(shared_.get(),
                                {std::move(name), 0, 0, Event(),
                                 std::move(ends), std::nullopt, find_late},
                                stops);
  {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->find_late_here = nullptr;
  }
  if (ended.ok()) return;
  shared_->Report(ended);
  shared_->Abort(ended);
}

Status Watchdog::FindLate(const Deadline& deadline) const {
  if (!deadline.Expired()) return Status();
  std::array<Late, 2> all;
  {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    all = {shared_->find_late, shared_->find_late_here};
  }
  for (const Late& find_late : all) {
    if (!find_late) continue;
    Status late = find_late(deadline);
    if (late.code() == StatusCode::kDeadlineExceeded && late.rank() >= 0) {
      return late;
    }
  }
  return Status();
}

void Watchdog::Report(const Status& error) {
  shared_->Report(error);
  // After the watches, which then end.
  queue_->Push("abort", [shared = shared_, error] {
    shared->Abort(error);
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
  notices->RecordEnd(std::numeric_limits<uint64_t>::max(), error);
  Attempt([&] { notices->FailUnlogged(error); });
  const std::lock_guard<std::mutex> lock(mutex);
  if (!failed.ok()) return;
  for (const Handler& handler : handlers) Attempt([&] { handler(error); });
  Attempt([&] { failed = error; });
}

void Watchdog::Shared::Abort(const Status& error) noexcept {
  comms->Abort();
  // Behind the abort: a thread of the host may hold the lock that the host's
  // log function takes, while it waits for the device.
  Attempt([&] { notices->Fail(error); });
}

Status Watchdog::Shared::Check(uint64_t number_announced, uint64_t number_watch,
                               std::string_view what,
                               const Deadline& deadline) {
  const Status late = notices->Check(number_announced, what, deadline);
  if (late.code() != StatusCode::kDeadlineExceeded) return late;
  // The error that has ended the family has its own text.
  const Status ended =
      notices->Check(number_announced, what, Deadline::After(timeout));
  if (!ended.ok()) return ended;
  return Status(late.code(), StrCat(late.message(), QueuedBehind(number_watch)),
                late.rank(), std::string(late.detail()));
}

std::string Watchdog::Shared::QueuedBehind(uint64_t number_watch) {
  constexpr size_t kMost = 4;
  std::vector<Watched> behind;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    std::copy_if(watched.begin(), watched.end(), std::back_inserter(behind),
                 [&](const Watched& it) { return it.watch > number_watch; });
  }
  // Work of other streams may have ended.
  std::erase_if(behind, [](const Watched& it) { return it.end->IsDone(); });
  std::string text;
  for (size_t i = 0; i < std::min(behind.size(), kMost); ++i) {
    StrAppend(&text, text.empty() ? "; queued behind it: '" : ", '",
              behind[i].name, "'");
  }
  if (behind.size() > kMost) {
    StrAppend(&text, " and ", behind.size() - kMost, " more");
  }
  return text;
}

Status Watchdog::WatchOne(Shared* shared, const Work& work,
                          const std::function<bool()>& stops) {
  std::optional<Deadline> deadline = work.call;
  std::optional<Deadline> gone;
  Pause pause = PauseOfWatch();
  const auto find_error = [&]() -> Status {
    const Deadline never = Deadline::After(shared->timeout);
    // The error of another rank is told as it is, whatever this one is at.
    SHARD_RETURN_IF_ERROR(
        shared->notices->Check(work.number, work.name, never));
    const Status late = work.find_late(deadline.value_or(never));
    const char* const call = work.end->call();
    if (late.code() == StatusCode::kDeadlineExceeded && late.rank() < 0 &&
        call != nullptr) {
      const int rank = shared->comms->rank();
      return Status(late.code(),
                    StrCat("'", work.name, "': ", call, " on rank ", rank,
                           " has not returned within ",
                           deadline.value_or(never).seconds(), " s",
                           shared->QueuedBehind(work.watch)),
                    rank);
    }
    SHARD_RETURN_IF_ERROR(late);
    SHARD_RETURN_IF_ERROR(shared->comms->AsyncError());
    // A rank that is gone may have announced later ones before.
    const Status lost = shared->notices->Check(
        std::numeric_limits<uint64_t>::max(), "NCCL's next collective", never);
    if (lost.code() != StatusCode::kRankLost) return Status();
    if (!gone) gone = Deadline::After(kGoneRankSeconds);
    return gone->Expired() ? lost : Status();
  };
  Status ended;
  while (!work.end->HasEnded(&ended)) {
    if (stops()) return Status();
    if (!deadline && work.begin.IsDone()) {
      deadline = Deadline::After(shared->timeout);
    }
    SHARD_RETURN_IF_ERROR(find_error());
    pause.Take();
  }
  // A stream that has failed may have given NCCL's calls to the device before,
  // and the other ranks may never make theirs: an abort ends them.
  if (!ended.ok()) {
    // The stream has told the family, whose error the others have.
    SHARD_RETURN_IF_ERROR(find_error());
    return ended;
  }
  shared->notices->RecordEnd(work.number, Status());
  const std::lock_guard<std::mutex> lock(shared->mutex);
  std::erase_if(shared->watched,
                [&](const Watched& it) { return it.watch <= work.watch; });
  return Status();
}

}  // namespace shard::nccl
