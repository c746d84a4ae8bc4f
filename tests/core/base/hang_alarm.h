// SPDX-License-Identifier: Apache-2.0
//
// HangAlarm: ends the program where a part of a test takes two minutes, and
// says which: a test that is killed for its time would not. One at a time.

#ifndef SHARD_TESTS_CORE_BASE_HANG_ALARM_H_
#define SHARD_TESTS_CORE_BASE_HANG_ALARM_H_

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

namespace shard::testing {

class HangAlarm {
 public:
  explicit HangAlarm(const std::string& text) {
    std::snprintf(text_, sizeof(text_), "\nFAILED: hangs: %s\n", text.c_str());
    ::signal(SIGALRM, [](int) {
      static_cast<void>(!::write(STDERR_FILENO, text_, std::strlen(text_)));
      ::_exit(1);
    });
    ::alarm(120);
  }
  ~HangAlarm() { ::alarm(0); }
  HangAlarm(const HangAlarm&) = delete;
  HangAlarm& operator=(const HangAlarm&) = delete;

 private:
  static inline char text_[400];
};

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_BASE_HANG_ALARM_H_
