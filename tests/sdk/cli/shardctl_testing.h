// SPDX-License-Identifier: Apache-2.0
//
// Runs shardctl in a process of its own, for the tests of its commands, and
// returns its output on each stream and its exit code.

#ifndef SHARD_TESTS_SDK_CLI_SHARDCTL_TESTING_H_
#define SHARD_TESTS_SDK_CLI_SHARDCTL_TESTING_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

namespace shardctl_testing {

using Clock = std::chrono::steady_clock;

inline constexpr const char* kShardctl = "sdk/cli/shardctl";
inline constexpr int kSeconds = 60;  // The time limit of a test.

struct Result {
  int code = -1;  // It is 128 + signal when a signal ended the process.
  std::string out;
  std::string error;
  long max_rss_kib = 0;
};

// A shardctl process with its output in pipes, or in one pipe with
// `join_streams`. If `out_path` is not empty, stdout is the file there instead.
class Shardctl {
 public:
  explicit Shardctl(std::vector<std::string> arguments,
                    const char* out_path = nullptr, bool non_blocking = false,
                    bool join_streams = false) {
    int out[2];
    int error[2];
    if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(error, O_CLOEXEC) != 0) {
      std::abort();
    }
    if (non_blocking) ::fcntl(out[1], F_SETFL, O_NONBLOCK);
    arguments.insert(arguments.begin(), kShardctl);
    pid_ = ::fork();
    if (pid_ == 0) {
      const int file = out_path != nullptr ? ::open(out_path, O_RDWR) : -1;
      ::dup2(file >= 0 ? file : out[1], STDOUT_FILENO);
      ::dup2(join_streams ? out[1] : error[1], STDERR_FILENO);
      std::vector<char*> argv;
      for (std::string& argument : arguments) argv.push_back(argument.data());
      argv.push_back(nullptr);
      ::execv(kShardctl, argv.data());
      ::_exit(99);
    }
    ::close(out[1]);
    ::close(error[1]);
    out_ = out[0];
    error_ = error[0];
  }

  ~Shardctl() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    CloseOutput();
    ::close(error_);
  }

  // Closes stdout for reading.
  void CloseOutput() {
    if (out_ >= 0) ::close(out_);
    out_ = -1;
    out_open_ = false;
  }

  void Kill(int signal) { ::kill(pid_, signal); }

  // Reads until `text` has appeared `times` times on stdout.
  void ReadUntil(const std::string& text, int times = 1) {
    const auto count = [&] {
      int found = 0;
      for (size_t at = result_.out.find(text); at != std::string::npos;
           at = result_.out.find(text, at + text.size())) {
        ++found;
      }
      return found;
    };
    while (count() < times) {
      ASSERT_TRUE(ReadSome()) << result_.out << result_.error;
    }
  }

  // Waits, without reading, until stdout takes no more.
  void WaitUntilStalled() {
    const std::string name = "/proc/self/fd/" + std::to_string(out_);
    const int writer = ::open(name.c_str(), O_WRONLY | O_CLOEXEC);
    pollfd entry{writer, POLLOUT, 0};
    while (::poll(&entry, 1, 0) == 1) {
      ASSERT_LT(Clock::now(), deadline_);
      ::poll(nullptr, 0, 1);
    }
    ::close(writer);
  }

  // Returns true when the process ends within `seconds` although nobody reads
  // its stdout.
  bool EndsUnread(int seconds) {
    out_open_ = false;
    const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
    pollfd entry{pidfd, POLLIN, 0};
    const bool ended = ::poll(&entry, 1, seconds * 1000) == 1;
    ::close(pidfd);
    return ended;
  }

  // Waits for the end of the process.
  Result Wait() {
    while (ReadSome()) {
    }
    int status = 0;
    rusage usage{};
    ::wait4(pid_, &status, 0, &usage);
    pid_ = -1;
    result_.max_rss_kib = usage.ru_maxrss;
    result_.code =
        WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return result_;
  }

 private:
  // Reads some output. Returns false at the end of both streams, or when the
  // test has taken too long.
  bool ReadSome() {
    pollfd entries[2] = {{out_open_ ? out_ : -1, POLLIN, 0},
                         {error_open_ ? error_ : -1, POLLIN, 0}};
    if (!out_open_ && !error_open_) return false;
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now());
    if (::poll(entries, 2, std::max<int>(0, static_cast<int>(left.count()))) <=
        0) {
      ADD_FAILURE() << "shardctl took longer than " << kSeconds << " s";
      Kill(SIGKILL);
      return false;
    }
    if (entries[0].revents != 0) out_open_ = Take(out_, &result_.out);
    if (entries[1].revents != 0) error_open_ = Take(error_, &result_.error);
    return true;
  }

  static bool Take(int fd, std::string* to) {
    char buffer[4096];
    const ssize_t size = ::read(fd, buffer, sizeof(buffer));
    if (size > 0) to->append(buffer, static_cast<size_t>(size));
    return size > 0;
  }

  const Clock::time_point deadline_ =
      Clock::now() + std::chrono::seconds(kSeconds);
  pid_t pid_ = -1;
  int out_ = -1;
  int error_ = -1;
  bool out_open_ = true;
  bool error_open_ = true;
  Result result_;
};

inline Result RunShardctl(const std::vector<std::string>& arguments) {
  return Shardctl(arguments).Wait();
}

inline bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline std::vector<std::string> SortedLines(const std::string& text) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t end; (end = text.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    lines.push_back(text.substr(begin, end - begin));
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  std::sort(lines.begin(), lines.end());
  return lines;
}

// A pipe whose write end the ranks have, and all that they start.
class AlivePipe {
 public:
  AlivePipe() { EXPECT_EQ(::pipe(ends_), 0); }
  ~AlivePipe() { ::close(ends_[0]); }
  // Leaves the write end to the processes that have been started.
  void Keep() { ::close(ends_[1]); }
  // Returns whether all of them end within `seconds`.
  bool Ends(int seconds) {
    char byte;
    pollfd entry{ends_[0], POLLIN, 0};
    return ::poll(&entry, 1, seconds * 1000) == 1 &&
           ::read(ends_[0], &byte, 1) == 0;
  }

 private:
  int ends_[2];
};

}  // namespace shardctl_testing

#endif  // SHARD_TESTS_SDK_CLI_SHARDCTL_TESTING_H_
