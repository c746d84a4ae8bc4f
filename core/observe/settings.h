// SPDX-License-Identifier: Apache-2.0
//
// ObserverSettings: what a rank writes of its events, and where.

#ifndef SHARD_CORE_OBSERVE_SETTINGS_H_
#define SHARD_CORE_OBSERVE_SETTINGS_H_

#include <functional>
#include <string>

#include "core/base/status.h"
#include "core/observe/logger.h"

namespace shard {

struct ObserverSettings {
  // The most verbose level of the lines that are written to `log_file`; "" is
  // the standard error output.
  LogLevel log_level = LogLevel::kOff;
  std::string log_file;
  std::string trace;    // The path of the trace; "": none.
  std::string metrics;  // The path of the metrics; "": none.
  std::string dump;     // The path of the dump of collectives; "": none.
};

// Returns the value of a variable of the environment, or null.
using Getenv = std::function<const char*(const char* name)>;

// Replaces those of `settings` that the environment sets: SHARD_LOG,
// SHARD_LOG_FILE, SHARD_TRACE, SHARD_METRICS and SHARD_DUMP. An empty variable
// counts as one that is not set. kInvalidArgument for a level that does not
// exist.
Status ReadSettings(const Getenv& getenv, ObserverSettings* settings);

}  // namespace shard

#endif  // SHARD_CORE_OBSERVE_SETTINGS_H_
