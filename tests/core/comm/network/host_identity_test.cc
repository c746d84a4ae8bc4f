// SPDX-License-Identifier: Apache-2.0
//
// Real ranks and helpers that do not belong together: two with one rank, hosts
// with another version of the helper, and a folder in which a job has died. All
// ranks get an error that says so, long before the time to meet is over.

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "tests/core/base/comes_true.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/comm/network/namespace_hosts.h"
#include "tests/namespaces/namespaces.h"
#include "tests/ranks/ranks.h"

namespace shard::testing::host_identity_test {
namespace {

// Of the meeting: no test waits for it.
constexpr double kMeetSeconds = 40;

std::string Url() {
  return StrCat("tcp://", Namespaces::Address(0),
                ":7077?trust=network&meet=", kMeetSeconds);
}

// A process of a job: where it is, and which rank it says it is.
struct Place {
  int host;
  int rank;
};

class HostIdentityTest : public NamespaceHostsTest {
 protected:
  using Body = std::function<void(int process, const Status&)>;

  // Opens a communicator in each process, and passes what came out to `body`.
  // `prepare` runs in each process before.
  void Meet(const std::vector<Place>& places, int world_size,
            const std::string& url, const Body& body,
            const std::function<void(int process)>& prepare = nullptr) {
    const auto count = static_cast<int>(places.size());
    ExpectAllPassed(RunRanks(count, [&](const Rank& process) {
      const int me = process.rank();
      const Place& place = places[static_cast<size_t>(me)];
      ASSERT_OK(hosts_->Enter(place.host));
      if (prepare) prepare(me);
      const auto begin = Deadline::Clock::now();
      const auto comm =
          OpenCommunicator(url, {.rank = place.rank, .world_size = world_size});
      const std::chrono::duration<double> took = Deadline::Clock::now() - begin;
      EXPECT_LT(took.count(), kMeetSeconds / 2);
      body(me, comm.status());
      if (comm.ok()) EXPECT_OK((*comm)->Shutdown(Deadline::After(20)));
    }));
  }

  void ExpectNothingLeftAnywhere(int hosts) const {
    for (int host = 0; host < hosts; ++host) ExpectNothingLeft(host);
  }
};

TEST_F(HostIdentityTest, TwoProcessesOfAHostHaveOneRank) {
  MakeHosts(2);
  // Rank 2 does not come: the meeting cannot end by itself.
  Meet({{0, 0}, {1, 1}, {1, 1}}, 3, Url(), [](int, const Status& status) {
    ExpectError(status, StatusCode::kAlreadyExists,
                {"two processes say they are rank 1"});
    EXPECT_EQ(status.rank(), 1) << status.ToString();
  });
  ExpectNothingLeftAnywhere(2);
}

TEST_F(HostIdentityTest, TwoHostsHaveOneRank) {
  MakeHosts(3);
  Meet({{0, 0}, {1, 1}, {2, 1}}, 3, Url(), [](int, const Status& status) {
    ExpectError(status, StatusCode::kAlreadyExists,
                {"the hosts", "have both rank 1",
                 "give each process a rank of its own"});
    EXPECT_EQ(status.rank(), 1) << status.ToString();
  });
  ExpectNothingLeftAnywhere(3);
}

TEST_F(HostIdentityTest, AHelperOfAnotherVersion) {
  MakeHosts(2);
  const std::string other = std::filesystem::canonical(
      "sdk/network/shard-network-of-another-version");
  for (const int odd : {0, 1}) {
    SCOPED_TRACE(odd);
    Meet(
        {{0, 0}, {1, 1}}, 2,
        // The master waits for its rank, until it hears of the refused host.
        StrCat("tcp://", Namespaces::Address(0), ":7077?trust=network&meet=4"),
        [&](int process, const Status& status) {
          if (process == 1) {
            ExpectError(status, StatusCode::kFailedPrecondition,
                        {"libshard", "0.0.9-other",
                         "all hosts must load the same libshard"});
          } else {
            EXPECT_FALSE(status.ok());
            ExpectError(status, status.code(), {"0.0.9-other"});
          }
        },
        [&](int process) {
          if (process == odd) {
            ::setenv("SHARD_NETWORK_HELPER", other.c_str(), 1);
          }
        });
    ExpectNothingLeftAnywhere(2);
  }
}

TEST_F(HostIdentityTest, AFolderInWhichAJobHasDied) {
  MakeHosts(2);
  const TempFolder folder;
  const std::string url =
      StrCat("file:", folder.path(),
             "?trust=network&interface=eth0&meet=", kMeetSeconds);
  const auto files = [&] {
    std::vector<std::filesystem::path> paths;
    for (const auto& entry :
         std::filesystem::directory_iterator(folder.path())) {
      paths.push_back(entry.path());
    }
    return paths;
  };
  // The helper of the first job is killed while it waits for rank 1.
  const auto results = RunRanks(2, [&](const Rank& process) {
    if (process.rank() == 1) {
      // It is written under another name first.
      ASSERT_TRUE(ComesTrue([&] {
        const auto written = files();
        return written.size() == 1 && written[0].extension() == ".meeting";
      }));
      const pid_t helper = HelperOn(*hosts_, 0);
      ASSERT_GT(helper, 0);
      ::kill(helper, SIGKILL);
      return;
    }
    ASSERT_OK(hosts_->Enter(0));
    const auto comm = OpenCommunicator(url, {.rank = 0, .world_size = 2});
    EXPECT_EQ(comm.status().code(), StatusCode::kRankLost)
        << comm.status().ToString();
  });
  ExpectAllPassed(results);
  ASSERT_EQ(files().size(), 1u);
  const std::vector<Place> places = {{0, 0}, {1, 1}};
  const std::string file = files()[0];
  Meet(places, 2, url, [&](int, const Status& status) {
    ExpectError(status, StatusCode::kFailedPrecondition,
                {file, "is left from a job that is gone", "remove the file"});
  });
  // The other remedies, and then that one.
  const auto met = [](int, const Status& status) { EXPECT_OK(status); };
  Meet(places, 2, StrCat(url, "&restart=1"), met);
  Meet(places, 2, StrCat(url, "&job=another"), met);
  EXPECT_EQ(files().size(), 1u) << "a job that has met leaves a file";
  std::filesystem::remove(file);
  Meet(places, 2, url, met);
  EXPECT_TRUE(files().empty());
  ExpectNothingLeftAnywhere(2);
}

}  // namespace
}  // namespace shard::testing::host_identity_test
