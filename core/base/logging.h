// SPDX-License-Identifier: Apache-2.0
//
// Logger: where the library's diagnostics go. It never prints: without a sink
// of the host's, messages are dropped. A value, carried by the objects that
// log; there is no global logger.

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

  // True when a message of `level` reaches the sink: check it before building
  // a message that costs.
  bool Wants(LogLevel level) const {
    return sink_ != nullptr && level <= most_verbose_;
  }

  // The sink may be called from any thread that uses the library.
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
