// SPDX-License-Identifier: Apache-2.0
//
// Tests the model of a power cut. The model must lose everything that a real
// cut may lose, or tests that use it prove nothing.

#include "tests/core/base/unsynced_env.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "core/base/file.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/temp_folder.h"

namespace shard::testing::unsynced_env_test {
namespace {

// Shows "folder" after a cut: every entry with its text, with "|" in between.
class UnsyncedEnvTest : public ::testing::Test {
 protected:
  UnsyncedEnvTest() {
    std::filesystem::create_directory(folder());
    WriteText(folder() + "/old", "old");
  }
  std::string folder() const { return temp_ / "folder"; }

  std::string After(const UnsyncedEnv& env, PowerCut cut, uint64_t seed = 0) {
    const std::string copy = temp_ / "copy";
    std::filesystem::remove_all(copy);
    env.AfterPowerCut(cut, seed, copy);
    std::string all;
    for (const std::string& name : NamesIn(copy)) {
      all +=
          (all.empty() ? "" : "|") + name + "=" + ReadText(copy + "/" + name);
    }
    return all;
  }

  // Returns the contents after random cuts with the seeds 0 to 63.
  std::set<std::string> Random(const UnsyncedEnv& env) {
    std::set<std::string> all;
    for (uint64_t seed = 0; seed < 64; ++seed) {
      all.insert(After(env, PowerCut::kRandom, seed));
    }
    return all;
  }

  TempFolder temp_;
};

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST_F(UnsyncedEnvTest, AFileIsDurableWhenItAndItsNameAre) {
  UnsyncedEnv env(folder());
  const auto directory = Directory::Open(&env, folder());
  ASSERT_OK(directory);
  auto file = File::Open(*directory, "new", File::Mode::kCreate);
  ASSERT_OK(file);
  ASSERT_OK(file->WriteExactly(0, BytesOf("abc")));
  const std::string zeros(3, '\0');
  EXPECT_EQ(After(env, PowerCut::kKept), "new=abc|old=old");
  EXPECT_EQ(After(env, PowerCut::kLost), "old=old");
  EXPECT_EQ(After(env, PowerCut::kEntriesLost), "old=old");
  EXPECT_EQ(After(env, PowerCut::kTruncated), "new=|old=old");
  EXPECT_EQ(After(env, PowerCut::kNamesKept), "new=" + zeros + "|old=old");
  EXPECT_EQ(Random(env), (std::set<std::string>{"old=old", "new=|old=old",
                                                "new=" + zeros + "|old=old",
                                                "new=abc|old=old"}));
  ASSERT_OK(file->Sync());
  EXPECT_EQ(After(env, PowerCut::kLost), "old=old");
  EXPECT_EQ(After(env, PowerCut::kTruncated), "new=abc|old=old");
  EXPECT_EQ(Random(env), (std::set<std::string>{"old=old", "new=abc|old=old"}));
  ASSERT_OK(directory->Sync());
  EXPECT_EQ(Random(env), (std::set<std::string>{"new=abc|old=old"}));
  EXPECT_EQ(After(env, PowerCut::kLost), "new=abc|old=old");

  // After another write, the bytes that were synced may be lost.
  ASSERT_OK(file->WriteExactly(0, BytesOf("xyz")));
  EXPECT_EQ(Random(env),
            (std::set<std::string>{"new=abc|old=old", "new=xyz|old=old"}));
}

TEST_F(UnsyncedEnvTest, RenamesAndDeletionsComeUndoneOneByOne) {
  WriteText(folder() + "/a", "a");
  UnsyncedEnv env(folder());
  const auto directory = Directory::Open(&env, folder());
  ASSERT_OK(directory);
  ASSERT_EQ(directory->Rename("a", "b", 0), 0);
  ASSERT_OK(directory->Unlink("old"));
  EXPECT_EQ(After(env, PowerCut::kLost), "a=a|old=old");
  EXPECT_EQ(After(env, PowerCut::kKept), "b=a");
  EXPECT_EQ(Random(env), (std::set<std::string>{"a=a|old=old", "a=a",
                                                "b=a|old=old", "b=a"}));
  ASSERT_OK(directory->Sync());
  EXPECT_EQ(Random(env), (std::set<std::string>{"b=a"}));
}

TEST_F(UnsyncedEnvTest, AnExchangeIsOneOperation) {
  WriteText(folder() + "/a", "a");
  UnsyncedEnv env(folder());
  const auto directory = Directory::Open(&env, folder());
  ASSERT_OK(directory);
  ASSERT_EQ(directory->Rename("a", "old", RENAME_EXCHANGE), 0);
  EXPECT_EQ(Random(env), (std::set<std::string>{"a=a|old=old", "a=old|old=a"}));
}

// Inode numbers are reused at once.
TEST_F(UnsyncedEnvTest, ADeletedFileIsNotTheNextOne) {
  UnsyncedEnv env(folder());
  const auto directory = Directory::Open(&env, folder());
  ASSERT_OK(directory);
  ASSERT_OK(directory->Unlink("old"));
  auto file = File::Open(*directory, "new", File::Mode::kCreate);
  ASSERT_OK(file);
  ASSERT_OK(file->WriteExactly(0, BytesOf("new")));
  ASSERT_OK(file->Sync());
  EXPECT_EQ(After(env, PowerCut::kLost), "old=old");
  EXPECT_EQ(After(env, PowerCut::kKept), "new=new");
}

TEST_F(UnsyncedEnvTest, TheHookRunsBeforeEachChange) {
  UnsyncedEnv env(folder());
  std::vector<std::string> seen;
  env.AtEachCall([&] { seen.push_back(After(env, PowerCut::kKept)); });
  const auto directory = Directory::Open(&env, folder());
  ASSERT_OK(directory);
  auto file = File::Open(*directory, "new", File::Mode::kCreate);
  ASSERT_OK(file);
  ASSERT_OK(file->WriteExactly(0, BytesOf("x")));
  ASSERT_OK(file->Sync());
  EXPECT_EQ(seen, (std::vector<std::string>{"old=old", "new=|old=old",
                                            "new=x|old=old"}));
}

}  // namespace
}  // namespace shard::testing::unsynced_env_test
