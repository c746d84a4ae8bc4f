// SPDX-License-Identifier: Apache-2.0
//
// A rank's connection to the network helper of its host.
//
// The ranks of a host meet their helper at the abstract Unix socket
// "\0libshard-net-<euid>-<hash of the key>". The rank that binds this name
// starts the helper, which takes the socket over; all ranks connect. Both sides
// check that the other one has the same user. A rank that dies between its bind
// and the start of the helper takes the socket with it, and another rank binds
// it again.
//
// An error of the meeting (a missing, lost, duplicate or disagreeing rank) is
// found by the helper and returned by every rank that has come. Ranks return no
// later than a second after their deadline, whatever the helper does.

#ifndef SHARD_CORE_COMM_NETWORK_MEET_HELPER_H_
#define SHARD_CORE_COMM_NETWORK_MEET_HELPER_H_

#include <sys/types.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/fd.h"
#include "core/base/mapping.h"
#include "core/base/status.h"
#include "core/comm/direct/control_block.h"
#include "core/comm/network/world.h"

namespace shard::network {

struct MeetOptions {
  // Tells the meetings of a host apart: any text, the same on all its ranks.
  std::string key;
  // The program, if this rank has to start it, and its arguments. The meeting
  // adds --listen-fd=3.
  std::string program;
  std::vector<std::string> arguments;
  // Whether the helper is a process; else it is a thread of this one, and
  // `program` is not used (in_process.h).
  bool isolate = true;
  // Whether the helper writes to the host's standard error output: see
  // LogsToStderr.
  bool keep_stderr = false;
  int rank = 0;
  int world_size = 1;
  std::string options;  // At most kMaxOptionsBytes.
  Deadline deadline = Deadline::After(0);
  double timeout = 0;  // Seconds of later waits; 0: not known.
  // Called at named points, for tests that kill a rank there: "bound",
  // "started", "greeted", "hello", "welcome".
  std::function<void(std::string_view)> phase_hook;
};

// A part of memory, in bytes.
struct CommitRange {
  size_t begin = 0;
  size_t bytes = 0;
};

// A rank's connection. Its end, or that of the process, ends the rank for the
// helper. In a child forked from the process the end does nothing. Thread-safe.
class HelperConnection {
 public:
  HelperConnection(Fd socket, int rank, pid_t helper, World world,
                   std::shared_ptr<Mapping> control, Fd bell);
  HelperConnection(const HelperConnection&) = delete;
  HelperConnection& operator=(const HelperConnection&) = delete;
  ~HelperConnection();

  int rank() const { return rank_; }
  const World& world() const { return world_; }
  // The ControlBlock of all ranks.
  const std::shared_ptr<Mapping>& control() const { return control_; }
  direct::ControlBlock* block() const {
    return reinterpret_cast<direct::ControlBlock*>(control_->data());
  }
  // An eventfd that wakes the helper: see direct::Bell.
  int bell() const { return bell_.get(); }
  // The process id of the helper, for messages.
  pid_t helper() const { return helper_; }

  // Returns whether the helper has ended, or has closed this connection. Does
  // not block.
  bool HelperIsGone() const;
  // Returns the error of a connection whose helper has ended.
  Status HelperGone() const;

  // Maps memory that all ranks of this host see which request the same key; the
  // others' copies are mirrored by their helpers, but for RegionKind::kOfHost.
  // Commits the pages of `commit`, a part of it. The helper answers by itself,
  // and waits for no rank. Errors: those of the helper, kRankLost when the
  // helper has ended, kDeadlineExceeded, kResourceExhausted.
  StatusOr<Mapping> RequestRegion(std::string_view key,
                                  const RegionLayout& layout, size_t bytes,
                                  const Deadline& deadline,
                                  const CommitRange& commit = {});
  // Ends this rank's use of a region. The mapping stays valid until it is
  // freed.
  Status ReleaseRegion(std::string_view key, const Deadline& deadline);

 private:
  const pid_t owner_;
  const Fd socket_;
  const int rank_;
  const pid_t helper_;
  const World world_;
  const std::shared_ptr<Mapping> control_;
  const Fd bell_;
  std::mutex mutex_;          // Held from a request to its answer.
  uint64_t last_number_ = 0;  // Under mutex_.
};

// Meets the helper and, by it, the ranks of all hosts. Errors:
// kDeadlineExceeded, which says how far the meeting came; kRankLost, with the
// lost rank, where a rank or the helper died; kBackendUnavailable where the
// helper cannot be started or ends at once; those that the helper finds.
// COLLECTIVE.
StatusOr<std::unique_ptr<HelperConnection>> MeetHelper(
    const MeetOptions& options);

// --- for tests ---

struct LocalAddress {
  sockaddr_un address;
  socklen_t size;
};
LocalAddress LocalAddressOf(std::string_view key);

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_MEET_HELPER_H_
