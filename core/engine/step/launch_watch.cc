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

Status LoneLaunch(int rank) {
  return Status(
      StatusCode::kFailedPrecondition,
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
  const auto watched = std::make_shared<Watched>(Watched{
      comm->rank(), std::move(notices), collectives, launches, timeout});
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
    // Where the family has ended the watch says so, and ends the launch.
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
}

Status LaunchWatch::Watched::FindLate(uint32_t launch, uint64_t notice,
                                      const Deadline& deadline) const {
  const Status late = notices->Check(notice, kLaunch, deadline);
  if (late.code() != StatusCode::kDeadlineExceeded || late.rank() < 0) {
    return late;
  }
  if (launches.IsTooMany(launch)) return LoneLaunch(rank);
  return late.WithContext(
      "a rank has not launched its graph after before_replay");
}

}  // namespace shard
