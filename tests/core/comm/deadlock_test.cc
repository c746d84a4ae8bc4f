// SPDX-License-Identifier: Apache-2.0
//
// Ranks whose hosts wait for each other, each in another communicator of one
// family. The two of a family play the part of a host's communicator and of an
// engine's.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <thread>

#include "core/comm/communicator.h"
#include "core/comm/host_waits.h"
#include "tests/core/comm/backends.h"
#include "tests/core/comm/duplicates.h"

namespace shard::testing::deadlock_test {
namespace {

// A call of the host: a barrier of one communicator.
Status Call(Communicator* comm, const char* name) {
  const HostCall::Scope call(&comm->host_waits()->call(), name);
  return comm->Barrier("meet", Soon());
}

class DeadlockTest : public ::testing::TestWithParam<Backend> {};

TEST_P(DeadlockTest, BothCallsAreNamedOnBothRanks) {
  RunFamily(GetParam(), 2, [](Handle host, Handle engine) {
    const Status status = host->rank() == 0 ? Call(host.get(), "sum")
                                            : Call(engine.get(), "step");
    EXPECT_EQ(status.code(), StatusCode::kDesync) << status.ToString();
    EXPECT_EQ(status.rank(), 1);
    EXPECT_EQ(status.message(),
              "the ranks wait for each other in different calls: rank 0 waits "
              "in sum (barrier 'meet'), rank 1 in step (barrier 'meet'); none "
              "of these calls can end: every rank must make the same calls in "
              "the same order");
  });
}

// A rank that comes late may be missing from the message.
TEST_P(DeadlockTest, ManyRanksGetBothNames) {
  RunFamily(GetParam(), 5, [](Handle host, Handle engine) {
    const Status status = host->rank() % 2 == 0 ? Call(host.get(), "sum")
                                                : Call(engine.get(), "step");
    EXPECT_EQ(status.code(), StatusCode::kDesync) << status.ToString();
    EXPECT_TRUE(Contains(status.message(), " in sum ("));
    EXPECT_TRUE(Contains(status.message(), " in step ("));
  });
}

TEST_P(DeadlockTest, ThreeRanksMayWaitInThreeCommunicators) {
  RunFamily(GetParam(), 3, [](Handle host, Handle engine) {
    const auto other = host->Duplicate("other engine", /*direct=*/true, Soon());
    ASSERT_TRUE(other.ok()) << other.status().ToString();
    Communicator* const comms[] = {host.get(), engine.get(), other->get()};
    const char* const names[] = {"sum", "step", "save"};
    const auto rank = static_cast<size_t>(host->rank());
    const Status status = Call(comms[rank], names[rank]);
    EXPECT_EQ(status.code(), StatusCode::kDesync) << status.ToString();
  });
}

// The host of rank 0 waits for work of the library, which waits for a call of
// rank 1, which waits for a call of rank 0.
TEST_P(DeadlockTest, AHostMayWaitForItsLibrary) {
  RunFamily(GetParam(), 2, [](Handle host, Handle engine) {
    if (host->rank() == 1) {
      const Status status = Call(host.get(), "sum");
      EXPECT_EQ(status.code(), StatusCode::kDesync) << status.ToString();
      return;
    }
    HostWaits& waits = *engine->host_waits();
    const HostCall::Scope call(&waits.call(), "acquire");
    const uint64_t number = waits.AddWork();
    std::thread library([&] {
      const Status status = engine->Barrier("meet", Soon());
      EXPECT_EQ(status.code(), StatusCode::kDesync) << status.ToString();
      EXPECT_TRUE(Contains(status.message(), "rank 0 waits in acquire ("));
      waits.FinishWork();
    });
    HostWaits::Scope waiting(&waits);
    waiting.Begin(number);
    library.join();
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, DeadlockTest,
                         ::testing::Values(Backend::kThreads, Backend::kShm,
                                           Backend::kHosts, Backend::kTcp),
                         [](const auto& info) {
                           return BackendName(info.param);
                         });

}  // namespace
}  // namespace shard::testing::deadlock_test
