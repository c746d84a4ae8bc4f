// SPDX-License-Identifier: Apache-2.0
//
// HostLog: the log function of the host, which is called until Close. A save in
// the background may log after the host has freed its handles.
//
// Threads: any.

#ifndef SHARD_CORE_OBSERVE_HOST_LOG_H_
#define SHARD_CORE_OBSERVE_HOST_LOG_H_

#include <cstdint>

#include "core/base/host_calls.h"
#include "core/observe/logger.h"

namespace shard {

class HostLog {
 public:
  explicit HostLog(const Logger& host) : host_(host) {}

  // Returns a logger that calls the host's function until Close. This object
  // must outlive it.
  Logger logger() {
    LogLevel most_verbose = LogLevel::kOff;
    for (const LogLevel level : {LogLevel::kError, LogLevel::kWarning,
                                 LogLevel::kInfo, LogLevel::kDebug}) {
      if (host_.Wants(level)) most_verbose = level;
    }
    return most_verbose == LogLevel::kOff ? Logger()
                                          : Logger(Pass, most_verbose, this);
  }

  // Ends the calls, as HostCalls::Close does.
  void Close() { calls_.Close(); }

 private:
  // Passes a message to the host, whose function may throw.
  static void Pass(int32_t level, const char* message, void* log) {
    auto* const self = static_cast<HostLog*>(log);
    const HostCalls::Call call(&self->calls_);
    if (call.is_open()) self->host_.Log(static_cast<LogLevel>(level), message);
  }

  const Logger host_;
  HostCalls calls_;
};

}  // namespace shard

#endif  // SHARD_CORE_OBSERVE_HOST_LOG_H_
