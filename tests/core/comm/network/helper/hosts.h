// SPDX-License-Identifier: Apache-2.0
//
// Whole hosts for tests: each one is a thread with a loop and a Meeting.

#ifndef SHARD_TESTS_CORE_COMM_NETWORK_HELPER_HOSTS_H_
#define SHARD_TESTS_CORE_COMM_NETWORK_HELPER_HOSTS_H_

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/comm/network/helper/rendezvous.h"
#include "tests/core/base/comes_true.h"
#include "tests/core/comm/network/helper/helper_testing.h"

namespace shard::network {

struct Plan {
  std::vector<int> ranks;
  // Changes the options of this host.
  std::function<void(MeetingOptions*)> change = nullptr;
  // Called in each round of the host's loop until it returns true: then the
  // host leaves.
  std::function<bool(Meeting*)> leaves = nullptr;
  std::function<void()> ends = nullptr;  // Called once it has ended.
};

struct Outcome {
  std::optional<Status> status;  // Empty for a host that has left.
  std::vector<HostEntry> hosts;
  int self = -1;
  bool was_master = false;
  double seconds = 0;
};

inline MeetingOptions OptionsFor(uint16_t port, int world_size, int host,
                                 double seconds) {
  return {.host = "127.0.0.1",
          .port = port,
          .identity = MakeIdentity(),
          .world_size = world_size,
          .deadline = Deadline::After(seconds),
          .host_name = StrCat("node-", host)};
}

// Expects that each channel of a mesh carries a frame each way.
inline void ExpectConnected(Loop* loop, Mesh* mesh) {
  size_t came = 0;
  std::vector<bool> has_come(mesh->channels.size());
  for (size_t i = 0; i < mesh->channels.size(); ++i) {
    Channel* const channel = mesh->channels[i].get();
    ASSERT_EQ(channel == nullptr, static_cast<int>(i) == mesh->self);
    if (channel == nullptr) continue;
    channel->SetHandlers({.on_frame =
                              [&, i, mesh](uint32_t kind, Channel::Bytes body) {
                                int numbers[2];
                                ASSERT_EQ(body.size(), sizeof(numbers));
                                std::memcpy(numbers, body.data(),
                                            sizeof(numbers));
                                EXPECT_EQ(kind, 77u);
                                EXPECT_EQ(numbers[0], static_cast<int>(i));
                                EXPECT_EQ(numbers[1], mesh->self);
                                ++came;
                                has_come[i] = true;
                              },
                          .on_closed =
                              [&, i](const Status& why) {
                                // A host that has all frames may end.
                                EXPECT_TRUE(has_come[i]) << why.ToString();
                              }});
    const int numbers[] = {mesh->self, static_cast<int>(i)};
    EXPECT_OK(channel->Send(77, {std::as_bytes(std::span(numbers))}));
  }
  EXPECT_TRUE(
      RunUntil(loop, [&] { return came + 1 == mesh->channels.size(); }));
  // Other hosts may end their channels from here on.
  for (auto& channel : mesh->channels) {
    if (channel != nullptr) channel->SetHandlers({});
  }
}

// Runs the hosts, each on a thread of its own. Host 0 is the master where
// `first_is_master`: the others wait for it.
inline std::vector<Outcome> RunHosts(const std::vector<Plan>& plans,
                                     const MeetingOptions& base,
                                     bool first_is_master = true) {
  std::vector<Outcome> outcomes(plans.size());
  std::atomic<bool> master_is_up = !first_is_master;
  const auto run = [&](size_t i) {
    if (i > 0) {
      EXPECT_TRUE(testing::ComesTrue([&] { return master_is_up.load(); }));
    }
    const auto begin = Deadline::Clock::now();
    const auto loop = MakeLoop();
    MeetingOptions options = base;
    options.deadline = Deadline::After(base.deadline.seconds());
    options.host_name = StrCat("node-", i);
    if (plans[i].change) plans[i].change(&options);
    std::optional<StatusOr<Mesh>> result;
    auto meeting = std::make_unique<Meeting>(
        loop.get(), options,
        [&](StatusOr<Mesh> mesh) { result = std::move(mesh); });
    for (const int rank : plans[i].ranks) meeting->AddRank(rank);
    bool left = false;
    Outcome& outcome = outcomes[i];
    EXPECT_TRUE(RunUntil(loop.get(), [&] {
      if (meeting->master() != nullptr) {
        outcome.was_master = true;
        if (i == 0) master_is_up = true;
      }
      left = plans[i].leaves && plans[i].leaves(meeting.get());
      return left || result.has_value();
    }));
    if (i == 0) master_is_up = true;
    meeting = nullptr;
    if (plans[i].ends) plans[i].ends();
    if (!result) return;
    outcome.status = result->status();
    outcome.seconds =
        std::chrono::duration<double>(Deadline::Clock::now() - begin).count();
    if (!result->ok()) return;
    outcome.hosts = (*result)->hosts;
    outcome.self = (*result)->self;
    ExpectConnected(loop.get(), &**result);
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < plans.size(); ++i) threads.emplace_back(run, i);
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

// Expects one error on all hosts.
inline void ExpectSameError(const std::vector<Outcome>& outcomes,
                            StatusCode code, int rank,
                            std::initializer_list<std::string_view> parts) {
  for (const Outcome& outcome : outcomes) {
    if (!outcome.status) continue;
    ExpectError(*outcome.status, code, parts);
    EXPECT_EQ(outcome.status->rank(), rank) << outcome.status->ToString();
  }
}

}  // namespace shard::network

#endif  // SHARD_TESTS_CORE_COMM_NETWORK_HELPER_HOSTS_H_
