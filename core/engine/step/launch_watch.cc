// SPDX-License-Identifier: Apache-2.0

#include "core/engine/step/launch_watch.h"

#include <chrono>
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
    return Watch(watched, *queue);
  });
  return watch;
}

Status LaunchWatch::Watch(const std::shared_ptr<Watched>& watched,
                          const WorkQueue& queue) {
  const auto stops = [&queue] { return queue.IsStopping(); };
  uint64_t told = 0;
  for (uint32_t begun = 0; !stops(); std::this_thread::sleep_for(kPause)) {
    const uint32_t now = watched->launches.Begun();
    if (now == begun) continue;
    for (; begun != now; ++begun, ++told) {
      // Where the family has ended the watch says so, and ends the launch.
      const char notice = 0;
      (void)watched->notices
          ->Post(
              &notice, [](auto&&...) {}, Deadline::After(watched->timeout))
          .ok();
    }
    watched->collectives->WatchLaunch(
        kLaunch, watched->launches.EndOf(begun),
        [watched, begun, told](const Deadline& deadline) {
          return watched->FindLate(begun, told, deadline);
        },
        stops);
  }
  return Status();
}

Status LaunchWatch::Watched::FindLate(uint32_t launch, uint64_t told,
                                      const Deadline& deadline) const {
  const Status late = notices->Check(told, kLaunch, deadline);
  if (late.code() != StatusCode::kDeadlineExceeded || late.rank() < 0) {
    return late;
  }
  if (launches.IsTooMany(launch)) return LoneLaunch(rank);
  return late.WithContext(
      "a rank has not launched its graph after before_replay");
}

}  // namespace shard
