// SPDX-License-Identifier: Apache-2.0

#include "tests/bench/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace shard::bench {

namespace {

constexpr std::string_view kMark = "peer: ";
constexpr std::chrono::minutes kLongest(10);

// Reads one byte before `deadline`. Returns false when the pipe has ended or
// the time is over.
bool ReadByte(int fd, std::chrono::steady_clock::time_point deadline, char* c) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd ready = {fd, POLLIN, 0};
    const int polled =
        poll(&ready, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
    if (polled < 0 && errno == EINTR) continue;
    return polled == 1 && read(fd, c, 1) == 1;
  }
}

}  // namespace

std::optional<std::string> Peer::ReadAnswer(int fd) {
  const auto deadline = std::chrono::steady_clock::now() + kLongest;
  std::string line;
  char c = 0;
  while (ReadByte(fd, deadline, &c)) {
    if (c != '\n') {
      line.push_back(c);
      continue;
    }
    // Other output without a newline may stand before the mark.
    const size_t mark = line.rfind(kMark);
    if (mark != std::string::npos) return line.substr(mark + kMark.size());
    line.clear();
  }
  return std::nullopt;
}

std::optional<Peer> Peer::Start(const std::vector<std::string>& argv,
                                int world_size) {
  // A peer that ends early must not end the benchmark.
  signal(SIGPIPE, SIG_IGN);
  Peer peer;
  char name[] = "/tmp/shard-bench-XXXXXX";
  if (mkdtemp(name) == nullptr) return std::nullopt;
  peer.folder_ = name;
  for (int rank = 0; rank < world_size; ++rank) {
    int to[2];
    int from[2];
    if (pipe2(to, O_CLOEXEC) != 0) return std::nullopt;
    if (pipe2(from, O_CLOEXEC) != 0) return std::nullopt;
    std::vector<std::string> words = argv;
    words.insert(words.end(), {std::to_string(rank), std::to_string(world_size),
                               peer.folder_});
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    const int pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      dup2(to[0], STDIN_FILENO);
      dup2(from[1], STDOUT_FILENO);
      execvp(pointers[0], pointers.data());
      _exit(127);
    }
    close(to[0]);
    close(from[1]);
    peer.processes_.push_back({pid, to[1], from[0]});
    if (pid < 0) return std::nullopt;
  }
  for (const Process& process : peer.processes_) {
    if (ReadAnswer(process.from) != "ready") return std::nullopt;
  }
  return peer;
}

Peer::~Peer() {
  for (const Process& process : processes_) {
    close(process.to);
    close(process.from);
    if (process.pid <= 0) continue;
    kill(process.pid, SIGKILL);
    waitpid(process.pid, nullptr, 0);
  }
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

std::optional<double> Peer::Go(const std::string& variant) {
  const std::string line = variant + "\n";
  const auto size = static_cast<ssize_t>(line.size());
  for (const Process& process : processes_) {
    if (write(process.to, line.data(), line.size()) != size) {
      return std::nullopt;
    }
  }
  // The answers of all ranks are read, so that the next answers belong to the
  // next call.
  std::optional<double> slowest = 0;
  for (const Process& process : processes_) {
    const auto answer = ReadAnswer(process.from);
    if (!answer) return std::nullopt;
    double milliseconds = 0;
    const auto read = std::from_chars(
        answer->data(), answer->data() + answer->size(), milliseconds);
    if (read.ec != std::errc()) slowest.reset();
    if (slowest) slowest = std::max(*slowest, milliseconds);
  }
  return slowest;
}

}  // namespace shard::bench
