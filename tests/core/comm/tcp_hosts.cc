// SPDX-License-Identifier: Apache-2.0

#include "tests/core/comm/tcp_hosts.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "tests/namespaces/namespaces.h"
#include "tests/ranks/ranks.h"

namespace shard::testing {
namespace {

// The most hosts of a group that have networks of their own.
constexpr int kMostNetworks = 8;

// The ranks of the hosts of a group, over and over. 4 ranks are on 2, 3 and 4
// hosts.
const std::vector<int> kShapes[] = {{3, 1}, {1, 2}, {1}, {2, 1, 3}};

std::atomic<int> groups{0};

// The networks of all groups. Made once, and left to the end of the process:
// to make and to remove them takes longer than a group takes to meet.
const StatusOr<std::unique_ptr<Namespaces>>& Networks() {
  static const auto* const networks = new auto(Namespaces::Make(kMostNetworks));
  return *networks;
}

// Makes the networks while the process has one thread.
class Environment final : public ::testing::Environment {
 public:
  void SetUp() override {
    if (HostsAreNamespaces() && !Networks().ok()) {
      GTEST_SKIP() << "no network namespaces: "
                   << Networks().status().ToString();
    }
  }
};
const auto* const environment =
    ::testing::AddGlobalTestEnvironment(new Environment);

// Returns where the hosts of the next group begin. There are two, if it has two
// ranks.
std::vector<int> NextBegins(int world_size) {
  if (!HostsAreNamespaces()) return HostBegins(world_size);
  const std::vector<int>& shape =
      kShapes[static_cast<size_t>(groups) % std::size(kShapes)];
  std::vector<int> begins = {0};
  while (begins.back() < world_size) {
    const size_t host = begins.size() - 1;
    const int most = host == 0 && world_size > 1 ? world_size - 1 : world_size;
    const int end = begins.back() + shape[host % shape.size()];
    begins.push_back(host + 1 == kMostNetworks ? world_size
                                               : std::min(end, most));
  }
  return begins;
}

}  // namespace

bool HostsAreNamespaces() {
  const char* const hosts = std::getenv("SHARD_TEST_HOSTS");
  return hosts != nullptr && std::string_view(hosts) == "namespaces";
}

TcpHosts::TcpHosts(int world_size, const std::string& parameters)
    : TcpHosts(NextBegins(world_size), parameters) {}

TcpHosts::TcpHosts(std::vector<int> begins, const std::string& parameters)
    : begins_(std::move(begins)),
      parameters_(parameters.empty() ? "" : StrCat("&", parameters)),
      name_(UniqueName()) {
  if (std::getenv("SHARD_NETWORK_HELPER") == nullptr) {
    const std::string helper =
        std::filesystem::canonical("sdk/network/shard-network");
    ::setenv("SHARD_NETWORK_HELPER", helper.c_str(), 1);
  }
  const int group = groups.fetch_add(1);
  if (HostsAreNamespaces()) {
    EXPECT_TRUE(Networks().ok()) << Networks().status().ToString();
    // Nobody else is in these networks, where the kernel chooses ports above.
    port_ = 20'000 + group % 10'000;
  } else {
    HoldPort();
  }
}

Status TcpHosts::Enter(int rank) const {
  if (!HostsAreNamespaces()) return Status();
  SHARD_RETURN_IF_ERROR(Networks().status());
  return (*Networks())->Enter(HostOf(rank));
}

std::string TcpHosts::CommandPrefix(int rank) const {
  if (!HostsAreNamespaces() || !Networks().ok()) return "";
  return StrCat("nsenter --net=", (*Networks())->Path(HostOf(rank)), " ");
}

std::string TcpHosts::Url(int rank) const {
  if (HostsAreNamespaces()) {
    return StrCat("tcp://", Namespaces::Address(0), ":", port_, "?job=", name_,
                  "&meet=30&trust=network", parameters_);
  }
  return StrCat("tcp://127.0.0.1:", port_, "?job=", name_, "&meet=30&host=h",
                HostOf(rank), parameters_);
}

std::string TcpHosts::Shape() const {
  std::string shape;
  for (size_t host = 0; host + 1 < begins_.size(); ++host) {
    StrAppend(&shape, host == 0 ? "" : "+", begins_[host + 1] - begins_[host]);
  }
  return shape;
}

int TcpHosts::HostOf(int rank) const {
  return static_cast<int>(
             std::upper_bound(begins_.begin(), begins_.end(), rank) -
             begins_.begin()) -
         1;
}

// Binds a port of loopback. The kernel gives it to nobody else then, but to the
// master, which asks for it with SO_REUSEADDR, as this does.
void TcpHosts::HoldPort() {
  port_holder_.Reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  EXPECT_EQ(::setsockopt(port_holder_.get(), SOL_SOCKET, SO_REUSEADDR, &on,
                         sizeof(on)),
            0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(::bind(port_holder_.get(), any, size), 0);
  EXPECT_EQ(::getsockname(port_holder_.get(), any, &size), 0);
  port_ = ntohs(address.sin_port);
}

}  // namespace shard::testing
