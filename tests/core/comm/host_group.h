// SPDX-License-Identifier: Apache-2.0
//
// HostGroup: a group of ranks that are threads, on hosts of given sizes, which
// sums in a given form: for tests of what passes between hosts.

#ifndef SHARD_TESTS_CORE_COMM_HOST_GROUP_H_
#define SHARD_TESTS_CORE_COMM_HOST_GROUP_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/comm/direct/host_chain.h"
#include "core/comm/exchange.h"
#include "tests/core/comm/backends.h"

namespace shard::testing {

// The first rank of each host, and the number of ranks.
using Begins = std::vector<int>;

// Backend is kHosts (links that are queues) or kTcp (real helpers).
using HostForm = std::tuple<Backend, Begins, direct::HostSums>;

class HostGroup {
 public:
  explicit HostGroup(const HostForm& form)
      : begins_(std::get<Begins>(form)), sums_(std::get<2>(form)) {
    if (std::get<Backend>(form) == Backend::kTcp) {
      const std::string_view name = direct::HostSumsName(sums_);
      tcp_.emplace(begins_, name.empty() ? "" : StrCat("sums=", name));
    } else {
      mirrored_ = std::make_unique<MirroredHosts>(begins_, sums_);
    }
  }

  int world_size() const { return begins_.back(); }

  // Runs body(communicator, exchange) on every rank, and shuts the group down,
  // unless it ends with an error. Called once.
  void Run(const std::function<void(Communicator*, Exchange*)>& body,
           bool shutdown = true) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world_size(); ++rank) {
      threads.emplace_back(
          [this, &body, shutdown, rank] { RunRank(rank, body, shutdown); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  // Returns the bytes of tensors that left a host so far. REQUIRES: kHosts.
  size_t data_sent(int host) const { return mirrored_->data_sent(host); }

 private:
  void RunRank(int rank,
               const std::function<void(Communicator*, Exchange*)>& body,
               bool shutdown) {
    const CommOptions options = {.rank = rank, .world_size = world_size()};
    auto comm =
        tcp_
            ? OpenCommunicator(tcp_->Url(rank), options)
            : StatusOr<std::shared_ptr<Communicator>>(mirrored_->Open(options));
    ASSERT_TRUE(comm.ok()) << comm.status().ToString();
    {
      const auto exchange = (*comm)->OpenExchange("tensors", Soon());
      ASSERT_TRUE(exchange.ok()) << exchange.status().ToString();
      body(comm->get(), exchange->get());
    }
    if (shutdown) SHARD_EXPECT_OK((*comm)->Shutdown(Soon()));
  }

  const Begins begins_;
  const direct::HostSums sums_;
  std::optional<TcpHosts> tcp_;
  std::unique_ptr<MirroredHosts> mirrored_;
};

// Returns the name of a test of a form: "tcp_212_chain".
inline std::string NameOfForm(const ::testing::TestParamInfo<HostForm>& info) {
  const Begins& begins = std::get<Begins>(info.param);
  std::string name = BackendName(std::get<Backend>(info.param));
  for (size_t h = 0; h + 1 < begins.size(); ++h) {
    StrAppend(&name, h == 0 ? "_" : "", begins[h + 1] - begins[h]);
  }
  const std::string_view sums = direct::HostSumsName(std::get<2>(info.param));
  return StrCat(name, "_", sums.empty() ? "fewest" : sums);
}

// Returns the hosts of the forms that tests take: those of the short form, and
// with SHARD_TEST_LONG the others, too.
inline std::vector<Begins> ShortOrLong(std::vector<Begins> in_short,
                                       const std::vector<Begins>& others) {
  if (std::getenv("SHARD_TEST_LONG") != nullptr) {
    in_short.insert(in_short.end(), others.begin(), others.end());
  }
  return in_short;
}

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_COMM_HOST_GROUP_H_
