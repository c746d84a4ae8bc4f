// SPDX-License-Identifier: Apache-2.0
//
// Meeting: the rendezvous of the helpers of all hosts of a job, at a host and a
// port that all of them are given, or by a folder that they share. The helper
// that can bind the address, or that is the first in the folder, is the master
// (master.h) and a member as well; the others are members. A member connects
// until its deadline: the master may come later.
//
//   Meeting meeting(loop, {.host = "node-1", .port = 29500, ...},
//                   [&](StatusOr<Mesh> mesh) { ... });
//   meeting.AddRank(4);  // As the ranks of this host come.
//   loop->Run();
//
// The result is a channel to every other host, or one Status: the same code and
// the same rank on all hosts that have met the master. A host that cannot reach
// the master returns kDeadlineExceeded at its deadline. An error:
//
//   kInvalidArgument    a rank out of range, another world size, ranks of a
//   host
//                       that are not contiguous, a wrong option
//   kAlreadyExists      a rank that two processes have, or a port that another
//                       job or another program has
//   kUnauthenticated    another secret
//   kFailedPrecondition another version of libshard, another restart, a folder
//                       with a file of a master that is gone
//   kPermissionDenied   no secret, and an address beyond this host
//   kRankLost           a helper that has left; its lowest rank is named
//   kDeadlineExceeded   ranks that did not come, of which 32 are named
//   kUnavailable        a host that cannot be reached; a name that nobody knows
//                       is kNotFound
//
// Threads: the loop's. Other threads use Loop::Post.

#ifndef SHARD_CORE_COMM_NETWORK_HELPER_RENDEZVOUS_H_
#define SHARD_CORE_COMM_NETWORK_HELPER_RENDEZVOUS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/fd.h"
#include "core/base/status.h"
#include "core/comm/network/helper/address.h"
#include "core/comm/network/helper/channel.h"
#include "core/comm/network/helper/folder_point.h"
#include "core/comm/network/helper/loop.h"
#include "core/comm/network/helper/master.h"
#include "core/comm/network/helper/mesh.h"
#include "core/comm/network/helper/secret.h"

namespace shard::network {

struct MeetingOptions {
  std::string folder;  // The rendezvous point, where there is no `host`.
  std::string host;    // The rendezvous point: a name or an address.
  uint16_t port = 0;
  Identity identity;  // With the job's secret, if it has one.
  int world_size = 0;
  // Allows addresses beyond this host without a secret.
  bool trust_network = false;
  LocalChoice local;  // interface= or address=
  Deadline deadline = Deadline::After(300);
  double timeout = 0;     // Seconds of waits after the meeting; 0: not known.
  std::string host_name;  // Names this host in errors.
  // Takes lines for the log: connections of strangers.
  std::function<void(const std::string& line)> warn;
  Resolution::Resolver resolver;  // For tests.
};

// Returns the time of silence after which a peer is lost while hosts meet: five
// seconds, or a quarter of a shorter deadline.
double SilenceSeconds(const Deadline& deadline);

// Returns that of hosts which have met: no more than a quarter of the time of a
// wait, so that a lost host is named before others run out of time; but not
// below a second, for which a busy machine may keep a helper from its work.
double SilenceSeconds(const Deadline& deadline, double timeout);

// Returns an error for an address at which a job without a secret must not
// listen: one that other hosts reach, unless the user trusts their network.
Status CheckTrust(const SocketAddress& address, bool has_secret,
                  bool trust_network);

class Meeting {
 public:
  // Called once, from the loop; may free the Meeting.
  using Done = std::function<void(StatusOr<Mesh>)>;

  // Begins. Errors come by `done`. `loop` outlives this.
  Meeting(Loop* loop, MeetingOptions options, Done done);
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // Adds a rank of this host.
  void AddRank(int rank);

  // Ends the rendezvous of all hosts with an error of this one. `done` is
  // called with that error as all hosts get it, or, where the master cannot be
  // reached, as it is.
  void Fail(const Status& why);

  // Returns the master in this process, if any, for tests and measurements.
  const Master* master() const { return master_.get(); }

 private:
  // The time after the deadline for which a member waits for the verdict of the
  // master, which names the ranks that are missing.
  static constexpr double kGraceSeconds = 2 * Master::kLingerSeconds;

  Status Begin();
  void Resolve();
  void HandleResolved(Resolution::Addresses addresses);
  // Returns the address of the master in the folder, which this host becomes if
  // there is none.
  Resolution::Addresses FindMaster();
  Status ListenForMesh();
  Status CheckTrust(const SocketAddress& address) const {
    return network::CheckTrust(address, identity_->secret.given(),
                               options_.trust_network);
  }
  // Become the master if this host can, and connect to it.
  void Try();
  Status TryToBecomeMaster();
  Status BecomeMaster(Fd listening);
  // Tries again what has failed, or finishes where nobody will answer.
  void HandleUnreached(const Status& why);
  void TryLater();
  void ConnectToMaster();

  void HandleOpen();
  void HandleFrame(Kind kind, Channel::Bytes body);
  void HandleClosed(const Status& why);
  Status HandleRefused(Refusal refusal, const Status& why);
  void HandleTable(Channel::Bytes body);
  void HandleMeshed(const Status& status);
  void HandleDeadline();
  void SendToMaster(Kind kind, Channel::Bytes body);

  // Calls `done` from the loop with an error, or with the mesh.
  void Finish(const Status& status);
  bool connected() const { return channel_ != nullptr && channel_->open(); }

  Loop* const loop_;
  MeetingOptions options_;
  Done done_;  // Null once called.
  const std::shared_ptr<const Identity> identity_;
  const std::string where_;
  const double silence_seconds_;  // While hosts meet.

  std::unique_ptr<FolderPoint> folder_;  // Null: at a host and a port.
  std::unique_ptr<Resolution> resolution_;
  std::vector<SocketAddress> addresses_;  // Of the rendezvous point.
  size_t next_address_ = 0;
  std::unique_ptr<MeshBuilder> mesh_;
  std::unique_ptr<Master> master_;
  std::unique_ptr<Channel> channel_;  // To the master.

  std::vector<int32_t> ranks_;
  Status failure_;  // Of Fail.
  int32_t master_rank_ = -1;
  // Why the last attempt failed, and since when a peer was there which is not
  // the master.
  Status last_error_;
  std::optional<Deadline> give_up_;
  double wait_seconds_ = 0.01;
  bool meshed_ = false;
  bool finishing_ = false;
  Loop::Timer retry_;
  Loop::Timer deadline_timer_;
  Loop::Timer fail_timer_;
  Loop::Timer finish_;
};

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_HELPER_RENDEZVOUS_H_
