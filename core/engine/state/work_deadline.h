// SPDX-License-Identifier: Apache-2.0
//
// WorkDeadline: how long a rank waits for the others in a save or a load. While
// they work (read and write files, copy a whole state) it waits for the rest of
// the time that all of it may take, often half an hour. Where they only meet, a
// rank that does not come is hung, and is found after the engine's timeout.

#ifndef SHARD_CORE_ENGINE_STATE_WORK_DEADLINE_H_
#define SHARD_CORE_ENGINE_STATE_WORK_DEADLINE_H_

#include <algorithm>
#include <chrono>

#include "core/base/deadline.h"

namespace shard {

class WorkDeadline {
 public:
  // In seconds: of all of it, from now on, and of each meeting.
  WorkDeadline(double all, double meeting)
      : work_(Deadline::After(all)), meeting_(meeting) {}

  // The end of it all, for waits in which another rank works.
  const Deadline& Work() const { return work_; }

  // For a meeting that begins now; not beyond the end of it all.
  Deadline Meeting() const {
    const std::chrono::duration<double> left = work_.Remaining();
    return Deadline::After(std::min(meeting_, left.count()));
  }

 private:
  Deadline work_;
  double meeting_;
};

}  // namespace shard

#endif  // SHARD_CORE_ENGINE_STATE_WORK_DEADLINE_H_
