// SPDX-License-Identifier: Apache-2.0

#include "core/observe/file_claim.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "tests/core/base/expect_status.h"
#include "tests/core/base/in_child.h"
#include "tests/core/base/temp_folder.h"

namespace shard::file_claim_test {
namespace {

using testing::NamesIn;
using testing::TempFolder;

class FileClaimTest : public ::testing::Test {
 protected:
  StatusOr<ClaimedFile> Claim() const { return ClaimFile("the trace", path_); }

  const TempFolder folder_;
  const std::string path_ = folder_ / "trace.json";
};

TEST_F(FileClaimTest, TheNumberStandsBeforeTheExtension) {
  EXPECT_EQ(NumberedPath("/run.d/trace.json", 1), "/run.d/trace.json");
  EXPECT_EQ(NumberedPath("/run.d/trace.json", 2), "/run.d/trace.2.json");
  EXPECT_EQ(NumberedPath("/run.d/trace", 3), "/run.d/trace.3");
  EXPECT_EQ(NumberedPath(".json", 2), ".json.2");
  EXPECT_EQ(NumberedPath("a/.json", 2), "a/.json.2");
}

TEST_F(FileClaimTest, EachClaimHasTheFirstFileThatNobodyHas) {
  const auto first = Claim();
  ASSERT_OK(first);
  EXPECT_EQ(first->path, path_);
  {
    const auto second = Claim();
    ASSERT_OK(second);
    EXPECT_EQ(second->path, folder_ / "trace.2.json");
    EXPECT_EQ(Claim()->number, 3);
  }
  EXPECT_EQ(Claim()->number, 2);
}

// However it ends: nothing has to be cleaned up.
TEST_F(FileClaimTest, AClaimEndsWithItsProcess) {
  testing::InChild([&] {
    const auto claimed = Claim();
    ASSERT_OK(claimed);
    testing::InChild([&] { EXPECT_EQ(Claim()->number, 2); });
    // Without destructors, as a process that is killed.
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  });
  EXPECT_EQ(Claim()->number, 1);
}

// The ranks of a run share a file, which is theirs until the last one ends.
TEST_F(FileClaimTest, AFileInUseIsNotClaimed) {
  Fd users[2];
  for (Fd& user : users) {
    auto opened = OpenRegularFile("the trace", path_);
    ASSERT_OK(opened);
    user = *std::move(opened);
    EXPECT_EQ(SetLock(user.get(), FileLock::kClaim, F_RDLCK),
              LockResult::kLocked);
  }
  EXPECT_EQ(Claim()->number, 2);
  users[0].Reset();
  EXPECT_EQ(Claim()->number, 2);
  users[1].Reset();
  EXPECT_EQ(Claim()->number, 1);
}

// A rank that writes holds no claim back, and a claim holds no writer back.
TEST_F(FileClaimTest, TheLocksOfAFileAreApart) {
  const auto writer = OpenRegularFile("the trace", path_);
  ASSERT_OK(writer);
  EXPECT_EQ(SetLock(writer->get(), FileLock::kWriting, F_WRLCK),
            LockResult::kLocked);
  EXPECT_EQ(Claim()->number, 1);
}

TEST_F(FileClaimTest, APathIsSeenFromTheRoot) {
  EXPECT_EQ(FromRoot("/run.d/m.prom"), "/run.d/m.prom");
  testing::InChild([&] {
    ASSERT_EQ(::chdir(folder_.path().c_str()), 0);
    const std::string path = FromRoot("m.prom");
    ASSERT_EQ(::chdir("/"), 0);
    EXPECT_OK(OpenRegularFile("the metrics", path));
  });
  EXPECT_EQ(NamesIn(folder_.path()).count("m.prom"), 1u);
}

TEST_F(FileClaimTest, PathsThatCannotBeFilesAreErrors) {
  const std::string fifo = folder_ / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  ExpectError(ClaimFile("the trace", fifo), StatusCode::kFailedPrecondition,
              {"the trace '" + fifo + "'", "not a regular file"});
  ExpectError(ClaimFile("the trace", folder_.path()),
              StatusCode::kFailedPrecondition, {folder_.path()});
  ExpectError(ClaimFile("the trace", folder_ / "no/trace"),
              StatusCode::kNotFound, {"no/trace"});
}

}  // namespace
}  // namespace shard::file_claim_test
