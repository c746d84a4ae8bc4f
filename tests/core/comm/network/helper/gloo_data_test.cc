// SPDX-License-Identifier: Apache-2.0
//
// GlooData between hosts that are loops on threads of this process, over real
// sockets.

#include "core/comm/network/helper/gloo_data.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <numeric>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/fd.h"
#include "core/base/strings.h"
#include "tests/core/base/comes_true.h"

namespace shard::network {
namespace {

constexpr const char* kLoopback = "127.0.0.1";

// A host: its loop runs on a thread of its own.
class Host {
 public:
  Host(int number, int hosts, double seconds) {
    auto loop = Loop::Create();
    EXPECT_TRUE(loop.ok()) << loop.status().ToString();
    loop_ = *std::move(loop);
    auto data = GlooData::Create(loop_.get(), number, hosts, kLoopback,
                                 Deadline::After(seconds));
    EXPECT_TRUE(data.ok()) << data.status().ToString();
    data_ = *std::move(data);
    thread_ = std::thread([this] { (void)loop_->Run(); });
  }
  ~Host() {
    OnLoop([this] { data_.reset(); });
    loop_->Stop();
    thread_.join();
  }

  GlooData* data() { return data_.get(); }

  // Runs `action` on the loop's thread and waits for its end.
  void OnLoop(const std::function<void()>& action) {
    std::atomic<bool> done = false;
    loop_->Post([&] {
      action();
      done = true;
      done.notify_all();
    });
    done.wait(false);
  }

 private:
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<GlooData> data_;
  std::thread thread_;
};

using Hosts = std::vector<std::unique_ptr<Host>>;

Hosts MakeHosts(int count, double seconds = 30) {
  Hosts hosts;
  for (int h = 0; h < count; ++h) {
    hosts.push_back(std::make_unique<Host>(h, count, seconds));
  }
  return hosts;
}

// Connects all hosts and returns their results. `ends[h][i]`: what host h is
// told of host i.
std::vector<Status> Connect(const Hosts& hosts,
                            std::vector<std::vector<GlooData::End>> ends) {
  std::vector<Status> results(hosts.size());
  std::atomic<size_t> done = 0;
  for (size_t h = 0; h < hosts.size(); ++h) {
    hosts[h]->OnLoop([&, h] {
      hosts[h]->data()->Connect(std::move(ends[h]),
                                [&, h](int host, const Status& status) {
                                  EXPECT_EQ(host >= 0, !status.ok());
                                  results[h] = status;
                                  ++done;
                                  done.notify_all();
                                });
    });
  }
  for (size_t seen = done; seen < hosts.size(); seen = done) done.wait(seen);
  return results;
}

std::vector<std::vector<GlooData::End>> EndsOf(const Hosts& hosts) {
  std::vector<std::vector<GlooData::End>> ends(hosts.size());
  for (size_t h = 0; h < hosts.size(); ++h) {
    for (size_t i = 0; i < hosts.size(); ++i) {
      ends[h].push_back(h == i ? GlooData::End()
                               : hosts[i]->data()->end(static_cast<int>(h)));
    }
  }
  return ends;
}

void ExpectConnected(const std::vector<Status>& results) {
  for (size_t h = 0; h < results.size(); ++h) {
    EXPECT_TRUE(results[h].ok())
        << "host " << h << ": " << results[h].ToString();
  }
}

// Data of many sizes goes between all hosts at the same time, in order, into
// the memory that was named for it, whichever end comes first.
TEST(GlooDataTest, MovesDataBetweenAllHosts) {
  constexpr int kHosts = 3;
  constexpr int kPieces = 40;
  Hosts hosts = MakeHosts(kHosts);
  ExpectConnected(Connect(hosts, EndsOf(hosts)));
  const auto size_of = [](int piece) {
    return static_cast<size_t>(piece % 4 == 3 ? 1 << 20 : 1 + 977 * piece);
  };
  const auto byte_of = [](int from, int to, int piece) {
    return static_cast<std::byte>(from * 80 + to * 40 + piece);
  };
  using Pieces = std::vector<std::vector<std::byte>>;
  // By sender or receiver, and the other one.
  std::vector<std::vector<Pieces>> sent(kHosts, std::vector<Pieces>(kHosts));
  std::vector<std::vector<Pieces>> received = sent;
  std::atomic<int> done = 0;
  for (int h = 0; h < kHosts; ++h) {
    for (int i = 0; i < kHosts; ++i) {
      for (int p = 0; p < kPieces; ++p) {
        sent[h][i].emplace_back(size_of(p), byte_of(h, i, p));
        received[h][i].emplace_back(size_of(p), std::byte{0});
      }
    }
  }
  const auto send = [&](int h) {
    for (int p = 0; p < kPieces; ++p) {
      for (int i = 0; i < kHosts; ++i) {
        if (i == h) continue;
        hosts[h]->data()->Send(i, sent[h][i][p].data(), size_of(p), nullptr);
      }
    }
  };
  const auto receive = [&](int h) {
    for (int p = 0; p < kPieces; ++p) {
      for (int i = 0; i < kHosts; ++i) {
        if (i == h) continue;
        hosts[h]->data()->Receive(i, received[h][i][p].data(), size_of(p), [&] {
          ++done;
          done.notify_all();
        });
      }
    }
  };
  for (int h = 0; h < kHosts; ++h) {
    hosts[h]->OnLoop([&] {
      // The receiver comes first on one host, and last on another.
      if (h == 0) receive(h);
      send(h);
      if (h != 0) receive(h);
    });
  }
  constexpr int kAll = kHosts * (kHosts - 1) * kPieces;
  for (int seen = done; seen < kAll; seen = done) done.wait(seen);
  uint64_t bytes = 0;
  for (int p = 0; p < kPieces; ++p) bytes += size_of(p);
  for (int h = 0; h < kHosts; ++h) {
    EXPECT_EQ(hosts[h]->data()->bytes_sent(), 2 * bytes);
    EXPECT_EQ(hosts[h]->data()->bytes_received(), 2 * bytes);
    for (int i = 0; i < kHosts; ++i) {
      if (i == h) continue;
      for (int p = 0; p < kPieces; ++p) {
        ASSERT_TRUE(received[h][i][p] == sent[i][h][p])
            << "piece " << p << " from host " << i << " to host " << h;
      }
    }
  }
  // Gloo may be in the call yet that has sent the last bytes.
  hosts.clear();
}

// A host that goes is told to the others, and those go on with each other.
TEST(GlooDataTest, ALostHostIsTold) {
  Hosts hosts = MakeHosts(3);
  ExpectConnected(Connect(hosts, EndsOf(hosts)));
  std::atomic<int> lost = 0;
  std::byte never[64];
  for (int h : {0, 1}) {
    hosts[h]->OnLoop([&, h] {
      hosts[h]->data()->set_on_lost([&, h](int host, const Status& why) {
        EXPECT_EQ(host, 2) << why.ToString();
        EXPECT_EQ(why.code(), StatusCode::kUnavailable) << why.ToString();
        hosts[h]->data()->Lose(host);
        ++lost;
        lost.notify_all();
      });
      hosts[h]->data()->Receive(2, never, sizeof(never),
                                [] { ADD_FAILURE() << "nothing was sent"; });
    });
  }
  hosts[2].reset();
  for (int seen = lost; seen < 2; seen = lost) lost.wait(seen);

  std::byte sent[64];
  std::memset(sent, 7, sizeof(sent));
  std::byte received[64] = {};
  std::atomic<bool> done = false;
  hosts[1]->OnLoop([&] {
    hosts[1]->data()->Receive(0, received, sizeof(received), [&] {
      done = true;
      done.notify_all();
    });
  });
  hosts[0]->OnLoop([&] {
    hosts[0]->data()->Send(1, sent, sizeof(sent), nullptr);
    // Data for a host that is lost is dropped.
    hosts[0]->data()->Send(2, sent, sizeof(sent), nullptr);
  });
  done.wait(false);
  EXPECT_EQ(std::memcmp(sent, received, sizeof(sent)), 0);
  hosts.clear();  // Before the memory that it sends.
}

// Another token than the one that came over the channel is a stranger's.
TEST(GlooDataTest, AnotherTokenIsAStrangers) {
  const Hosts hosts = MakeHosts(2);
  auto ends = EndsOf(hosts);
  ends[1][0].token = std::string(32, 'x');
  const std::vector<Status> results = Connect(hosts, std::move(ends));
  EXPECT_EQ(results[0].code(), StatusCode::kPermissionDenied)
      << results[0].ToString();
}

// A host that does not connect costs the others their deadline and a second,
// in which who waits for it ends the wait.
TEST(GlooDataTest, AHostThatDoesNotConnectEndsByTheDeadline) {
  const Hosts hosts = MakeHosts(2, 0.5);
  auto ends = EndsOf(hosts);
  Status result;
  std::atomic<bool> done = false;
  hosts[0]->OnLoop([&] {
    hosts[0]->data()->Connect(std::move(ends[0]),
                              [&](int host, const Status& status) {
                                EXPECT_EQ(host, 1);
                                result = status;
                                done = true;
                                done.notify_all();
                              });
  });
  done.wait(false);
  EXPECT_EQ(result.code(), StatusCode::kUnavailable) << result.ToString();
}

// Returns the number of TCP connections of this network namespace.
int CountConnections() {
  std::ifstream file("/proc/self/net/tcp");
  int count = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string number, local, remote, state;
    fields >> number >> local >> remote >> state;
    if (state == "01") ++count;  // TCP_ESTABLISHED
  }
  return count;
}

// A host that ends while it connects does not wait for the others, whether it
// has begun to exchange tokens or not.
TEST(GlooDataTest, AHostThatEndsDoesNotWaitForOthersToConnect) {
  for (const bool connects : {false, true}) {
    for (const size_t ends_first : {0u, 1u}) {
      SCOPED_TRACE(StrCat(connects, " ", ends_first));
      Hosts hosts = MakeHosts(2, /*seconds=*/120);
      auto ends = EndsOf(hosts);
      const int before = CountConnections();
      hosts[ends_first]->OnLoop([&] {
        hosts[ends_first]->data()->Connect(
            std::move(ends[ends_first]),
            [](int, const Status&) { ADD_FAILURE() << "it has connected"; });
      });
      const auto begin = std::chrono::steady_clock::now();
      const auto is_past = [&](int seconds) {
        return std::chrono::steady_clock::now() - begin >
               std::chrono::seconds(seconds);
      };
      while (connects && CountConnections() == before && !is_past(2)) {
        std::this_thread::yield();
      }
      hosts[ends_first].reset();
      EXPECT_FALSE(is_past(30));
    }
  }
}

// Connects to `end` and returns the connection.
Fd ConnectTo(const GlooData::End& end) {
  sockaddr_storage address{};
  EXPECT_GE(end.address.size(), sizeof(address));
  std::memcpy(&address, end.address.data(), sizeof(address));
  EXPECT_EQ(address.ss_family, AF_INET);
  Fd connection(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(connection.get(), reinterpret_cast<sockaddr*>(&address),
                      sizeof(sockaddr_in)),
            0)
      << std::strerror(errno);
  return connection;
}

// Closes `connection` so that the other end is told of a reset.
void Reset(Fd connection) {
  const linger at_once = {.l_onoff = 1, .l_linger = 0};
  ASSERT_EQ(::setsockopt(connection.get(), SOL_SOCKET, SO_LINGER, &at_once,
                         sizeof(at_once)),
            0);
}

// A stranger who comes first and is gone before Gloo looks at the connection,
// or who sends what is not Gloo's, costs the connection that was expected. Both
// ends get an error by the deadline, and the process goes on.
TEST(GlooDataTest, AStrangersConnectionIsAnError) {
  constexpr int kResets = 30;
  for (int i = 0; i <= kResets; ++i) {
    SCOPED_TRACE(i);
    // The address of each end decides which of the two listens.
    const Hosts hosts = MakeHosts(2, 0.1);
    const auto ends = EndsOf(hosts);
    std::vector<Fd> connections;
    for (int h = 0; h < 2; ++h) {
      Fd connection = ConnectTo(hosts[h]->data()->end(1 - h));
      if (i < kResets) {
        Reset(std::move(connection));
        continue;
      }
      // The begin of a message to a buffer that nobody has made.
      const uint64_t garbage[6] = {100, 1, 17, 0, 52, 0};
      ASSERT_EQ(::send(connection.get(), garbage, sizeof(garbage), 0),
                static_cast<ssize_t>(sizeof(garbage)));
      connections.push_back(std::move(connection));
    }
    bool has_thrown = false;
    for (const Status& result : Connect(hosts, ends)) {
      EXPECT_EQ(result.code(), StatusCode::kUnavailable) << result.ToString();
      has_thrown |= result.message().find("enforce fail") != std::string::npos;
    }
    // Whether Gloo is in time to see a reset is not known.
    EXPECT_TRUE(i < kResets || has_thrown);
  }
}

// Bytes that Gloo does not expect close the connection on which they come, and
// no other.
TEST(GlooDataTest, TooMuchDataClosesItsConnection) {
  Hosts hosts = MakeHosts(3);
  ExpectConnected(Connect(hosts, EndsOf(hosts)));
  const std::byte sent[64] = {};
  std::byte received[16];
  std::atomic<bool> lost = false;
  hosts[0]->OnLoop([&] {
    hosts[0]->data()->set_on_lost([&](int host, const Status& why) {
      EXPECT_EQ(host, 1) << why.ToString();
      hosts[0]->data()->Lose(host);
      lost = true;
    });
    hosts[0]->data()->Receive(1, received, sizeof(received),
                              [] { ADD_FAILURE() << "64 bytes are 16"; });
  });
  hosts[1]->OnLoop(
      [&] { hosts[1]->data()->Send(0, sent, sizeof(sent), nullptr); });
  EXPECT_TRUE(testing::ComesTrue([&] { return lost.load(); }));

  std::atomic<bool> done = false;
  hosts[2]->OnLoop([&] { hosts[2]->data()->Send(0, sent, 8, nullptr); });
  hosts[0]->OnLoop([&] {
    hosts[0]->data()->Receive(2, received, 8, [&] {
      done = true;
      done.notify_all();
    });
  });
  EXPECT_TRUE(testing::ComesTrue([&] { return done.load(); }));
  hosts.clear();  // Before the memory that they send.
}

// Memory is held until the data has left it.
TEST(GlooDataTest, HoldsTheOwnerOfDataUntilItIsSent) {
  Hosts hosts = MakeHosts(2);
  ExpectConnected(Connect(hosts, EndsOf(hosts)));
  constexpr size_t kBytes = size_t{8} << 20;  // More than a socket takes.
  auto data = std::make_shared<std::vector<std::byte>>(kBytes, std::byte{9});
  const std::weak_ptr<std::vector<std::byte>> watch = data;
  std::vector<std::byte> received(kBytes);
  hosts[0]->OnLoop([&] {
    const std::byte* const bytes = data->data();
    hosts[0]->data()->Send(1, bytes, kBytes, std::move(data));
  });
  EXPECT_FALSE(watch.expired());
  std::atomic<bool> done = false;
  hosts[1]->OnLoop([&] {
    hosts[1]->data()->Receive(0, received.data(), kBytes, [&] {
      done = true;
      done.notify_all();
    });
  });
  done.wait(false);
  EXPECT_TRUE(received == std::vector<std::byte>(kBytes, std::byte{9}));
  hosts.clear();
}

}  // namespace
}  // namespace shard::network
