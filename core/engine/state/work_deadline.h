// SPDX-License-Identifier: Apache-2.0
//
// WorkDeadline: the time for which a rank waits for the others in a save or a
// load. While the others work (read and write files, copy a whole state), the
// wait may last as long as the rest of the whole operation's time, often half
// an hour. Where the ranks only exchange values, a rank that does not come
// hangs, and is found after the engine's timeout.

#ifndef SHARD_CORE_ENGINE_STATE_WORK_DEADLINE_H_
#define SHARD_CORE_ENGINE_STATE_WORK_DEADLINE_H_

#include <algorithm>
#include <chrono>

#include "core/base/deadline.h"

namespace shard {

class WorkDeadline {
 public:
  // Takes seconds: of the whole operation, from now on, and of each exchange.
  WorkDeadline(double all, double exchange)
      : work_(Deadline::After(all)), exchange_(exchange) {}

  // Returns the deadline of the whole operation, for waits in which another
  // rank works.
  const Deadline& Work() const { return work_; }

  // Returns the deadline of an exchange that begins now, at most the deadline
  // of the whole operation.
  Deadline Exchange() const {
    const std::chrono::duration<double> left = work_.Remaining();
    return Deadline::After(std::min(exchange_, left.count()));
  }

 private:
  Deadline work_;
  double exchange_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STATE_WORK_DEADLINE_H_
