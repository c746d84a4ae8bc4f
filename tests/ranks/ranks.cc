// SPDX-License-Identifier: Apache-2.0

#include "tests/ranks/ranks.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>

namespace shard::testing {

namespace {

using Clock = std::chrono::steady_clock;

struct Child {
  pid_t pid = -1;
  int pipe = -1;
  bool reaped = false;
};

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Returns the number of failures of the test that runs; 0 outside of a test.
int CountFailures() {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  if (test == nullptr) return 0;
  int failures = 0;
  for (int i = 0; i < test->result()->total_part_count(); ++i) {
    if (test->result()->GetTestPartResult(i).failed()) ++failures;
  }
  return failures;
}

[[noreturn]] void RunChild(const RankFunction& function, const Rank& rank) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent already counts the failures before the fork.
  const int before = CountFailures();
  function(rank);
  std::fflush(nullptr);
  // Does not call exit(): the parent's atexit handlers are not this process's.
  ::_exit(CountFailures() > before ? 1 : 0);
}

void Reap(Child* child, int options, Clock::time_point start,
          RankResult* result) {
  int status = 0;
  pid_t pid = 0;
  do {
    pid = ::waitpid(child->pid, &status, options);
  } while (pid < 0 && errno == EINTR);
  if (pid != child->pid) return;
  child->reaped = true;
  result->seconds = SecondsSince(start);
  if (WIFEXITED(status)) result->exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result->signal = WTERMSIG(status);
}

// Reads the bytes that are there. Closes the pipe at its end.
void Drain(Child* child, RankResult* result) {
  char buffer[4096];
  const ssize_t size = ::read(child->pipe, buffer, sizeof(buffer));
  if (size > 0) {
    result->report.append(buffer, static_cast<size_t>(size));
  } else if (size == 0 || errno != EINTR) {
    ::close(child->pipe);
    child->pipe = -1;
  }
}

}  // namespace

void Rank::Report(std::string_view text) const {
  while (!text.empty()) {
    const ssize_t size = ::write(pipe_, text.data(), text.size());
    if (size < 0) {
      if (errno == EINTR) continue;
      return;
    }
    text.remove_prefix(static_cast<size_t>(size));
  }
}

std::string RankResult::ToString() const {
  std::string out = "rank " + std::to_string(rank) + ": ";
  if (timed_out) {
    out += "timed out";
  } else if (signal != 0) {
    out += "killed by signal " + std::to_string(signal);
  } else {
    out += "exited with " + std::to_string(exit_code);
  }
  return out + " after " + std::to_string(seconds) + " s, report '" + report +
         "'";
}

std::vector<RankResult> RunRanks(int world_size, const RankFunction& function,
                                 double seconds) {
  const auto start = Clock::now();
  std::fflush(nullptr);
  std::vector<Child> children(static_cast<size_t>(world_size));
  std::vector<RankResult> results(children.size());
  for (int r = 0; r < world_size; ++r) {
    Child& child = children[static_cast<size_t>(r)];
    results[static_cast<size_t>(r)].rank = r;
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) {
      ADD_FAILURE() << "pipe2: errno " << errno;
      break;
    }
    child.pipe = ends[0];
    child.pid = ::fork();
    if (child.pid == 0) {
      for (const Child& other : children) {
        if (other.pipe >= 0) ::close(other.pipe);
      }
      RunChild(function, Rank(r, world_size, ends[1]));
    }
    ::close(ends[1]);
  }

  // A pipe ends with its rank, so the ends of the pipes tell when to reap.
  for (;;) {
    std::vector<pollfd> entries;
    std::vector<size_t> owners;
    for (size_t r = 0; r < children.size(); ++r) {
      if (children[r].pipe < 0) continue;
      entries.push_back({children[r].pipe, POLLIN, 0});
      owners.push_back(r);
    }
    if (entries.empty()) break;
    const double left = seconds - SecondsSince(start);
    if (left <= 0) break;
    if (::poll(entries.data(), entries.size(),
               static_cast<int>(left * 1000) + 1) <= 0) {
      continue;
    }
    for (size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].revents == 0) continue;
      const size_t r = owners[i];
      Drain(&children[r], &results[r]);
      // The end of the pipe is the end of the process, or comes just before it.
      if (children[r].pipe < 0) Reap(&children[r], 0, start, &results[r]);
    }
  }
  for (size_t r = 0; r < children.size(); ++r) {
    Child& child = children[r];
    if (child.pid > 0 && !child.reaped) {
      results[r].timed_out = true;
      ::kill(child.pid, SIGKILL);
      Reap(&child, 0, start, &results[r]);
    }
    if (child.pipe >= 0) ::close(child.pipe);
  }
  return results;
}

void ExpectAllPassed(const std::vector<RankResult>& results) {
  for (const RankResult& result : results) {
    EXPECT_TRUE(result.passed()) << result.ToString();
  }
}

std::string UniqueName() {
  uint64_t word = 0;
  if (::getrandom(&word, sizeof(word), 0) != sizeof(word)) ADD_FAILURE();
  char name[32];
  std::snprintf(name, sizeof(name), "test-%016llx",
                static_cast<unsigned long long>(word));
  return name;
}

int CountOpenFiles() {
  DIR* folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return -1;
  int count = 0;
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

}  // namespace shard::testing
