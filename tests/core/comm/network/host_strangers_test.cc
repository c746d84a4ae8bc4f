// SPDX-License-Identifier: Apache-2.0
//
// Strangers at every socket on which helpers listen, on hosts with networks of
// their own: garbage, connections that say nothing, say it slowly, are reset,
// and 10,000 of them, and a wrong secret. They come before the ranks meet,
// meanwhile, and while the ranks work. The job goes on, with bounded memory.
// Only those who come to a port of Gloo's may end it: then all ranks get an
// error in time, and nothing is left.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/fd.h"
#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/comm/exchange.h"
#include "tests/core/base/comes_true.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/comm/network/local_helper.h"
#include "tests/core/comm/network/namespace_hosts.h"
#include "tests/namespaces/namespaces.h"
#include "tests/ranks/ranks.h"
#include "tests/ranks/shared.h"

namespace shard::testing::host_strangers_test {
namespace {

// Three hosts with ranks, and the one of the strangers.
const std::vector<int> kBegins = {0, 1, 3, 4};
constexpr int kHosts = 3;
constexpr int kStrangersHost = 3;
constexpr int kWorldSize = 4;
constexpr uint16_t kPort = 7077;
// What strangers may cost a helper, and what a helper may have in all.
constexpr long kMostStrangersKib = kSanitized ? 64 << 10 : 8 << 10;

bool IsLong() { return ::getenv("SHARD_TEST_LONG") != nullptr; }

// A socket on which a helper listens: of TCP, or a name of this host's.
struct Target {
  int host = 0;
  sockaddr_storage address{};
  socklen_t size = 0;

  bool is_local() const { return address.ss_family == AF_UNIX; }
  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&address);
  }
  std::string Text() const {
    if (is_local()) {
      return StrCat(host, " @",
                    reinterpret_cast<const sockaddr_un&>(address).sun_path + 1);
    }
    const auto& tcp = reinterpret_cast<const sockaddr_in&>(address);
    char text[INET_ADDRSTRLEN] = "";
    ::inet_ntop(AF_INET, &tcp.sin_addr, text, sizeof(text));
    return StrCat(host, " ", std::string_view(text), ":", ntohs(tcp.sin_port));
  }
};

std::vector<Target> TcpListeners(const Namespaces& hosts, int host) {
  std::vector<Target> targets;
  const auto sockets = hosts.ListSockets(host);
  EXPECT_OK(sockets);
  std::istringstream lines(*sockets);
  for (std::string line; std::getline(lines, line);) {
    unsigned address = 0;
    unsigned port = 0;
    unsigned state = 0;
    constexpr unsigned kListen = 10;
    if (std::sscanf(line.c_str(), " %*d: %8x:%x %*s %x", &address, &port,
                    &state) != 3 ||
        state != kListen) {
      continue;
    }
    Target target{.host = host, .size = sizeof(sockaddr_in)};
    auto& tcp = reinterpret_cast<sockaddr_in&>(target.address);
    tcp.sin_family = AF_INET;
    tcp.sin_addr.s_addr = address;  // As it lies in memory.
    tcp.sin_port = htons(static_cast<uint16_t>(port));
    targets.push_back(target);
  }
  return targets;
}

// Returns the abstract names on which processes of a host listen.
std::vector<Target> LocalListeners(const Namespaces& hosts, int host) {
  std::vector<Target> targets;
  std::thread([&] {
    ASSERT_OK(hosts.Enter(host));
    std::ifstream table("/proc/thread-self/net/unix");
    for (std::string line; std::getline(table, line);) {
      unsigned flags = 0;
      char path[108] = "";
      constexpr unsigned kAccepts = 1 << 16;
      if (std::sscanf(line.c_str(), "%*s %*s %*s %x %*s %*s %*s @%107s", &flags,
                      path) != 2 ||
          (flags & kAccepts) == 0) {
        continue;
      }
      Target target{.host = host};
      auto& local = reinterpret_cast<sockaddr_un&>(target.address);
      local.sun_family = AF_UNIX;
      std::memcpy(local.sun_path + 1, path, std::strlen(path));
      target.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                           std::strlen(path));
      targets.push_back(target);
    }
  }).join();
  return targets;
}

// Connections of strangers, the newest of which stay.
class Strangers {
 public:
  explicit Strangers(const Namespaces& hosts) : hosts_(hosts) {}

  // One comes in the next way. Returns false where nobody listens any more.
  bool Come(const Target& target) {
    const bool is_local = target.is_local();
    const int host = is_local ? target.host : kStrangersHost;
    if (host != on_) EXPECT_OK(hosts_.Enter(host));
    on_ = host;
    Fd fd(::socket(target.address.ss_family,
                   (is_local ? SOCK_SEQPACKET : SOCK_STREAM) | SOCK_CLOEXEC,
                   0));
    // A queue that is full lets nobody in.
    const timeval soon{.tv_sec = 0, .tv_usec = 100'000};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof(soon));
    if (::connect(fd.get(), target.get(), target.size) != 0) {
      return errno != ECONNREFUSED;
    }
    ++came_;
    switch (came_ % 5) {
      case 0:
        Send(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        return true;
      case 1:
        Send(fd, std::string(60'000, 'x'));
        return true;
      case 2: {
        const linger now{1, 0};
        ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
        return true;
      }
      case 3:
        Send(fd, "s");
        break;
      default:
        break;  // It says nothing.
    }
    Stay(std::move(fd));
    return true;
  }

  // Opens a connection that says nothing, and stays among the last `most`.
  void ComeSilently(const Target& target, size_t most) {
    Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (on_ != kStrangersHost) EXPECT_OK(hosts_.Enter(kStrangersHost));
    on_ = kStrangersHost;
    ASSERT_TRUE(fd.valid()) << errno;
    ASSERT_TRUE(::connect(fd.get(), target.get(), target.size) == 0 ||
                errno == EINPROGRESS)
        << errno;
    ++came_;
    Stay(std::move(fd), most);
  }

  int came() const { return came_; }
  void Leave() { stay_.clear(); }

 private:
  static void Send(const Fd& fd, std::string_view bytes) {
    (void)::send(fd.get(), bytes.data(), bytes.size(),
                 MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  void Stay(Fd fd, size_t most = 500) {
    stay_.push_back(std::move(fd));
    if (stay_.size() > most) stay_.pop_front();
    // A slow one says its next byte.
    Send(stay_[stay_.size() / 2], "s");
  }

  const Namespaces& hosts_;
  int on_ = -1;
  int came_ = 0;
  std::deque<Fd> stay_;
};

long PeakKib(pid_t process) {
  return std::strtol(StatusLine(process, "VmHWM").c_str(), nullptr, 10);
}

// What the processes of a test tell each other.
struct Board {
  std::atomic<bool> is_up = false;       // The first helpers listen.
  std::atomic<bool> is_begun = false;    // Strangers have come before the job.
  std::atomic<bool> is_refused = false;  // Who has a wrong secret.
  std::atomic<int> met = 0;
  std::atomic<bool> may_end = false;
  std::atomic<int> ended = 0;
  std::atomic<int> succeeded = 0;
};

// Calls collectives, until `may_end`, if it is given.
Status Work(Communicator* comm, const std::atomic<bool>* may_end) {
  const auto soon = [] { return Deadline::After(20); };
  SHARD_ASSIGN_OR_RETURN(const auto exchange,
                         comm->OpenExchange("exchange", soon()));
  const auto ranks = static_cast<size_t>(comm->world_size());
  std::vector<float> tensor(10'000);
  const std::vector<float> tensors(tensor.size() * ranks, 1);
  for (int loop = 0;; ++loop) {
    // All ranks see the same answer.
    char ends = loop >= 5 && (may_end == nullptr || *may_end) ? 1 : 0;
    SHARD_RETURN_IF_ERROR(comm->Broadcast("ends", 0, &ends, 1, soon()));
    if (ends != 0) break;
    SHARD_RETURN_IF_ERROR(exchange->ReduceScatter(
        "reduce", RankSet::All(comm->world_size()),
        {.send = tensors.data(), .count = tensor.size(), .recv = tensor.data()},
        soon()));
    EXPECT_EQ(tensor[0], static_cast<float>(ranks));
  }
  return comm->Shutdown(soon());
}

class HostStrangersTest : public NamespaceHostsTest {
 protected:
  // Runs a job beside strangers. `floods`: besides, 10,000 connections at the
  // listeners of the first helpers, in the long form at each.
  void RunJob(const std::string& where, bool floods);
  // The process of the strangers.
  void Disturb(Board* board, bool floods);
  // That of somebody with a wrong secret.
  void Guess(const std::string& url, Board* board);

  void ExpectOnlyOurListeners(const std::vector<Target>& targets);
};

void HostStrangersTest::ExpectOnlyOurListeners(
    const std::vector<Target>& targets) {
  int masters = 0;
  for (const Target& target : targets) {
    if (target.is_local()) continue;
    const auto& tcp = reinterpret_cast<const sockaddr_in&>(target.address);
    char text[INET_ADDRSTRLEN] = "";
    ::inet_ntop(AF_INET, &tcp.sin_addr, text, sizeof(text));
    EXPECT_EQ(std::string(text), Namespaces::Address(target.host));
    masters += ntohs(tcp.sin_port) == kPort;
  }
  EXPECT_LE(masters, 1);
}

void HostStrangersTest::Disturb(Board* board, bool floods) {
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  files.rlim_cur = files.rlim_max;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
  Strangers strangers(*hosts_);

  // Before: two of the three helpers listen at their own port, one of them is
  // the master, too, and each has a name on its host.
  std::vector<Target> targets;
  ASSERT_TRUE(ComesTrue([&] {
    targets.clear();
    for (const int host : {0, 1}) {
      for (const Target& each : TcpListeners(*hosts_, host)) {
        targets.push_back(each);
      }
      for (const Target& each : LocalListeners(*hosts_, host)) {
        targets.push_back(each);
      }
    }
    return targets.size() == 5;
  })) << targets.size();
  ExpectOnlyOurListeners(targets);
  board->is_up = true;
  const pid_t helpers[] = {HelperOn(*hosts_, 0), HelperOn(*hosts_, 1)};
  const long before[] = {PeakKib(helpers[0]), PeakKib(helpers[1])};
  for (int i = 0; i < 40; ++i) {
    for (const Target& target : targets) {
      EXPECT_TRUE(strangers.Come(target)) << target.Text();
    }
  }
  if (floods) {
    const size_t stay = std::min<size_t>(
        IsLong() ? 10'000 : 1'500, static_cast<size_t>(files.rlim_cur) - 200);
    const int at_each = IsLong() ? 10'000 : 3'400;
    for (const Target& target : targets) {
      if (target.is_local()) continue;
      for (int i = 0; i < at_each; ++i) strangers.ComeSilently(target, stay);
    }
    EXPECT_GE(strangers.came(), 10'000);
  }
  for (int i = 0; i < 2; ++i) {
    const long peak = PeakKib(helpers[i]);
    std::printf("helper %d: %ld KiB, %ld KiB after %d strangers\n", i,
                before[i], peak, strangers.came());
    EXPECT_GT(before[i], 0);
    EXPECT_LT(peak - before[i], kMostStrangersKib);
  }
  board->is_begun = true;

  // Meanwhile: at all of these, as long as they are there, and those of the
  // last host. Its first listener is the one at its own port.
  bool has_last = false;
  EXPECT_TRUE(ComesTrue([&] {
    if (!has_last) {
      const auto tcp = TcpListeners(*hosts_, 2);
      has_last = !tcp.empty();
      if (tcp.size() == 1) targets.push_back(tcp[0]);
      const auto local = LocalListeners(*hosts_, 2);
      targets.insert(targets.end(), local.begin(), local.end());
    }
    std::erase_if(
        targets, [&](const Target& target) { return !strangers.Come(target); });
    return board->met == kWorldSize;
  }));

  // While the ranks work, nothing listens.
  for (int host = 0; host < kHosts; ++host) {
    EXPECT_TRUE(ComesTrue([&] { return TcpListeners(*hosts_, host).empty(); }));
    EXPECT_TRUE(
        ComesTrue([&] { return LocalListeners(*hosts_, host).empty(); }));
  }
  EXPECT_TRUE(ComesTrue([&] {
    std::erase_if(
        targets, [&](const Target& target) { return !strangers.Come(target); });
    return targets.empty();
  }));
  strangers.Leave();
  board->may_end = true;
}

void HostStrangersTest::Guess(const std::string& url, Board* board) {
  ASSERT_OK(hosts_->Enter(kStrangersHost));
  // In a folder it would be the master, if it came first.
  ASSERT_TRUE(ComesTrue([&] { return board->is_up.load(); }));
  ::setenv("SHARD_TOKEN", "a guess", 1);
  const auto comm = OpenCommunicator(
      url, {.rank = 3, .world_size = kWorldSize, .timeout = 20});
  ExpectError(comm, StatusCode::kUnauthenticated,
              {"give all hosts the same SHARD_TOKEN or secret_file"});
  board->is_refused = true;
}

void HostStrangersTest::RunJob(const std::string& where, bool floods) {
  SCOPED_TRACE(where);
  MakeHosts(kHosts + 1);
  const std::string url = StrCat(where, "?meet=50");
  const Shared<Board> board;
  const auto results = RunRanks(kWorldSize + 2, [&](const Rank& rank) {
    const int me = rank.rank();
    if (me == kWorldSize) return Disturb(&*board, floods);
    if (me == kWorldSize + 1) return Guess(url, &*board);
    ASSERT_OK(hosts_->Enter(HostOf(kBegins, me)));
    ::setenv("SHARD_TOKEN", "the secret of the job", 1);
    if (me == 3) {
      ASSERT_TRUE(ComesTrue(
          [&] { return board->is_begun.load() && board->is_refused.load(); },
          Deadline::After(40)));
    }
    auto comm = OpenCommunicator(
        url, {.rank = me, .world_size = kWorldSize, .timeout = 20});
    ASSERT_OK(comm);
    ++board->met;
    EXPECT_OK(Work(comm->get(), &board->may_end));
    ++board->ended;
  });
  ExpectAllPassed(results);
  for (int host = 0; host <= kHosts; ++host) ExpectNothingLeft(host);
}

TEST_F(HostStrangersTest, AJobGoesOnBesideThem) {
  RunJob(StrCat("tcp://", Namespaces::Address(0), ":", kPort), false);
}

TEST_F(HostStrangersTest, AJobThatMeetsInAFolderGoesOnBesideThem) {
  const TempFolder folder;
  RunJob(StrCat("file:", folder.path()), false);
}

TEST_F(HostStrangersTest, TenThousandConnectionsCostLittle) {
  RunJob(StrCat("tcp://", Namespaces::Address(0), ":", kPort), true);
}

// The ports for tensors authenticate after they have accepted. A link with a
// delay makes the time longer for which they are there.
TEST_F(HostStrangersTest, AtThePortsForTensorsAJobGoesOnOrEndsCleanly) {
  const int rounds = IsLong() ? 200 : 3;
  constexpr double kMeet = 4;
  int went_on = 0;
  int attacks = 0;
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    MakeHosts(kHosts + 1);
    // Without a delay most strangers come too late.
    ASSERT_OK(hosts_->Relay(1, {.delay_seconds = 0.003 * ((round + 3) % 10)}));
    const std::string url =
        StrCat("tcp://", Namespaces::Address(0), ":", kPort, "?meet=", kMeet);
    struct Found {
      std::atomic<int> attacks = 0;
    };
    const Shared<Board> board;
    const Shared<Found> found;
    const auto results = RunRanks(kWorldSize + 1, [&](const Rank& rank) {
      const int me = rank.rank();
      if (me == kWorldSize) {
        Strangers strangers(*hosts_);
        // The first two listeners of host 0, and the first of the others, are
        // not Gloo's.
        std::set<std::string> known;
        EXPECT_TRUE(ComesTrue([&] {
          for (int host = 0; host < kHosts; ++host) {
            const auto tcp = TcpListeners(*hosts_, host);
            const size_t ours = host == 0 ? 2 : 1;
            for (const Target& target : tcp) {
              if (known.size() < 4 && tcp.size() <= ours) {
                known.insert(target.Text());
              } else if (!known.contains(target.Text())) {
                ++found->attacks;
                strangers.Come(target);
              }
            }
          }
          return board->ended == kWorldSize;
        }));
        return;
      }
      ASSERT_OK(hosts_->Enter(HostOf(kBegins, me)));
      ::setenv("SHARD_TOKEN", "the secret of the job", 1);
      const auto begin = Deadline::Clock::now();
      auto comm = OpenCommunicator(
          url, {.rank = me, .world_size = kWorldSize, .timeout = 5});
      const Status status =
          comm.ok() ? Work(comm->get(), nullptr) : comm.status();
      const std::chrono::duration<double> took = Deadline::Clock::now() - begin;
      rank.Report(status.ToString());
      EXPECT_LT(took.count(), kMeet + 6);
      if (status.ok()) ++board->succeeded;
      EXPECT_EQ(status.ok(), status.message().empty());
      ++board->ended;
    });
    ExpectAllPassed(results);
    const int succeeded = board->succeeded;
    EXPECT_TRUE(succeeded == 0 || succeeded == kWorldSize) << succeeded;
    went_on += succeeded == kWorldSize;
    attacks += found->attacks;
    std::printf("round %d: %d at ports for tensors; %s\n", round,
                found->attacks.load(), results[0].report.c_str());
    for (int host = 0; host < kHosts; ++host) ExpectNothingLeft(host);
  }
  std::printf("%d of %d jobs went on, %d strangers\n", went_on, rounds,
              attacks);
  EXPECT_GT(attacks, 0);
}

}  // namespace
}  // namespace shard::testing::host_strangers_test
