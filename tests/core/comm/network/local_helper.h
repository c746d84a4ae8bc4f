// SPDX-License-Identifier: Apache-2.0
//
// Helpers of one host for tests: meets the real program, and looks at its
// process from outside.

#ifndef SHARD_TESTS_CORE_COMM_NETWORK_LOCAL_HELPER_H_
#define SHARD_TESTS_CORE_COMM_NETWORK_LOCAL_HELPER_H_

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "core/base/fd.h"
#include "core/base/strings.h"
#include "core/comm/network/local_wire.h"
#include "core/comm/network/meet_helper.h"
#include "core/comm/shm/packet.h"
#include "tests/core/base/comes_true.h"
#include "tests/ranks/ranks.h"

namespace shard::testing {

// The time in which a helper ends: it does within milliseconds, on a machine
// that is not busy.
inline constexpr double kGoneSeconds = 5;

inline Deadline Soon() { return Deadline::After(30); }

inline std::string ProgramPath() {
  return std::filesystem::canonical("sdk/network/shard-network");
}

// Returns the options of a rank that meets the real program.
inline network::MeetOptions OptionsFor(const std::string& key, int rank,
                                       int world_size, double seconds = 30) {
  network::MeetOptions options;
  options.key = key;
  options.program = ProgramPath();
  options.keep_stderr = true;  // Shows what a sanitizer finds.
  // A port for each key, where the helper meets itself alone.
  options.options =
      StrCat("tcp://127.0.0.1:",
             20000 + static_cast<int>(std::hash<std::string>()(key) % 10000),
             "?job=", key);
  options.rank = rank;
  options.world_size = world_size;
  options.deadline = Deadline::After(seconds);
  return options;
}

inline bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Returns the contents of a file of /proc.
inline std::string ReadProc(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// Returns where a link leads to, or "" where it is gone by now.
inline std::string LinkOf(const std::filesystem::path& path) {
  std::error_code gone;
  return std::filesystem::read_symlink(path, gone);
}

// Returns the value of a line of /proc/PID/status, such as "State".
inline std::string StatusLine(pid_t process, const std::string& name) {
  std::ifstream in(StrCat("/proc/", process, "/status"));
  for (std::string line; std::getline(in, line);) {
    if (line.compare(0, name.size() + 1, name + ":") == 0) {
      const size_t begin = line.find_first_not_of(" \t", name.size() + 1);
      return begin == std::string::npos ? "" : line.substr(begin);
    }
  }
  return "";
}

// Whether a process has ended, whoever waits for it.
inline bool IsGone(pid_t process) {
  const std::string state = StatusLine(process, "State");
  return state.empty() || state[0] == 'Z' || state[0] == 'X';
}

inline bool EndsSoon(pid_t process) {
  return ComesTrue([&] { return IsGone(process); },
                   Deadline::After(kGoneSeconds));
}

// Returns the children of a process, zombies included.
inline std::vector<pid_t> ChildrenOf(pid_t parent) {
  std::vector<pid_t> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const auto process = ParseInt(entry.path().filename().string());
    if (!process) continue;
    const auto id = static_cast<pid_t>(*process);
    if (StatusLine(id, "PPid") == StrCat(parent)) children.push_back(id);
  }
  return children;
}

// Connects to the meeting as a process that knows no protocol. Not valid when
// nobody listens.
inline Fd ConnectTo(const std::string& key) {
  const network::LocalAddress where = network::LocalAddressOf(key);
  Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&where.address),
                where.size) != 0) {
    fd.Reset();
  }
  return fd;
}

// Returns the process id of the helper of a meeting, or 0.
inline pid_t HelperOf(const std::string& key) {
  const Fd fd = ConnectTo(key);
  if (!fd.valid()) return 0;
  const auto packet = shm::Receive(fd.get(), Soon());
  if (!packet.ok()) return 0;
  const auto greeting = network::Parse<network::Greeting>(packet->bytes);
  return greeting ? greeting->process : 0;
}

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_COMM_NETWORK_LOCAL_HELPER_H_
