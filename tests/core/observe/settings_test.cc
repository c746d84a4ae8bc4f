// SPDX-License-Identifier: Apache-2.0

#include "core/observe/settings.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/core/base/expect_status.h"

namespace shard::settings_test {
namespace {

Status Read(const std::map<std::string, std::string>& environment,
            ObserverSettings* settings) {
  return ReadSettings(
      [&](const char* name) {
        const auto found = environment.find(name);
        return found == environment.end() ? nullptr : found->second.c_str();
      },
      settings);
}

TEST(SettingsTest, AnEmptyEnvironmentChangesNothing) {
  ObserverSettings settings = {.trace = "host.json", .metrics = "host.prom"};
  EXPECT_OK(Read({{"SHARD_LOG", ""}, {"SHARD_TRACE", ""}}, &settings));
  EXPECT_EQ(settings.log_level, LogLevel::kOff);
  EXPECT_EQ(settings.trace, "host.json");
  EXPECT_EQ(settings.metrics, "host.prom");
}

TEST(SettingsTest, TheEnvironmentOverridesTheHost) {
  ObserverSettings settings = {.trace = "host.json", .metrics = "host.prom"};
  EXPECT_OK(Read({{"SHARD_LOG", "debug"},
                  {"SHARD_LOG_FILE", "run.log"},
                  {"SHARD_TRACE", "mine.json"},
                  {"SHARD_METRICS", "mine.prom"},
                  {"SHARD_DUMP", "dump.json"}},
                 &settings));
  EXPECT_EQ(settings.dump, "dump.json");
  EXPECT_EQ(settings.log_level, LogLevel::kDebug);
  EXPECT_EQ(settings.log_file, "run.log");
  EXPECT_EQ(settings.trace, "mine.json");
  EXPECT_EQ(settings.metrics, "mine.prom");
}

TEST(SettingsTest, ALogFileAloneMeansInfo) {
  ObserverSettings settings;
  EXPECT_OK(Read({{"SHARD_LOG_FILE", "run.log"}}, &settings));
  EXPECT_EQ(settings.log_level, LogLevel::kInfo);
  EXPECT_OK(
      Read({{"SHARD_LOG_FILE", "run.log"}, {"SHARD_LOG", "off"}}, &settings));
  EXPECT_EQ(settings.log_level, LogLevel::kOff);
}

TEST(SettingsTest, ALevelThatDoesNotExistIsAnErrorThatListsThem) {
  for (const char* level : {"1", "INFO", "verbose", "info ", "\xff"}) {
    ObserverSettings settings;
    ExpectInvalid(Read({{"SHARD_LOG", level}}, &settings),
                  {"SHARD_LOG", level, "off, error, warning, info, debug"});
  }
}

}  // namespace
}  // namespace shard::settings_test
