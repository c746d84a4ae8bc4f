// SPDX-License-Identifier: Apache-2.0
//
// OpenedHere: the process that opened a handle with threads, or with memory
// that other ranks share. A child of fork has a copy of such a handle, without
// its threads: a call would wait for them, or act as the rank that its parent
// is.

#ifndef SHARD_API_OPENED_HERE_H_
#define SHARD_API_OPENED_HERE_H_

#include <sys/types.h>

#include <string_view>

#include "core/base/process_id.h"
#include "core/base/status.h"

namespace shard::api {

class OpenedHere {
 public:
  // Returns whether this process opened the handle.
  bool Is() const { return ProcessId() == process_; }

  // Returns FAILED_PRECONDITION, which names the handle, unless this process
  // opened it.
  Status Check(std::string_view handle) const {
    if (Is()) return Status();
    return FailedPrecondition(handle, " was opened by process ", process_,
                              ", from which process ", ProcessId(),
                              " was forked; open another one after fork");
  }

 private:
  const pid_t process_ = ProcessId();
};

// Returns an error that names `handle` when the handle is NULL, or is of the
// process that this one was forked from.
#define SHARD_API_REQUIRE_HANDLE(handle)                         \
  do {                                                           \
    SHARD_API_REQUIRE(handle);                                   \
    SHARD_RETURN_IF_ERROR((handle)->opened_here.Check(#handle)); \
  } while (false)

}  // namespace shard::api

#endif  // SHARD_API_OPENED_HERE_H_
