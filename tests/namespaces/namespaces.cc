// SPDX-License-Identifier: Apache-2.0

#include "tests/namespaces/namespaces.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "core/base/strings.h"

namespace shard::testing {
namespace {

// Runs commands of a program that reads them from its input: `ip` or `tc`.
Status RunBatch(const std::string& program, const std::string& commands) {
  // Bazel's PATH may lack the folder of tc.
  const std::string command =
      StrCat("PATH=$PATH:/usr/sbin:/sbin ", program, " -batch - >&2");
  std::FILE* const pipe = ::popen(command.c_str(), "we");
  if (pipe == nullptr) return ErrnoStatus("popen", errno);
  std::fputs(commands.c_str(), pipe);
  const int result = ::pclose(pipe);
  if (result == 0) return Status();
  return Internal("'", program, "' failed with ", result, " for: ", commands);
}

Status RunIp(const std::string& commands) { return RunBatch("ip", commands); }

StatusOr<Fd> OpenNetwork() {
  Fd network(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  if (!network.valid()) return ErrnoStatus("/proc/thread-self/ns/net", errno);
  return network;
}

// Runs a function on a thread that ends then, so that where it went does not
// matter to anybody.
Status OnThread(const std::function<Status()>& function) {
  Status status;
  std::thread([&] { status = function(); }).join();
  return status;
}

Status EnterNetwork(const Fd& network) {
  if (::setns(network.get(), CLONE_NEWNET) == 0) return Status();
  return ErrnoStatus("setns", errno);
}

Status Write(const char* path, const std::string& text) {
  const Fd file(::open(path, O_WRONLY | O_CLOEXEC));
  if (!file.valid() || ::write(file.get(), text.data(), text.size()) !=
                           static_cast<ssize_t>(text.size())) {
    return ErrnoStatus(path, errno);
  }
  return Status();
}

// Makes this process the administrator of a network that only it has, and
// returns that.
StatusOr<Fd> MakeOwnNetwork() {
  const uid_t uid = ::geteuid();
  const gid_t gid = ::getegid();
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0) {
    SHARD_RETURN_IF_ERROR(Write("/proc/self/setgroups", "deny"));
    SHARD_RETURN_IF_ERROR(
        Write("/proc/self/uid_map", StrCat("0 ", int64_t{uid}, " 1")));
    SHARD_RETURN_IF_ERROR(
        Write("/proc/self/gid_map", StrCat("0 ", int64_t{gid}, " 1")));
  } else if (const int error = errno; ::unshare(CLONE_NEWNET) != 0) {
    return ErrnoStatus("unshare", error);
  }
  SHARD_RETURN_IF_ERROR(RunIp("link set lo up\n"));
  return OpenNetwork();
}

// The network of the bridges. It lasts as long as this process, though all its
// threads may have entered hosts.
const StatusOr<Fd>& OwnNetwork() {
  static const StatusOr<Fd> own = MakeOwnNetwork();
  return own;
}

// Runs commands there. REQUIRES: there is one.
Status RunOnBridge(const std::string& program, const std::string& commands) {
  return OnThread([&]() -> Status {
    SHARD_RETURN_IF_ERROR(EnterNetwork(*OwnNetwork()));
    return RunBatch(program, commands);
  });
}

}  // namespace

StatusOr<std::unique_ptr<Namespaces>> Namespaces::Make(int hosts) {
  SHARD_RETURN_IF_ERROR(OwnNetwork().status());
  static int networks = 0;
  std::unique_ptr<Namespaces> made(new Namespaces(networks++));
  SHARD_RETURN_IF_ERROR(RunOnBridge(
      "ip", StrCat("link add b", made->number_, " type bridge\nlink set b",
                   made->number_, " up\n")));
  for (int host = 0; host < hosts; ++host) {
    Fd network;
    SHARD_RETURN_IF_ERROR(OnThread([&]() -> Status {
      if (::unshare(CLONE_NEWNET) != 0) return ErrnoStatus("unshare", errno);
      SHARD_ASSIGN_OR_RETURN(network, OpenNetwork());
      return Status();
    }));
    const std::string port = made->PortOf(host);
    SHARD_RETURN_IF_ERROR(RunOnBridge(
        "ip",
        StrCat("link add ", port, " type veth peer name eth0 netns /proc/",
               int64_t{::getpid()}, "/fd/", network.get(), "\nlink set ", port,
               " master b", made->number_, " up\n")));
    SHARD_RETURN_IF_ERROR(OnThread([&]() -> Status {
      SHARD_RETURN_IF_ERROR(EnterNetwork(network));
      return RunIp(StrCat("link set lo up\naddr add ", Address(host),
                          "/24 dev eth0\nlink set eth0 up\n"));
    }));
    made->hosts_.push_back(std::move(network));
  }
  return made;
}

Namespaces::~Namespaces() {
  for (const auto& [host, relay] : relays_) {
    ::kill(relay, SIGKILL);
    ::waitpid(relay, nullptr, 0);
  }
  // The links end with the namespaces, but only when the last process of a host
  // has ended.
  std::string commands;
  for (size_t host = 0; host < hosts_.size(); ++host) {
    commands += StrCat("link del ", PortOf(static_cast<int>(host)), "\n");
  }
  for (const auto& [host, relay] : relays_) {
    commands += StrCat("link del ", RelayOf(host), "\n");
  }
  (void)RunOnBridge("ip", StrCat(commands, "link del b", number_, "\n")).ok();
}

Status Namespaces::Enter(int host) const {
  return EnterNetwork(hosts_.at(static_cast<size_t>(host)));
}

std::string Namespaces::Path(int host) const {
  return StrCat("/proc/", int64_t{::getpid()}, "/fd/",
                hosts_.at(static_cast<size_t>(host)).get());
}

std::string Namespaces::Address(int host) {
  return StrCat("10.77.0.", host + 1);
}

Status Namespaces::Configure(int host, std::string_view command) {
  return OnThread([&]() -> Status {
    SHARD_RETURN_IF_ERROR(Enter(host));
    return RunIp(StrCat(command, "\n"));
  });
}

Status Namespaces::LimitRate(int host, std::string_view rate) {
  // A burst of 10 ms of 1 Gbit/s, as short as the kernel's timers allow to be
  // exact.
  const std::string limit =
      StrCat(" root tbf rate ", rate, " burst 1250kb latency 100ms\n");
  SHARD_RETURN_IF_ERROR(
      RunOnBridge("tc", StrCat("qdisc replace dev ", PortOf(host), limit)));
  return OnThread([&]() -> Status {
    SHARD_RETURN_IF_ERROR(Enter(host));
    return RunBatch("tc", StrCat("qdisc replace dev eth0", limit));
  });
}

Status Namespaces::CutLink(int host) {
  return RunOnBridge("ip", StrCat("link set ", PortOf(host), " nomaster\n"));
}

Status Namespaces::JoinLink(int host) {
  return RunOnBridge(
      "ip", StrCat("link set ", PortOf(host), " master b", number_, "\n"));
}

Status Namespaces::Relay(int host, const RelayOptions& options) {
  const std::string port = PortOf(host);
  const std::string end = RelayOf(host);
  SHARD_RETURN_IF_ERROR(RunOnBridge(
      "ip", StrCat("link set ", port, " nomaster\nlink add ", end,
                   " type veth peer name b", end, "\nlink set ", end,
                   " up\nlink set b", end, " master b", number_, " up\n")));
  // A packet is lost and delayed as the network would have it, and not with
  // dozens of others that leave a host as one.
  for (int h = 0; h < static_cast<int>(hosts_.size()); ++h) {
    SHARD_RETURN_IF_ERROR(Configure(h, "link set eth0 gso_max_segs 1"));
  }
  int ready[2];
  if (::pipe2(ready, O_CLOEXEC) != 0) return ErrnoStatus("pipe2", errno);
  const Fd reads(ready[0]);
  Fd writes(ready[1]);
  const pid_t relay = ::fork();
  if (relay == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (EnterNetwork(*OwnNetwork()).ok()) {
      RunRelay(port, end, options, writes.get());
    }
    ::_exit(1);
  }
  if (relay < 0) return ErrnoStatus("fork", errno);
  relays_[host] = relay;
  writes.Reset();
  char byte;
  if (::read(reads.get(), &byte, 1) == 1) return Status();
  return Internal("the relay of host ", host, " did not start");
}

std::vector<pid_t> Namespaces::Processes(int host) const {
  struct stat network {};
  ::fstat(hosts_.at(static_cast<size_t>(host)).get(), &network);
  std::vector<pid_t> processes;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    struct stat its {};
    if (pid > 0 && ::stat((entry.path() / "ns/net").c_str(), &its) == 0 &&
        its.st_dev == network.st_dev && its.st_ino == network.st_ino) {
      processes.push_back(pid);
    }
  }
  return processes;
}

StatusOr<std::string> Namespaces::ListSockets(int host) const {
  std::string sockets;
  SHARD_RETURN_IF_ERROR(OnThread([&]() -> Status {
    SHARD_RETURN_IF_ERROR(Enter(host));
    for (const char* const path :
         {"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"}) {
      std::ifstream table(path);
      std::string line;
      std::getline(table, line);  // The names of the columns.
      while (std::getline(table, line)) {
        // A socket that no process has, which the kernel still ends, has no
        // inode.
        unsigned long inode = 0;
        std::sscanf(line.c_str(), " %*d: %*s %*s %*x %*s %*s %*s %*d %*d %lu",
                    &inode);
        if (inode != 0) StrAppend(&sockets, line, "\n");
      }
    }
    return Status();
  }));
  return sockets;
}

StatusOr<Namespaces::Traffic> Namespaces::CountTraffic(int host) const {
  Traffic traffic;
  SHARD_RETURN_IF_ERROR(OnThread([&]() -> Status {
    SHARD_RETURN_IF_ERROR(Enter(host));
    std::ifstream counters("/proc/thread-self/net/snmp");
    for (std::string line; std::getline(counters, line);) {
      // The line of names has none of these numbers.
      std::sscanf(line.c_str(),
                  "Tcp: %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %lu",
                  &traffic.segments_resent);
    }
    std::ifstream table("/proc/thread-self/net/dev");
    for (std::string line; std::getline(table, line);) {
      // The columns of an interface: bytes and 7 others received, bytes and
      // packets sent.
      if (std::sscanf(
              line.c_str(), " eth0: %lu %*u %*u %*u %*u %*u %*u %*u %lu %lu",
              &traffic.received, &traffic.sent, &traffic.packets_sent) == 3) {
        return Status();
      }
    }
    return Internal("/proc/net/dev of host ", host, " has no eth0");
  }));
  return traffic;
}

std::string Namespaces::PortOf(int host) const {
  return StrCat("p", number_, "-", host);
}

std::string Namespaces::RelayOf(int host) const {
  return StrCat("r", number_, "-", host);
}

}  // namespace shard::testing
