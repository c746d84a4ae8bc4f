// SPDX-License-Identifier: Apache-2.0
//
// Reads traces as a viewer does.

#ifndef SHARD_TESTS_CORE_OBSERVE_TRACE_READER_H_
#define SHARD_TESTS_CORE_OBSERVE_TRACE_READER_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/core/base/temp_folder.h"

namespace shard::testing {

// Returns the events of a trace. Fails the test unless the file is a JSON array
// of objects that have what a viewer needs.
inline std::vector<nlohmann::json> ReadTrace(const std::string& path) {
  const nlohmann::json trace =
      nlohmann::json::parse(ReadText(path), nullptr, false);
  EXPECT_TRUE(trace.is_array()) << ReadText(path).substr(0, 2000);
  if (!trace.is_array()) return {};
  for (const nlohmann::json& event : trace) {
    const std::string phase = event.at("ph");
    EXPECT_TRUE(phase == "X" || phase == "M" || phase == "i") << event;
    EXPECT_TRUE(event.at("pid").is_number_integer()) << event;
    EXPECT_FALSE(event.at("name").get<std::string>().empty()) << event;
    if (phase != "X") continue;
    EXPECT_GE(event.at("dur").get<double>(), 0) << event;
  }
  return trace.get<std::vector<nlohmann::json>>();
}

// Returns how often each rank has a span or moment of each name.
inline std::map<std::pair<int, std::string>, int> CountByRank(
    const std::vector<nlohmann::json>& events) {
  std::map<std::pair<int, std::string>, int> counts;
  for (const nlohmann::json& event : events) {
    if (event.at("ph") == "M") continue;
    ++counts[{event.at("pid").get<int>(), event.at("name")}];
  }
  return counts;
}

// Expects that two spans of one thread either lie apart, or one in the other.
inline void ExpectNested(const std::vector<nlohmann::json>& events) {
  struct Time {
    int64_t begin;
    int64_t end;
    std::string name;
  };
  std::map<std::pair<int, int64_t>, std::vector<Time>> threads;
  for (const nlohmann::json& event : events) {
    if (event.at("ph") != "X") continue;
    const auto nanoseconds = [&](const char* key) {
      return static_cast<int64_t>(event.at(key).get<long double>() * 1000 + .5);
    };
    const int64_t begin = nanoseconds("ts");
    threads[{event.at("pid").get<int>(), event.at("tid").get<int64_t>()}]
        .push_back({begin, begin + nanoseconds("dur"), event.at("name")});
  }
  for (auto& [thread, spans] : threads) {
    std::sort(spans.begin(), spans.end(), [](const Time& a, const Time& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
    std::vector<Time> open;
    for (const Time& span : spans) {
      while (!open.empty() && open.back().end <= span.begin) open.pop_back();
      // A double has 52 bits: up to 8 ns of a clock that has run for a year.
      if (!open.empty()) {
        EXPECT_LE(span.end, open.back().end + 8)
            << span.name << " ends after " << open.back().name << " of rank "
            << thread.first;
      }
      open.push_back(span);
    }
  }
}

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_OBSERVE_TRACE_READER_H_
