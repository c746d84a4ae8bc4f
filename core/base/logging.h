// SPDX-License-Identifier: Apache-2.0
//
// Logger: passes the library's diagnostics to the host's sink. A logger never
// prints: without a sink, messages are dropped. It is a value that the objects
// that log carry; there is no global logger.

#ifndef SHARD_CORE_BASE_LOGGING_H_
#define SHARD_CORE_BASE_LOGGING_H_

#include <cstdint>
#include <string>

#include "core/base/strings.h"

namespace shard {

// The values are those of shard_log_level in shard.h.
enum class LogLevel : int32_t {
  kError = 1,
  kWarning = 2,
  kInfo = 3,
  kDebug = 4,
};

class Logger {
 public:
  using Sink = void (*)(int32_t level, const char* message, void* user_data);

  Logger() = default;
  Logger(Sink sink, LogLevel most_verbose, void* user_data)
      : sink_(sink), most_verbose_(most_verbose), user_data_(user_data) {}

  // Returns true when a message of `level` reaches the sink. Callers ask before
  // they build a message that is expensive.
  bool Wants(LogLevel level) const {
    return sink_ != nullptr && level <= most_verbose_;
  }

  // Builds a message and passes it to the sink, which may be called from any
  // thread that uses the library.
  template <typename... Pieces>
  void Log(LogLevel level, const Pieces&... pieces) const {
    if (!Wants(level)) return;
    sink_(static_cast<int32_t>(level), StrCat(pieces...).c_str(), user_data_);
  }

 private:
  Sink sink_ = nullptr;
  LogLevel most_verbose_ = LogLevel::kWarning;
  void* user_data_ = nullptr;
};

}  // namespace shard

#endif  // SHARD_CORE_BASE_LOGGING_H_
