// SPDX-License-Identifier: Apache-2.0
//
// LocalEnd: the connections of a network helper to the ranks of its host.
//
// Takes the listening socket that the rank which started the helper has bound,
// accepts ranks, checks who they are, and watches them: a rank is gone when its
// process ends (by its pidfd) or its connection does. Answers are queued and
// sent as the ranks take them; no call blocks.
//
// Threads: those of the loop.

#ifndef SHARD_CORE_COMM_NETWORK_HELPER_LOCAL_END_H_
#define SHARD_CORE_COMM_NETWORK_HELPER_LOCAL_END_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/fd.h"
#include "core/base/status.h"
#include "core/comm/network/helper/loop.h"
#include "core/comm/network/world.h"

namespace shard::network {

class LocalEnd {
 public:
  // A rank of this host that has come.
  struct Rank {
    int rank;
    int world_size;
    pid_t process;
    Deadline deadline;    // Until which the rank waits for the others.
    double timeout;       // Seconds of its later waits; 0: not known.
    std::string options;  // The same on all ranks, or else refused.
  };

  enum class End {
    kLeft,  // Said goodbye.
    kDied,
  };

  struct Request {
    uint64_t number;  // For the answer.
    std::string key;
    size_t bytes;
    RegionLayout layout;
  };

  // Called from the loop. Calls may answer, and refuse, from within.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void OnRank(const Rank& rank) = 0;
    // A rank that OnRank has named is gone. `why` is an error of that rank for
    // the others, such as "rank 2 (process 4711) died".
    virtual void OnGone(int rank, End how, const Status& why) = 0;
    // A process was refused: it claims the rank of another, or a rank, a world
    // size, options or a version that differ. It has been told.
    virtual void OnRefused(const Status& why) = 0;
    virtual void OnRegionRequest(int rank, const Request& request) = 0;
    virtual void OnRelease(int rank, std::string_view key) = 0;
    // No rank is here, and no process that may become one: the helper ends. The
    // listening socket is closed already, so that the next rank to come starts
    // another helper. The last call.
    virtual void OnEmpty() = 0;
    // Something for the log.
    virtual void OnWarning(std::string_view text) = 0;
  };

  // The most connections that have not said hello, and the time that they have.
  static constexpr size_t kMaxStrangers = 1024;
  static constexpr double kHelloSeconds = 10;

  // Begins to accept. `listener` and `loop` outlive the result.
  static StatusOr<std::unique_ptr<LocalEnd>> Create(
      Fd listening, Loop* loop, Listener* listener,
      double hello_seconds = kHelloSeconds);
  ~LocalEnd();

  // Sends the Welcome, the Hosts and the Bell to a rank. `memory` is the memfd
  // of the ControlBlock of all ranks, `bell` an eventfd. Ends the meeting: the
  // name is free for the next one, for which the ranks may come as soon as they
  // have left this one.
  void SendWelcome(int rank, const World& world, int memory, int bell);
  // Ends the meeting with an error: for the rank, or for all that are here and
  // all that come from now on. A rank that comes once more begins another
  // meeting, with another helper.
  void SendVerdict(int rank, const Status& why);
  void FailMeeting(const Status& why);
  // Answers a request. A rank that is gone gets nothing.
  void SendRegion(int rank, uint64_t number, size_t bytes, int memory);
  void RefuseRegion(int rank, uint64_t number, const Status& why);

  // The ranks that are here, ascending.
  std::vector<int> ranks() const;

 private:
  class Impl;
  explicit LocalEnd(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_HELPER_LOCAL_END_H_
