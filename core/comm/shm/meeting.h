// SPDX-License-Identifier: Apache-2.0
//
// How the processes of a "shm:NAME" group meet. Rank 0 is the host: it listens
// on the abstract Unix socket "\0libshard-<euid>-NAME"; the others are guests
// and connect. The conversation is in wire.h. Both sides check that the other
// one has the same user, so that nobody else's process is believed.
//
// Whoever binds a name first has it, and abstract names belong to no user: the
// user id in them keeps users apart that mean no harm. One that takes another's
// name keeps that meeting from happening, and is named in its error.
//
// An error of the meeting (a missing, lost, duplicate or disagreeing rank) is
// found by the host and returned by every rank that has come. Guests return no
// later than half a second after their deadline, whatever the host does.
//
// A host that dies after it has greeted a guest is kRankLost there, at once.
// One that dies earlier has met nobody: its guests cannot tell it from the end
// of an earlier meeting under that name, wait for a new host, and return
// kDeadlineExceeded ("rank 0 did not come") at their deadline.

#ifndef SHARD_CORE_COMM_SHM_MEETING_H_
#define SHARD_CORE_COMM_SHM_MEETING_H_

#include <sys/types.h>
#include <sys/un.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/fd.h"
#include "core/base/logging.h"
#include "core/base/mapping.h"
#include "core/base/status.h"
#include "core/comm/direct/membership.h"

namespace shard::shm {

// The longest NAME that fits into a socket address, whatever the user id.
inline constexpr size_t kMaxNameBytes = 80;

struct MeetingOptions {
  std::string name;  // Checked by CheckName.
  int rank;
  int world_size;
  Deadline deadline;
  Logger logger;
  // Called at named points, for tests that kill a rank there.
  std::function<void(std::string_view)> phase_hook;

  void Phase(std::string_view what) const {
    if (phase_hook) phase_hook(what);
  }
};

// What a rank has once all have met.
struct Meeting {
  Mapping control;  // The ControlBlock.
  // In it, from when this rank has mapped it: an error after that may be one
  // after the others have heard that all have come.
  direct::Membership membership;
  direct::ControlBlock* block() const {
    return reinterpret_cast<direct::ControlBlock*>(control.data());
  }

  std::vector<Fd> connections;   // By rank. The host's: all; a guest's: [0].
  std::vector<Fd> pidfds;        // By rank; empty when a rank had none.
  std::vector<pid_t> processes;  // By rank; 0 where not known.
};

Status CheckName(std::string_view name);

// Rank 0, and every other rank.
StatusOr<Meeting> Host(const MeetingOptions& options);
StatusOr<Meeting> Join(const MeetingOptions& options);

// --- shared by the two sides ---

struct Address {
  sockaddr_un address;
  socklen_t size;
};
Address AddressOf(std::string_view name);

// Maps the ControlBlock, in which this rank takes part from here on.
Status TakePart(const Fd& memory, const MeetingOptions& options,
                Meeting* meeting);

// The process at the other end; an error when it is another user's.
StatusOr<pid_t> CheckPeer(int socket);

// A pidfd of this process, which no reuse of process ids can confuse. Invalid
// on kernels and in sandboxes that have none.
StatusOr<Fd> OwnPidfd();

}  // namespace shard::shm

#endif  // SHARD_CORE_COMM_SHM_MEETING_H_
