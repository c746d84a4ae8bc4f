// SPDX-License-Identifier: Apache-2.0
//
// Observers of tests, and what they have written.

#ifndef SHARD_TESTS_CORE_OBSERVE_OBSERVING_H_
#define SHARD_TESTS_CORE_OBSERVE_OBSERVING_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/strings.h"
#include "core/observe/observer.h"
#include "tests/core/base/expect_status.h"

namespace shard::testing {

// Opens the files of a rank of two that have met.
inline std::shared_ptr<Observer> OpenObserver(const ObserverSettings& settings,
                                              int rank = 0,
                                              const Logger& host = Logger()) {
  auto observer = std::make_shared<Observer>(host, rank, 2);
  int trace = 1;
  EXPECT_OK(observer->Open(settings));
  EXPECT_OK(observer->Start(&trace));
  return observer;
}

inline std::vector<std::string> LinesOf(const std::string& text) {
  std::vector<std::string> lines;
  for (const std::string_view line : Split(text, '\n')) {
    if (!line.empty()) lines.emplace_back(line);
  }
  return lines;
}

// Returns the number of events that the observer has dropped.
inline int UnrecordedOf(const Observer& observer) {
  const std::string text = observer.MetricsText();
  const size_t at = text.find("shard_unrecorded_total{");
  return at == std::string::npos
             ? -1
             : std::atoi(text.c_str() + text.find(' ', at) + 1);
}

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_OBSERVE_OBSERVING_H_
