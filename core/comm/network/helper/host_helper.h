// SPDX-License-Identifier: Apache-2.0
//
// HostHelper: the work of a network helper. It brings the ranks of its host
// together with those of the others, makes the memory that they ask for, and
// keeps it like that of the other hosts.
//
//   ranks come      LocalEnd     each is told to the Meeting of all hosts
//   all have come   Meeting      gives the table of hosts and the mesh
//   links are open  MeshLinks    the ranks are welcomed
//   from then on    Mirror       copies what the ranks write
//   all are gone                 says goodbye, and stops the loop
//
// Threads: the loop's.

#ifndef SHARD_CORE_COMM_NETWORK_HELPER_HOST_HELPER_H_
#define SHARD_CORE_COMM_NETWORK_HELPER_HOST_HELPER_H_

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "core/base/deadline.h"
#include "core/base/fd.h"
#include "core/base/mapping.h"
#include "core/base/status.h"
#include "core/comm/network/helper/local_end.h"
#include "core/comm/network/helper/loop.h"
#include "core/comm/network/helper/mesh_links.h"
#include "core/comm/network/helper/mirror.h"
#include "core/comm/network/helper/rendezvous.h"

namespace shard::network {

class HostHelper final : public LocalEnd::Listener {
 public:
  // `listening` is the socket that a rank has bound. Stops `loop`, which
  // outlives the result, when the last rank is gone. `version`: of the library,
  // which all hosts must have. `warn` takes lines for the log.
  static StatusOr<std::unique_ptr<HostHelper>> Create(
      Fd listening, Loop* loop, std::string version,
      std::function<void(std::string_view)> warn);

  void OnRank(const LocalEnd::Rank& rank) override;
  void OnGone(int rank, LocalEnd::End how, const Status& why) override;
  void OnRefused(const Status& why) override;
  void OnRegionRequest(int rank, const LocalEnd::Request& request) override;
  void OnRelease(int rank, std::string_view key) override;
  void OnEmpty() override;
  void OnWarning(std::string_view text) override { warn_(text); }

 private:
  // Memory for the ranks that ask for one key.
  struct SharedRegion {
    size_t bytes = 0;
    RegionLayout layout;
    std::set<int> ranks;  // Those that have not released it.
    Status refusal;       // Why no memory was made.
    Fd memory;
  };
  using Regions = std::map<std::string, SharedRegion, std::less<>>;

  HostHelper(Loop* loop, std::string version,
             std::function<void(std::string_view)> warn)
      : loop_(loop), version_(std::move(version)), warn_(std::move(warn)) {}

  Status StartMeeting(const LocalEnd::Rank& first);
  void HandleMet(StatusOr<Mesh> mesh);
  Status MakeMirror();
  void WelcomeRanks();
  void HandleLost(int host, const Status& why);
  void FailMeeting(const Status& why);
  // Copies what the ranks have written since they rang.
  void HandleBell();

  // Returns the descriptor of the memory of a key, which is made, or refused,
  // for all ranks when the first of them asks.
  StatusOr<int> TakeRegion(int rank, const LocalEnd::Request& request);
  // Makes memory, and mirrors it.
  StatusOr<Fd> MakeRegion(const LocalEnd::Request& request);
  void DropRegion(Regions::iterator region, int rank);
  // Returns whether `rank` is one of this host, as far as that is known.
  bool IsOfThisHost(int rank) const;
  direct::ControlBlock* block() const {
    return reinterpret_cast<direct::ControlBlock*>(control_->data());
  }

  Loop* const loop_;
  const std::string version_;
  const std::function<void(std::string_view)> warn_;
  std::unique_ptr<LocalEnd> local_end_;
  std::unique_ptr<Meeting> meeting_;        // From the first rank to the mesh.
  Deadline deadline_ = Deadline::After(0);  // Of the first rank.
  bool has_failed_ = false;                 // The meeting.
  bool was_welcomed_ = false;

  // From the mesh on.
  std::unique_ptr<MeshLinks> links_;
  Fd control_memory_;
  std::shared_ptr<const Mapping> control_;
  Fd bell_;
  Loop::Watch bell_watch_;
  std::unique_ptr<Mirror> mirror_;
  Regions regions_;
};

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_HELPER_HOST_HELPER_H_
