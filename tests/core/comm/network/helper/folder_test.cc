// SPDX-License-Identifier: Apache-2.0
//
// Hosts that meet by a folder that they share.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "core/comm/network/helper/folder_point.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/comm/network/helper/hosts.h"

namespace shard::network::folder_test {
namespace {

using testing::NamesIn;
using testing::ReadText;
using testing::TempFolder;
using testing::WriteText;

MeetingOptions OptionsIn(const std::string& folder, int world_size,
                         double seconds) {
  MeetingOptions options = OptionsFor(0, world_size, 0, seconds);
  options.host.clear();
  options.folder = folder;
  options.local.address = "127.0.0.1";
  return options;
}

// The file of the meeting of MakeIdentity.
std::string FileIn(const TempFolder& folder) {
  const Identity identity = MakeIdentity();
  FolderPoint point(folder.path(), identity.job_id, identity.restart, true);
  EXPECT_OK(point.Claim(Loopback(1), "a"));
  const auto names = NamesIn(folder.path());
  EXPECT_EQ(names.size(), 1u);
  return folder / *names.begin();
}

TEST(FolderPointTest, TheFirstIsTheMaster) {
  const TempFolder folder;
  {
    FolderPoint first(folder.path(), "job", 3, true);
    ExpectError(first.Read().status(), StatusCode::kNotFound, {});
    EXPECT_OK(first.Claim(Loopback(4711), "node-1"));
    {
      FolderPoint second(folder.path(), "job", 3, true);
      ExpectError(second.Claim(Loopback(4712), "node-2"),
                  StatusCode::kAlreadyExists, {folder.path()});
      const auto address = second.Read();
      ASSERT_OK(address);
      EXPECT_EQ(address->ToString(), "127.0.0.1:4711");
      ExpectError(
          second.Stale("no answer"), StatusCode::kFailedPrecondition,
          {folder.path(), "host node-1", "no answer", "remove the file"});
      // Other jobs and other starts have other files.
      FolderPoint job(folder.path(), "job-2", 3, true);
      ExpectError(job.Read().status(), StatusCode::kNotFound, {});
      FolderPoint restart(folder.path(), "job", 4, true);
      ExpectError(restart.Read().status(), StatusCode::kNotFound, {});
    }
    EXPECT_OK(first.Read());
  }
  EXPECT_EQ(NamesIn(folder.path()).size(), 0u);
}

// A user has removed the file, and another job has made it again.
TEST(FolderPointTest, AnothersFileStays) {
  const TempFolder folder;
  const std::string path = FileIn(folder);
  const Identity identity = MakeIdentity();
  const std::string text = "libshard meeting 1\n10.0.0.2:1\nb\n";
  {
    FolderPoint point(folder.path(), identity.job_id, identity.restart, true);
    EXPECT_OK(point.Claim(Loopback(1), "a"));
    WriteText(path, text);
  }
  EXPECT_EQ(ReadText(path), text);
}

TEST(FolderPointTest, FilesOfAllKinds) {
  const TempFolder folder;
  const std::string path = FileIn(folder);
  const Identity identity = MakeIdentity();
  FolderPoint point(folder.path(), identity.job_id, identity.restart, true);
  const std::string whole = "libshard meeting 1\n[fd00::2]:4711\nnode-1\n";
  for (size_t size = 0; size < whole.size(); ++size) {
    WriteText(path, whole.substr(0, size));
    ExpectError(point.Read().status(), StatusCode::kFailedPrecondition,
                {path, "is no file of a meeting"});
  }
  WriteText(path, whole);
  const auto address = point.Read();
  ASSERT_OK(address);
  EXPECT_EQ(address->ToString(), "[fd00::2]:4711");
  for (const std::string& text : std::vector<std::string>{
           "x", "libshard meeting 2\n1.2.3.4:5\na\n",
           "libshard meeting 1\nnode:5\na\n", "libshard meeting 1\n\na\n",
           "libshard meeting 1\n1.2.3.4:99999\na\n", std::string(5000, 'x'),
           "libshard meeting 1\n" + std::string(5000, 'x')}) {
    WriteText(path, text);
    ExpectError(point.Read().status(), StatusCode::kFailedPrecondition,
                {path, "is no file of a meeting"});
  }
}

// Without a secret, a file that others may have written would lead the hosts to
// a master of theirs.
TEST(FolderPointTest, FilesThatOthersMayWriteNeedASecret) {
  const TempFolder folder;
  const std::string path = FileIn(folder);
  const Identity identity = MakeIdentity();
  WriteText(path, "libshard meeting 1\n10.0.0.2:1\nb\n");
  for (const bool has_secret : {false, true}) {
    FolderPoint point(folder.path(), identity.job_id, identity.restart,
                      has_secret);
    for (const mode_t mode : {0600, 0644, 0620, 0602}) {
      ASSERT_EQ(::chmod(path.c_str(), mode), 0);
      SCOPED_TRACE(mode);
      if (has_secret || (mode & 022) == 0) {
        EXPECT_OK(point.Read());
      } else {
        ExpectError(point.Read().status(), StatusCode::kPermissionDenied,
                    {path, "SHARD_TOKEN"});
      }
    }
    const std::string other = folder / "elsewhere";
    std::filesystem::rename(path, other);
    std::filesystem::create_symlink(other, path);
    EXPECT_FALSE(point.Read().ok());
    std::filesystem::rename(other, path);
  }
}

TEST(FolderMeetingTest, HostsMeet) {
  const TempFolder folder;
  for (const size_t hosts : {1, 2, 4, 8}) {
    SCOPED_TRACE(hosts);
    std::vector<Plan> plans(hosts);
    for (size_t i = 0; i < hosts; ++i) {
      plans[i].ranks = {static_cast<int>(2 * i), static_cast<int>(2 * i + 1)};
    }
    const auto outcomes = RunHosts(
        plans, OptionsIn(folder.path(), static_cast<int>(2 * hosts), 30),
        /*first_is_master=*/false);
    int masters = 0;
    for (const Outcome& outcome : outcomes) {
      ASSERT_TRUE(outcome.status && outcome.status->ok())
          << outcome.status->ToString();
      EXPECT_EQ(outcome.hosts.size(), hosts);
      masters += outcome.was_master;
    }
    EXPECT_EQ(masters, 1);
    // Nothing is left for the next job.
    EXPECT_EQ(NamesIn(folder.path()).size(), 0u);
  }
}

TEST(FolderMeetingTest, MissingRanksAreNamed) {
  const TempFolder folder;
  ExpectSameError(
      RunHosts({{{0}}, {{2}}}, OptionsIn(folder.path(), 3, 1)),
      StatusCode::kDeadlineExceeded, 1,
      {"1 of 3 ranks did not come to file:" + folder.path(), "missing [1]"});
  EXPECT_EQ(NamesIn(folder.path()).size(), 0u);
}

// The master of an earlier run was killed.
TEST(FolderMeetingTest, AFileThatIsLeftIsNamed) {
  const TempFolder folder;
  const std::string path = FileIn(folder);
  WriteText(path,
            StrCat("libshard meeting 1\n127.0.0.1:", FreePort(), "\nnode-9\n"));
  const auto outcomes = RunHosts({{{0}}, {{1}}}, OptionsIn(folder.path(), 2, 4),
                                 /*first_is_master=*/false);
  for (const Outcome& outcome : outcomes) {
    ASSERT_TRUE(outcome.status);
    ExpectError(*outcome.status, StatusCode::kFailedPrecondition,
                {path, "left from a job that is gone", "host node-9",
                 "remove the file"});
    EXPECT_LT(outcome.seconds, 3.5);  // Before the deadline.
  }
  // Another start of the job does not mind.
  MeetingOptions next = OptionsIn(folder.path(), 2, 30);
  ++next.identity.restart;
  for (const Outcome& outcome : RunHosts({{{0}}, {{1}}}, next, false)) {
    EXPECT_OK(*outcome.status);
  }
  EXPECT_EQ(NamesIn(folder.path()).size(), 1u);
}

// The file is removed while hosts try it: one of them becomes the master.
TEST(FolderMeetingTest, AFileThatIsRemovedIsForgotten) {
  const TempFolder folder;
  const std::string path = FileIn(folder);
  WriteText(path,
            StrCat("libshard meeting 1\n127.0.0.1:", FreePort(), "\nnode-9\n"));
  int rounds = 0;
  const auto removes = [&](Meeting*) {
    if (++rounds == 3) std::filesystem::remove(path);
    return false;
  };
  for (const Outcome& outcome :
       RunHosts({{.ranks = {0}, .leaves = removes}, {{1}}},
                OptionsIn(folder.path(), 2, 30), false)) {
    ASSERT_TRUE(outcome.status && outcome.status->ok())
        << outcome.status->ToString();
  }
}

TEST(FolderMeetingTest, FoldersThatCannotBeUsed) {
  const TempFolder folder;
  WriteText(folder / "file", "");
  for (const std::string& path : {folder / "none", folder / "file"}) {
    const auto outcomes = RunHosts({{{0}}}, OptionsIn(path, 1, 30));
    ASSERT_TRUE(outcomes[0].status);
    EXPECT_FALSE(outcomes[0].status->ok());
    EXPECT_NE(outcomes[0].status->message().find(path), std::string::npos)
        << outcomes[0].status->ToString();
    EXPECT_LT(outcomes[0].seconds, 10);
  }
  const TempFolder unfinished;
  const std::string path = FileIn(unfinished);
  WriteText(path, "libshard");
  const auto outcomes = RunHosts({{{0}}}, OptionsIn(unfinished.path(), 1, 30));
  ExpectError(*outcomes[0].status, StatusCode::kFailedPrecondition,
              {path, "is no file of a meeting"});
  EXPECT_LT(outcomes[0].seconds, 10);
}

TEST(FolderMeetingTest, ThisHostAloneNeedsNoSecret) {
  const TempFolder folder;
  MeetingOptions options = OptionsIn(folder.path(), 1, 30);
  options.identity = MakeIdentity("");
  const auto outcomes = RunHosts({{{0}}}, options);
  EXPECT_OK(*outcomes[0].status);
}

}  // namespace
}  // namespace shard::network::folder_test
