// SPDX-License-Identifier: Apache-2.0
//
// Logger: passes messages to the host's function. A logger never prints:
// without a function, messages are dropped.

#ifndef SHARD_CORE_OBSERVE_LOGGER_H_
#define SHARD_CORE_OBSERVE_LOGGER_H_

#include <cstdint>
#include <string_view>

namespace shard {

// The values from kError on are those of shard_log_level in shard.h.
enum class LogLevel : int32_t {
  kOff = 0,
  kError = 1,
  kWarning = 2,
  kInfo = 3,
  kDebug = 4,
};

// By value of LogLevel.
inline constexpr std::string_view kLogLevelNames[] = {"off", "error", "warning",
                                                      "info", "debug"};

class Logger {
 public:
  using Sink = void (*)(int32_t level, const char* message, void* user_data);

  Logger() = default;
  Logger(Sink sink, LogLevel most_verbose, void* user_data)
      : sink_(sink), most_verbose_(most_verbose), user_data_(user_data) {}

  // Returns true when a message of `level` reaches the sink. Callers ask before
  // they build a message that is expensive.
  bool Wants(LogLevel level) const {
    return sink_ != nullptr && level != LogLevel::kOff &&
           level <= most_verbose_;
  }

  // Passes a message to the sink, which may be called from any thread that uses
  // the library.
  void Log(LogLevel level, const char* message) const {
    if (Wants(level)) {
      sink_(static_cast<int32_t>(level), message, user_data_);
    }
  }

 private:
  Sink sink_ = nullptr;
  LogLevel most_verbose_ = LogLevel::kWarning;
  void* user_data_ = nullptr;
};

}  // namespace shard

#endif  // SHARD_CORE_OBSERVE_LOGGER_H_
