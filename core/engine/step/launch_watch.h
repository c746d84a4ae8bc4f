// SPDX-License-Identifier: Apache-2.0
//
// LaunchWatch: watches the launches of a captured step whose collectives run on
// the device. The host makes a launch by itself, so nothing else says that one
// has begun. A thread tells the other ranks so, and watches the launch's
// collectives to its end (Collectives::WatchLaunch): a rank that has not
// launched its graph is known by name, and where one alone has launched it, its
// host and its stream do not wait for ever, whatever that host does.
//
// Each launch counts, also a stray (GraphLaunches): where all ranks make one,
// their collectives meet, and nothing is wrong with those.

#ifndef SHARD_CORE_ENGINE_STEP_LAUNCH_WATCH_H_
#define SHARD_CORE_ENGINE_STEP_LAUNCH_WATCH_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/collectives/collectives.h"
#include "core/comm/communicator.h"
#include "core/comm/notices.h"
#include "core/device/work_queue/work_queue.h"
#include "core/engine/step/graph_launches.h"

namespace shard {

// Returns the error of a rank whose launch was not expected, and that the other
// ranks have not made.
Status LoneLaunch(StatusCode code, int rank);

class LaunchWatch {
 public:
  // Watches until the result is destroyed. COLLECTIVE. REQUIRES: no launch has
  // begun. `timeout`: seconds, for which the thread tells of a launch.
  // `collectives` must outlive the result.
  static StatusOr<std::unique_ptr<LaunchWatch>> Start(
      Communicator* comm, Collectives* collectives,
      const GraphLaunches& launches, double timeout, const Deadline& deadline);

  // Returns whether a launch of this rank was found that no other rank has
  // made.
  bool is_lone() const { return *is_lone_; }

 private:
  struct Watched {
    int rank;
    std::unique_ptr<Notices> notices;
    Collectives* collectives;
    GraphLaunches launches;
    double timeout;
    std::shared_ptr<std::atomic<bool>> is_lone;
    // The launches that the other ranks were told, the notices of that, and the
    // last launch that was watched. The watch's thread has them.
    uint32_t told = 0;
    uint64_t notices_told = 0;
    uint32_t watched = 0;

    // Returns why a launch that runs is late at `deadline`: as Notices::Check,
    // but one too many is this rank's own fault. `notice`: that of the launch.
    Status FindLate(uint32_t launch, uint64_t notice,
                    const Deadline& deadline) const;
  };
  // Tells the other ranks of launches that have begun, and watches the last of
  // them to its end, or until `queue` stops.
  static void Look(const std::shared_ptr<Watched>& watched,
                   const WorkQueue& queue);

  LaunchWatch() = default;

  std::shared_ptr<std::atomic<bool>> is_lone_;
  std::unique_ptr<WorkQueue> queue_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STEP_LAUNCH_WATCH_H_
