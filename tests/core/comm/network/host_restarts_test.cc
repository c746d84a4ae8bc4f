// SPDX-License-Identifier: Apache-2.0
//
// Communicators between hosts that are opened again and again in one process,
// as after each loss of a rank or of a helper.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/comm/network/namespace_hosts.h"
#include "tests/namespaces/namespaces.h"
#include "tests/ranks/ranks.h"

namespace shard::testing::host_restarts_test {
namespace {

constexpr int kRanks = 3;
// Where hosts begin, and their end.
const std::vector<int> kBegins = {0, 2, 3};
// In turn each rank is lost, and then the helper of a host.
constexpr int kLosses = kRanks + 1;
constexpr int kHelpersHost = 1;

class HostRestartsTest : public NamespaceHostsTest {
 protected:
  StatusOr<std::shared_ptr<Communicator>> Open(int rank, int start) const {
    return OpenCommunicator(
        StrCat("tcp://", Namespaces::Address(0),
               ":7077?trust=network&meet=20&restart=", start),
        {.rank = rank, .world_size = kRanks, .timeout = 20});
  }

  // Is a rank in a process of its own, which is killed once all have met.
  void DieAsRank(int rank, int start) const {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const auto comm = Open(rank, start);
      const bool met =
          comm.ok() && (*comm)->Barrier("meet", Deadline::After(20)).ok();
      ::kill(::getpid(), met ? SIGKILL : SIGTERM);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  }

  // Is a rank until another one, or its helper, is lost.
  void SurviveAsRank(int rank, int start, int loss) const {
    const auto comm = Open(rank, start);
    ASSERT_OK(comm);
    const bool is_helper = loss == kRanks;
    bool kills = is_helper && HostOf(kBegins, rank) == kHelpersHost;
    const Deadline deadline = Deadline::After(20);
    Status lost = (*comm)->Barrier("meet", deadline);
    for (; lost.ok(); lost = (*comm)->Barrier("meet", deadline)) {
      ASSERT_FALSE(deadline.Expired());
      if (!std::exchange(kills, false)) continue;
      // That of the start before may be about to end.
      for (const pid_t pid : hosts_->Processes(kHelpersHost)) {
        if (IsHelper(pid)) ::kill(pid, SIGKILL);
      }
    }
    EXPECT_EQ(lost.code(), StatusCode::kRankLost) << lost.ToString();
    EXPECT_EQ(lost.rank(), is_helper ? kBegins[kHelpersHost] : loss)
        << lost.ToString();
  }
};

TEST_F(HostRestartsTest, AProcessOpensOneAfterEachLoss) {
  constexpr int kStarts = kSanitized ? 20 : 100;
  MakeHosts(static_cast<int>(kBegins.size()) - 1);
  ExpectAllPassed(RunRanks(
      kRanks,
      [&](const Rank& rank) {
        const int me = rank.rank();
        ASSERT_OK(hosts_->Enter(HostOf(kBegins, me)));
        int files = 0;
        for (int start = 0; start < kStarts; ++start) {
          SCOPED_TRACE(start);
          const int loss = start % kLosses;
          if (loss == me) {
            DieAsRank(me, start);
          } else {
            SurviveAsRank(me, start, loss);
          }
          // The first start may open what is kept.
          if (start < kLosses) files = CountOpenFiles();
          EXPECT_EQ(CountOpenFiles(), files);
          if (::testing::Test::HasFailure()) return;
        }
      },
      300));
  for (size_t host = 0; host + 1 < kBegins.size(); ++host) {
    ExpectNothingLeft(static_cast<int>(host));
  }
}

}  // namespace
}  // namespace shard::testing::host_restarts_test
