// SPDX-License-Identifier: Apache-2.0

#include "core/observe/settings.h"

#include <iterator>
#include <string_view>

namespace shard {

namespace {

StatusOr<LogLevel> ParseLevel(std::string_view text) {
  for (size_t l = 0; l < std::size(kLogLevelNames); ++l) {
    if (text == kLogLevelNames[l]) return static_cast<LogLevel>(l);
  }
  return InvalidArgument("the environment's SHARD_LOG is '", text,
                         "'; allowed: off, error, warning, info, debug");
}

}  // namespace

Status ReadSettings(const Getenv& getenv, ObserverSettings* settings) {
  const auto read = [&](const char* name) {
    const char* const value = getenv(name);
    return std::string_view(value == nullptr ? "" : value);
  };
  const auto take = [&](const char* name, std::string* setting) {
    if (const std::string_view value = read(name); !value.empty()) {
      *setting = value;
    }
  };
  take("SHARD_LOG_FILE", &settings->log_file);
  take("SHARD_TRACE", &settings->trace);
  take("SHARD_METRICS", &settings->metrics);
  take("SHARD_DUMP", &settings->dump);
  if (const std::string_view level = read("SHARD_LOG"); !level.empty()) {
    SHARD_ASSIGN_OR_RETURN(settings->log_level, ParseLevel(level));
  } else if (!settings->log_file.empty()) {
    settings->log_level = LogLevel::kInfo;
  }
  return Status();
}

}  // namespace shard
