// SPDX-License-Identifier: Apache-2.0
//
// RunDelay: how long the threads of this process have waited for a processor
// while it lives, all together, as the kernel counts it; and JudgeTime, which
// excuses a call by that on a machine that does other things. Threads that end
// count until shortly before their end; where the kernel does not count,
// nothing does.

#ifndef SHARD_TESTS_CORE_BASE_RUN_DELAY_H_
#define SHARD_TESTS_CORE_BASE_RUN_DELAY_H_

#include <dirent.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace shard::testing {

class RunDelay {
 public:
  RunDelay() {
    Look();
    nanoseconds_ = 0;
    looking_ = std::thread([this] {
      std::unique_lock<std::mutex> lock(mutex_);
      while (!ended_.wait_for(lock, std::chrono::milliseconds(20),
                              [this] { return is_ended_; })) {
        Look();
      }
    });
  }
  ~RunDelay() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_ended_ = true;
    }
    ended_.notify_one();
    looking_.join();
  }
  RunDelay(const RunDelay&) = delete;
  RunDelay& operator=(const RunDelay&) = delete;

  double seconds() {
    const std::lock_guard<std::mutex> lock(mutex_);
    Look();
    return static_cast<double>(nanoseconds_) * 1e-9;
  }

 private:
  // Adds what each thread has waited since the last time.
  void Look() {
    std::map<std::string, uint64_t> now;
    DIR* const tasks = ::opendir("/proc/self/task");
    if (tasks == nullptr) return;
    while (const dirent* const entry = ::readdir(tasks)) {
      const std::string thread = entry->d_name;
      if (thread[0] == '.') continue;
      const std::string path = "/proc/self/task/" + thread + "/schedstat";
      std::FILE* const file = std::fopen(path.c_str(), "re");
      if (file == nullptr) continue;
      unsigned long long ran = 0;
      unsigned long long waited = 0;
      if (std::fscanf(file, "%llu %llu", &ran, &waited) == 2) {
        now[thread] = waited;
        const uint64_t before = waited_[thread];
        // Another thread may have the number by now.
        nanoseconds_ += waited >= before ? waited - before : waited;
      }
      std::fclose(file);
    }
    ::closedir(tasks);
    waited_ = std::move(now);
  }

  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_ended_ = false;
  std::map<std::string, uint64_t> waited_;  // By thread, in nanoseconds.
  uint64_t nanoseconds_ = 0;
  std::thread looking_;
};

// Returns what is wrong with a time; "" for nothing. `delay`: of RunDelay,
// which excuses as much, but at most as long again, and is printed then.
inline std::string JudgeTime(const std::string& what, double seconds,
                             double most, double delay) {
  if (seconds <= most) return "";
  char text[200];
  std::snprintf(text, sizeof(text), "%s took %.2f s, at most %.2f are allowed",
                what.c_str(), seconds, most);
  if (seconds > most + std::min(delay, most)) return std::string("\n") + text;
  std::printf("EXCUSED: %s; threads waited %.2f s for a processor\n", text,
              delay);
  return "";
}

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_BASE_RUN_DELAY_H_
