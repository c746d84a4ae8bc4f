// SPDX-License-Identifier: Apache-2.0
//
// The rendezvous of the processes of a "shm:NAME" group. Rank 0 is the host: it
// listens on the abstract Unix socket "\0libshard-<euid>-NAME"; the others are
// guests and connect. The conversation is in wire.h. Both sides check that the
// other one has the same user, so that no process of another user is trusted.
//
// The first process that binds an abstract name has it, and such names belong
// to no user: the user id in them keeps honest users apart. A user who takes
// another's name prevents that rendezvous, and is named in its error.
//
// An error of the rendezvous (a missing, lost, duplicate or disagreeing rank)
// is found by the host and returned by every rank that has come. Guests return
// no later than half a second after their deadline, whatever the host does.
//
// A host that dies after it has greeted a guest is kRankLost there, at once. A
// host that dies earlier has met nobody: its guests cannot distinguish its
// death from the end of an earlier rendezvous under that name, wait for a new
// host, and return kDeadlineExceeded ("rank 0 did not come") at their deadline.

#ifndef SHARD_CORE_COMM_SHM_RENDEZVOUS_H_
#define SHARD_CORE_COMM_SHM_RENDEZVOUS_H_

#include <sys/types.h>
#include <sys/un.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/fd.h"
#include "core/base/mapping.h"
#include "core/base/status.h"
#include "core/comm/direct/membership.h"
#include "core/observe/observer.h"

namespace shard::shm {

// The longest NAME that fits into a socket address, whatever the user id.
inline constexpr size_t kMaxNameBytes = 80;

struct RendezvousOptions {
  std::string name;  // Checked by CheckName.
  int rank;
  int world_size;
  Deadline deadline;
  Observer* observer;  // Records connections of strangers.
  // Called at named points, for tests that kill a rank there.
  std::function<void(std::string_view)> phase_hook;

  void Phase(std::string_view what) const {
    if (phase_hook) phase_hook(what);
  }
};

// The resources of a rank once all ranks have met.
struct Rendezvous {
  Mapping control;  // The ControlBlock.
  // In the control block, from the time when this rank has mapped it: a later
  // error may come after the other ranks have learned that all have come.
  direct::Membership membership;
  direct::ControlBlock* block() const {
    return reinterpret_cast<direct::ControlBlock*>(control.data());
  }

  std::vector<Fd> connections;   // By rank. The host's: all; a guest's: [0].
  std::vector<Fd> pidfds;        // By rank; empty when a rank had none.
  std::vector<pid_t> processes;  // By rank; 0 where not known.
};

Status CheckName(std::string_view name);

// Meet the other ranks: Host on rank 0, Join on every other rank.
StatusOr<Rendezvous> Host(const RendezvousOptions& options);
StatusOr<Rendezvous> Join(const RendezvousOptions& options);

// --- shared by the two sides ---

struct Address {
  sockaddr_un address;
  socklen_t size;
};
Address AddressOf(std::string_view name);

// Maps the ControlBlock, and makes this rank a member from here on.
Status MapControlBlock(const Fd& memory, const RendezvousOptions& options,
                       Rendezvous* rendezvous);

// Returns the process at the other end; an error when it belongs to another
// user.
StatusOr<pid_t> CheckPeer(int socket);

// Returns a pidfd of this process, which stays right when process ids are
// reused. Invalid on kernels and in sandboxes that have none.
StatusOr<Fd> OwnPidfd();

}  // namespace shard::shm

#endif  // SHARD_CORE_COMM_SHM_RENDEZVOUS_H_
