// SPDX-License-Identifier: Apache-2.0
//
// Hosts that are set up wrongly, with real helpers, each in a network of its
// own: every rank gets an error that names what is wrong and what to do, within
// the time to meet, and nothing is left.

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
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

namespace shard::testing::host_errors_test {
namespace {

// Where a test waits for it. An idle machine starts all helpers in 0.7 s.
constexpr double kMeetSeconds = kSanitized ? 6 : 3;
constexpr double kWorkSeconds = 2;  // Of each collective.
// What a busy machine adds.
constexpr double kSlackSeconds = kSanitized ? 6 : 2;
constexpr uint16_t kPort = 7077;

std::string Url(std::string_view parameters = "", double meet = kMeetSeconds) {
  return StrCat("tcp://", Namespaces::Address(0), ":", kPort,
                "?trust=network&meet=", meet, parameters);
}

Fd ListenOn(int host, uint16_t port) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  ::inet_pton(AF_INET, Namespaces::Address(host).c_str(), &address.sin_addr);
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address),
                   sizeof(address)),
            0);
  EXPECT_EQ(::listen(fd.get(), 16), 0);
  return fd;
}

class HostErrorsTest : public NamespaceHostsTest {
 protected:
  using Expect = std::function<void(int rank, const Status&)>;
  using Work = std::function<Status(Communicator*)>;

  // Opens a communicator on every rank, whose hosts are given, works with it,
  // and expects what has to come out. `beside` runs as a further process, on
  // host 0, until all ranks have ended.
  void Run(const std::vector<int>& host_of,
           const std::function<std::string(int rank)>& url,
           const Expect& expect, const Work& work = nullptr,
           const std::function<void()>& beside = nullptr) {
    const auto world_size = static_cast<int>(host_of.size());
    struct Board {
      std::atomic<int> ended = 0;
    };
    const Shared<Board> board;
    ended_ = [&] { return board->ended == world_size; };
    const int processes = world_size + (beside ? 1 : 0);
    const auto results = RunRanks(processes, [&](const Rank& rank) {
      const int me = rank.rank();
      ASSERT_OK(hosts_->Enter(me < world_size ? host_of[static_cast<size_t>(me)]
                                              : 0));
      if (me == world_size) return beside();
      const auto begin = Deadline::Clock::now();
      auto comm = OpenCommunicator(
          url(me),
          {.rank = me, .world_size = world_size, .timeout = kWorkSeconds});
      Status status = comm.status();
      if (status.ok() && work) status = work(comm->get());
      const std::chrono::duration<double> took = Deadline::Clock::now() - begin;
      rank.Report(StrCat(took.count(), " s: ", status.ToString()));
      expect(me, status);
      EXPECT_LT(took.count(),
                kMeetSeconds + (work ? kWorkSeconds : 0) + 1 + kSlackSeconds);
      ++board->ended;
    });
    for (const RankResult& result : results) {
      EXPECT_TRUE(result.passed()) << result.ToString();
      if (result.rank < world_size && print_) {
        std::printf("%s\n", result.ToString().c_str());
      }
    }
    taken_.Reset();
    const int hosts = *std::max_element(host_of.begin(), host_of.end()) + 1;
    for (int host = 0; host < hosts; ++host) ExpectNothingLeft(host);
  }

  Fd taken_;  // A socket of another program.
  // Whether all ranks have ended; for `beside`.
  std::function<bool()> ended_;
  const bool print_ = ::getenv("SHARD_TEST_PRINT_ERRORS") != nullptr;
};

TEST_F(HostErrorsTest, AProgramHasThePort) {
  for (const std::string banner : {"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", ""}) {
    SCOPED_TRACE(banner);
    MakeHosts(2);
    std::thread([&] {
      ASSERT_OK(hosts_->Enter(0));
      taken_ = ListenOn(0, kPort);
    }).join();
    Run(
        {0, 1}, [](int) { return Url(); },
        [&](int rank, const Status& status) {
          if (!banner.empty()) {
            ExpectError(status, StatusCode::kAlreadyExists,
                        {"tcp://10.77.0.1:7077",
                         "is taken by a program that is not libshard",
                         "ss -ltnp 'sport = :7077'"});
          } else if (rank == 0) {
            // A program that says nothing may be anything; this host knows that
            // it has the port.
            ExpectError(status, StatusCode::kDeadlineExceeded,
                        {"port 7077 of 10.77.0.1 is taken",
                         "ss -ltnp 'sport = :7077'"});
          } else {
            ExpectError(status, StatusCode::kDeadlineExceeded,
                        {"nobody of this job was reached at "
                         "tcp://10.77.0.1:7077",
                         "one host of the job must have that address"});
          }
        },
        nullptr,
        [&] {
          std::vector<Fd> clients;
          EXPECT_TRUE(ComesTrue([&] {
            Fd client(::accept4(taken_.get(), nullptr, nullptr, SOCK_CLOEXEC));
            if (client.valid()) {
              (void)::send(client.get(), banner.data(), banner.size(),
                           MSG_NOSIGNAL);
              clients.push_back(std::move(client));
            }
            return ended_();
          }));
        });
  }
}

TEST_F(HostErrorsTest, NoPortIsFree) {
  MakeHosts(2);
  bool is_set = false;
  std::thread([&] {
    ASSERT_OK(hosts_->Enter(1));
    const Fd range(
        ::open("/proc/sys/net/ipv4/ip_local_port_range", O_WRONLY | O_CLOEXEC));
    constexpr std::string_view kOne = "40000 40000";
    is_set = range.valid() && ::write(range.get(), kOne.data(), kOne.size()) ==
                                  static_cast<ssize_t>(kOne.size());
    taken_ = ListenOn(1, 40000);
  }).join();
  if (!is_set) GTEST_SKIP() << "the range of ports cannot be set here";
  Run(
      {0, 1}, [](int) { return Url(); },
      [](int rank, const Status& status) {
        if (rank == 1) {
          ExpectError(status, StatusCode::kResourceExhausted,
                      {"no port of 10.77.0.2 is free",
                       "net.ipv4.ip_local_port_range", "`ss -tan`"});
        } else {
          ExpectError(status, StatusCode::kDeadlineExceeded,
                      {"ranks did not come to", "[1]"});
        }
      });
}

TEST_F(HostErrorsTest, ANameThatDoesNotResolve) {
  MakeHosts(2);
  Run(
      {0, 1},
      [](int) {
        return StrCat("tcp://no-such-host.invalid:", kPort,
                      "?trust=network&meet=", kMeetSeconds);
      },
      [](int, const Status& status) {
        // Where there are name servers, they are not reached from here, and are
        // asked until the deadline.
        const bool is_unknown = status.code() == StatusCode::kNotFound;
        ExpectError(
            status,
            is_unknown ? StatusCode::kNotFound : StatusCode::kDeadlineExceeded,
            {"no-such-host.invalid",
             is_unknown ? "`getent hosts no-such-host.invalid`"
                        : "check /etc/resolv.conf and the name servers"});
      });
}

TEST_F(HostErrorsTest, AnInterfaceThatIsDownOrMissing) {
  struct Case {
    const char* parameters;
    StatusCode code;
    std::vector<std::string_view> parts;
    bool down = true;
  };
  for (const Case& wrong :
       {Case{"&interface=eth0",
             StatusCode::kUnavailable,
             {"the interface eth0 is down", "`ip link set eth0 up`"}},
        Case{"",
             StatusCode::kUnavailable,
             {"this host has no route to 10.77.0.1", "interface= or address="}},
        Case{"&interface=eth7",
             StatusCode::kNotFound,
             {"this host has no interface eth7", "lo, eth0"},
             false},
        Case{"&address=10.77.0.9",
             StatusCode::kNotFound,
             {"address=10.77.0.9 is not an address of this host",
              "`ip address`"},
             false}}) {
    SCOPED_TRACE(wrong.parameters);
    MakeHosts(2);
    if (wrong.down) {
      ASSERT_OK(hosts_->Configure(1, "link set eth0 down"));
    }
    Run(
        {0, 1},
        [&](int rank) { return Url(rank == 1 ? wrong.parameters : ""); },
        [&](int rank, const Status& status) {
          if (wrong.down && rank == 0) {
            return ExpectError(status, StatusCode::kDeadlineExceeded,
                               {"ranks did not come to", "[1]"});
          }
          // A host that reaches the master tells all.
          ExpectError(status, wrong.code, {});
          for (const std::string_view part : wrong.parts) {
            ExpectError(status, wrong.code, {part});
          }
        });
  }
}

TEST_F(HostErrorsTest, TheInterfaceOfTheMasterIsDown) {
  MakeHosts(2);
  ASSERT_OK(hosts_->Configure(0, "link set eth0 down"));
  Run(
      {0, 1}, [](int) { return Url(); },
      [](int rank, const Status& status) {
        if (rank == 0) {
          EXPECT_FALSE(status.ok());
        } else {
          ExpectError(status, StatusCode::kDeadlineExceeded,
                      {"nobody of this job was reached at",
                       "one host of the job must have that address"});
        }
      });
}

Status Reduce(Communicator* comm, size_t count) {
  SHARD_ASSIGN_OR_RETURN(
      const auto exchange,
      comm->OpenExchange("exchange", Deadline::After(kWorkSeconds)));
  const auto ranks = static_cast<size_t>(comm->world_size());
  std::vector<float> tensor(count);
  const std::vector<float> tensors(count * ranks);
  return exchange->ReduceScatter(
      "reduce", RankSet::All(comm->world_size()),
      {.send = tensors.data(), .count = count, .recv = tensor.data()},
      Deadline::After(kWorkSeconds));
}

TEST_F(HostErrorsTest, AnInterfaceThatGoesDownWhileRanksWork) {
  MakeHosts(2);
  const auto work = [&](Communicator* comm) -> Status {
    SHARD_RETURN_IF_ERROR(Reduce(comm, 10'000));
    if (comm->rank() == 1) {
      SHARD_RETURN_IF_ERROR(hosts_->Configure(1, "link set eth0 down"));
    }
    return Reduce(comm, 10'000);
  };
  Run(
      {0, 1}, [](int) { return Url(); },
      [](int rank, const Status& status) {
        ExpectError(status, StatusCode::kRankLost,
                    {"is on a host that cannot be reached"});
        EXPECT_EQ(status.rank(), 1 - rank) << status.ToString();
      },
      work);
}

// Small packets pass, and all of the meeting would, but for what the hosts send
// to see that large ones do not.
TEST_F(HostErrorsTest, LargePacketsAreLost) {
  for (const size_t largest : {1400, 600}) {
    if (largest == 600 && ::getenv("SHARD_TEST_LONG") == nullptr) continue;
    SCOPED_TRACE(largest);
    MakeHosts(2);
    ASSERT_OK(hosts_->Relay(1, {.largest_packet = largest}));
    Run(
        {0, 1, 1}, [](int) { return Url(); },
        [](int, const Status& status) {
          ExpectError(status, StatusCode::kRankLost,
                      {"was lost while the ranks met",
                       "its tensor connections were not ready in time",
                       "let firewalls pass all TCP ports",
                       "`ping -M do -s 1472 10.77.0."});
        });
  }
}

TEST_F(HostErrorsTest, JumboPacketsAreLost) {
  MakeHosts(2);
  for (const int host : {0, 1}) {
    ASSERT_OK(hosts_->Configure(host, "link set eth0 mtu 9000"));
  }
  ASSERT_OK(hosts_->Relay(1, {.largest_packet = 1500}));
  Run(
      {0, 1}, [](int) { return Url(); },
      [](int, const Status& status) {
        ExpectError(status, StatusCode::kRankLost,
                    {"its tensor connections were not ready in time"});
      });
}

TEST_F(HostErrorsTest, RanksThatAreNotContiguous) {
  MakeHosts(2);
  Run(
      {0, 1, 0}, [](int) { return Url("", 20); },
      [](int, const Status& status) {
        ExpectError(
            status, StatusCode::kInvalidArgument,
            {"the ranks of a host must be contiguous", "has rank 2 and rank 0",
             "has rank 1", "--distribution=block"});
      });
}

TEST_F(HostErrorsTest, ASecretThatOthersCanRead) {
  MakeHosts(2);
  const TempFolder folder;
  const std::string file = folder / "secret";
  WriteText(file, "a secret of the job\n");
  ASSERT_EQ(::chmod(file.c_str(), 0644), 0);
  Run(
      {0, 1}, [&](int) { return Url(StrCat("&secret_file=", file), 20); },
      [&](int, const Status& status) {
        ExpectError(status, StatusCode::kPermissionDenied,
                    {file, "other users may use the secret file", "chmod 600"});
      });
}

TEST_F(HostErrorsTest, NoSecret) {
  MakeHosts(2);
  Run(
      {0, 1},
      [](int) {
        return StrCat("tcp://", Namespaces::Address(0), ":", kPort,
                      "?meet=", kMeetSeconds);
      },
      [](int, const Status& status) {
        ExpectError(status, StatusCode::kPermissionDenied,
                    {"without a job secret would let everybody",
                     "set SHARD_TOKEN or secret_file", "trust=network"});
      });
}

// A link of a WAN: the hosts meet, and work.
TEST_F(HostErrorsTest, SlowLinksThatLosePacketsAreNoError) {
  MakeHosts(3);
  ASSERT_OK(hosts_->Relay(1, {.delay_seconds = 0.005, .loss = 0.01}));
  const auto work = [](Communicator* comm) -> Status {
    for (int loop = 0; loop < 3; ++loop) {
      SHARD_RETURN_IF_ERROR(Reduce(comm, 10'000));
    }
    return comm->Shutdown(Deadline::After(kWorkSeconds));
  };
  Run(
      {0, 1, 1, 2}, [](int) { return Url("", 20); },
      [](int, const Status& status) { EXPECT_OK(status); }, work);
}

}  // namespace
}  // namespace shard::testing::host_errors_test
