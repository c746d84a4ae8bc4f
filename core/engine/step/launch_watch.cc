// SPDX-License-Identifier: Apache-2.0

#include "core/engine/step/launch_watch.h"

#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include "core/base/strings.h"

namespace shard {

namespace {

constexpr std::string_view kLaunch = "replay of a captured step";

// Between two looks for a launch: those that wait for one another have all
// begun, so what a look costs a step is the error that comes this much later.
constexpr auto kPause = std::chrono::milliseconds(10);

}  // namespace

Status LoneLaunch(StatusCode code, int rank) {
  return Status(
      code,
      StrCat("rank ", rank,
             " has launched a graph without before_replay, or twice after one, "
             "and the other ranks have not launched theirs as often; make the "
             "engine anew, load a checkpoint, and launch the graph once after "
             "each before_replay"),
      rank);
}

StatusOr<std::unique_ptr<LaunchWatch>> LaunchWatch::Start(
    Communicator* comm, Collectives* collectives, const GraphLaunches& launches,
    double timeout, const Deadline& deadline) {
  std::unique_ptr<LaunchWatch> watch(new LaunchWatch());
  SHARD_ASSIGN_OR_RETURN(auto notices,
                         comm->OpenNotices("launches of graphs", 1, deadline));
  auto queue =
      WorkQueue::Start(std::make_shared<Monitor>(), "shard-launches", Pauses());
  SHARD_RETURN_IF_ERROR(AgreeOnStatus(comm, "start a thread for launches",
                                      queue.status(), deadline));
  watch->queue_ = *std::move(queue);
  watch->is_lone_ = std::make_shared<std::atomic<bool>>(false);
  const auto watched = std::make_shared<Watched>(
      Watched{comm->rank(), std::move(notices), collectives, launches, timeout,
              watch->is_lone_});
  watch->queue_->Push(kLaunch, [watched, queue = watch->queue_.get()] {
    for (; !queue->IsStopping(); std::this_thread::sleep_for(kPause)) {
      try {
        Look(watched, *queue);
      } catch (const std::bad_alloc&) {  // NOLINT: a later look may find some
      }
    }
    return Status();
  });
  return watch;
}

void LaunchWatch::Look(const std::shared_ptr<Watched>& watched,
                       const WorkQueue& queue) {
  Watched& it = *watched;
  for (const uint32_t begun = it.launches.Begun(); it.told != begun;
       ++it.told, ++it.notices_told) {
    // The watch says that the family has ended, and ends the launch.
    if (!it.notices->failure().ok()) {
      it.told = begun;
      break;
    }
    const char notice = 0;
    (void)it.notices
        ->Post(
            &notice, [](auto&&...) {}, Deadline::After(it.timeout))
        .ok();
  }
  const uint32_t launch = it.told;
  if (it.watched == launch) return;
  it.collectives->WatchLaunch(
      kLaunch, it.launches.EndOf(launch),
      [watched, launch, told = it.notices_told](const Deadline& deadline) {
        return watched->FindLate(launch, told, deadline);
      },
      [&queue] { return queue.IsStopping(); });
  it.watched = launch;
  it.notices->RecordEnd(it.notices_told, Status());
}

Status LaunchWatch::Watched::FindLate(uint32_t launch, uint64_t notice,
                                      const Deadline& deadline) const {
  SHARD_RETURN_IF_ERROR(notices->failure());
  const Status late = notices->Check(notice, kLaunch, deadline);
  const StatusCode code = late.code();
  if (late.ok() || code == StatusCode::kRankLost) return late;
  if (code != StatusCode::kDeadlineExceeded) {
    // Ranks tell nothing once they have shut down, and still end their work.
    if (!deadline.Expired()) return Status();
    return DeadlineExceeded("'", kLaunch, "' took longer than ",
                            deadline.seconds(),
                            " s, and the communicator was shut down");
  }
  if (late.rank() < 0) return late;
  if (launches.IsTooMany(launch)) {
    if (deadline.Expired()) *is_lone = true;
    return LoneLaunch(code, rank);
  }
  return late.WithContext(
      "a rank has not launched its graph after before_replay, or not come to "
      "the step in it");
}

}  // namespace shard
