// SPDX-License-Identifier: Apache-2.0
//
// Watchdog: ends collectives of NCCL that do not end by themselves. NCCL waits
// for ever for a rank that is dead, late, or has made another call, and so does
// the device. A thread watches each collective in turn; when one is late, or
// its stream has failed, or the family of the communicator has ended, it tells
// the family why, tells its owner (OnFailure), and then aborts NCCL's
// communicators, so that the device goes on. Until then it calls no function of
// the host's and waits for none: a thread of the host may hold the host's lock
// while it waits for the device.
//
// The ranks announce their collectives to each other before they enqueue them
// (Announce). So a rank that enqueues something else is found at once, and one
// that is late is known by name.
//
// Threads: one at a time announces and watches, and another one at a time
// watches here; FindLate, OnFailure and Report may be called from any thread.

#ifndef SHARD_CORE_COLLECTIVES_NCCL_WATCHDOG_H_
#define SHARD_CORE_COLLECTIVES_NCCL_WATCHDOG_H_

#include <string.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/collectives/nccl/rank_comms.h"
#include "core/comm/notices.h"
#include "core/device/event.h"
#include "core/device/work_queue/work_queue.h"
#include "core/observe/collective_ring.h"

namespace shard::nccl {

// One rank's next collective, as the others see it. Without padding, so that it
// is compared by its bytes.
struct Announcement {
  enum class Kind : int32_t {
    kReduceScatter,  // Summed by NCCL.
    kAllToAll,       // Blocks for a sum in the order of ranks.
    kAllGather,
    kBroadcast,
    kTogether,  // A kernel that meets those of the other ranks.
  };
  static constexpr size_t kTagBytes = 48;

  Kind kind = Kind::kBroadcast;
  int32_t stride = 0;  // Of the set, and its number of ranks.
  int32_t ranks = 0;
  int32_t root = 0;
  uint64_t count = 0;  // Elements of a block, or bytes.
  int32_t dtype = 0;
  int32_t recv_dtype = 0;
  int32_t add = 0;
  int32_t block_groups = 0;
  char tag[kTagBytes] = {};  // Padded with zeros.

  std::string_view tag_text() const { return {tag, ::strnlen(tag, kTagBytes)}; }
  // Returns the event as which the collective is counted.
  EventId event() const;
  std::string ToText() const;
  // Describes the collective for the record of the last ones.
  void DescribeTo(CollectiveCall* call) const;
};
static_assert(std::has_unique_object_representations_v<Announcement>);

class Watchdog {
 public:
  // `comms` is aborted when a collective is late. `timeout`: seconds, as
  // CollectivesOptions has it. kResourceExhausted without a thread.
  static StatusOr<std::unique_ptr<Watchdog>> Start(
      std::shared_ptr<Notices> notices, std::shared_ptr<RankComms> comms,
      double timeout);

  // Announces this rank's next collective. Errors: those of the family; kDesync
  // where ranks have announced different ones. All ranks name the first that
  // has not announced what rank 0 has, for which they wait until all have come
  // to that collective.
  Status Announce(const Announcement& mine, const Deadline& deadline);

  // Returns what makes checks of the collective that was announced last, for
  // waits of RankComms, when the stream comes to it. `name`, `call`: as Watch.
  using CheckUntil = std::function<RankComms::Check()>;
  CheckUntil Checks(std::string name, std::optional<Deadline> call) const;

  // The end of collectives, which is known once they are enqueued.
  class End {
   public:
    void Set(Event event) {
      const std::lock_guard<std::mutex> lock(mutex_);
      event_ = std::move(event);
    }
    bool IsDone() const {
      const std::lock_guard<std::mutex> lock(mutex_);
      return event_ && event_->IsDone();
    }
    // Returns whether the result is done, and sets the status of its stream.
    // One call of the driver that fails says that an event is done, too early.
    bool HasEnded(Status* status) const {
      std::optional<Event> event;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        event = event_;
      }
      if (!event || !event->IsDone()) return false;
      *status = event->Synchronize(Deadline::After(0));
      return status->code() != StatusCode::kDeadlineExceeded || event->IsDone();
    }
    // For RankComms::Enqueue. Behind queued work a thread of the stream makes
    // NCCL's calls, after Set.
    RankComms::Calling* calling() { return &calling_; }
    // Returns the call that has not returned, or null.
    const char* call() const { return calling_; }

   private:
    mutable std::mutex mutex_;
    std::optional<Event> event_;  // GUARDED_BY(mutex_)
    RankComms::Calling calling_ = nullptr;
  };

  // Watches the collectives that were announced last, which errors call `name`,
  // until the result is done. Called before they are enqueued, so that a call
  // that blocks inside NCCL is watched, too. Their time begins with `begin`.
  // `call`: when their time ends, or null for the timeout.
  std::shared_ptr<End> Watch(std::string name, Event begin,
                             std::optional<Deadline> call);

  // As Collectives::WatchLaunch.
  using Late = std::function<Status(const Deadline& deadline)>;
  void WatchHere(std::string name, const Event& end, const Late& find_late,
                 const std::function<bool()>& stops);

  // As Collectives::FindLate.
  Status FindLate(const Deadline& deadline) const;

  // Ends the family with an error that was found elsewhere, and aborts NCCL.
  void Report(const Status& error);

  // As Collectives::OnFailure.
  using Handler = std::function<void(const Status&)>;
  std::shared_ptr<void> OnFailure(Handler handler);

 private:
  struct Watched {
    uint64_t watch;  // Its number, from 1.
    std::string name;
    std::shared_ptr<const End> end;
  };
  struct Shared {
    std::shared_ptr<Notices> notices;
    std::shared_ptr<RankComms> comms;
    double timeout;
    // Held while handlers run, which may wait seconds for kernels that they
    // end: FindLate and the texts of other errors come after them.
    std::mutex mutex;
    std::list<Handler> handlers;  // GUARDED_BY(mutex)
    Status failed;                // GUARDED_BY(mutex)
    // Know who is late with the collectives that run: those of the queue, and
    // those of WatchHere. GUARDED_BY(mutex)
    Late find_late;
    Late find_late_here;
    // The watches that have not ended, in order. GUARDED_BY(mutex)
    std::deque<Watched> watched;
    // Set before the first work.
    const WorkQueue* queue = nullptr;

    // Tells the family and the owner of an error.
    void Report(const Status& error) noexcept;
    // Aborts NCCL, and then logs the end of the family.
    void Abort(const Status& error) noexcept;
    // As Notices::Check, but an error of the deadline names what is queued
    // behind the collectives, which are those of a watch.
    Status Check(uint64_t number_announced, uint64_t number_watch,
                 std::string_view what, const Deadline& deadline);
    // Returns "; queued behind it: 'sum', 'gather'", or "".
    std::string QueuedBehind(uint64_t number_watch);
  };
  struct Work {
    std::string name;
    uint64_t number;  // 0: of none that were announced.
    uint64_t watch;
    Event begin;
    std::shared_ptr<const End> end;
    std::optional<Deadline> call;
    Late find_late;
  };

  explicit Watchdog(std::shared_ptr<Shared> shared)
      : shared_(std::move(shared)) {}
  // Watches until the end of the work, or until `stops` returns true.
  static Status WatchOne(Shared* shared, const Work& work,
                         const std::function<bool()>& stops);
  // Ends the family with the error of the first collectives that differ.
  // `number`: those of some that do. Returns the family's error.
  Status FindDifferent(uint64_t number, const Deadline& deadline);

  const std::shared_ptr<Shared> shared_;
  uint64_t announced_ = 0;
  uint64_t watches_ = 0;
  std::unique_ptr<WorkQueue> queue_;
};

}  // namespace shard::nccl

#endif  // SHARD_CORE_COLLECTIVES_NCCL_WATCHDOG_H_
