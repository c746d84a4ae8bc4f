// SPDX-License-Identifier: Apache-2.0
//
// The log of the end of a group on one rank: once, with the reason that came
// first, also where the thread that found it leaves the log to others.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/comm/communicator.h"
#include "core/comm/notices.h"
#include "core/observe/logger.h"
#include "tests/core/comm/backends.h"

namespace shard::testing::end_log_test {
namespace {

constexpr std::string_view kEnd = "the group ends here: ";

// The ends that a host's log function was told of.
class EndLogTest : public ::testing::Test {
 protected:
  std::shared_ptr<Communicator> Open() {
    CommOptions options{.rank = 0, .world_size = 1};
    options.logger = Logger(Add, LogLevel::kInfo, &ends_);
    auto comm = OpenCommunicator("local:", options);
    EXPECT_TRUE(comm.ok()) << comm.status().ToString();
    return *std::move(comm);
  }

  using Ends = std::vector<std::string>;
  Ends ends_;

 private:
  static void Add(int32_t, const char* message, void* ends) {
    const std::string_view text = message;
    if (!text.starts_with(kEnd)) return;
    static_cast<Ends*>(ends)->emplace_back(text.substr(kEnd.size()));
  }
};

TEST_F(EndLogTest, ACallLogsTheReasonThatWasKept) {
  const auto comm = Open();
  comm->AbortUnlogged(Cancelled("first"));
  comm->AbortUnlogged(Cancelled("second"));
  EXPECT_EQ(ends_, Ends());
  comm->Abort(Cancelled("third"));
  EXPECT_EQ(ends_, Ends{"first"});
  comm->Abort(Cancelled("fourth"));
  EXPECT_EQ(ends_, Ends{"first"});
}

TEST_F(EndLogTest, TheLastHandleLogsTheReasonThatWasKept) {
  auto comm = Open();
  comm->AbortUnlogged(Cancelled("first"));
  EXPECT_EQ(ends_, Ends());
  comm.reset();
  EXPECT_EQ(ends_, Ends{"first"});
}

TEST_F(EndLogTest, AGroupThatGoesOnHasNoEnd) {
  auto comm = Open();
  SHARD_EXPECT_OK(comm->Barrier("test", Soon()));
  comm.reset();
  EXPECT_EQ(ends_, Ends());
}

TEST_F(EndLogTest, NoticesKeepTheReasonOfTheirGroup) {
  auto comm = Open();
  auto notices = comm->OpenNotices("test", 8, Soon());
  ASSERT_TRUE(notices.ok()) << notices.status().ToString();
  (*notices)->FailUnlogged(Cancelled("first"));
  EXPECT_FALSE(comm->Barrier("test", Soon()).ok());
  EXPECT_EQ(ends_, Ends());
  (*notices)->Fail(Cancelled("second"));
  EXPECT_EQ(ends_, Ends{"first"});
  comm.reset();
  EXPECT_EQ(ends_, Ends{"first"});
}

}  // namespace
}  // namespace shard::testing::end_log_test
