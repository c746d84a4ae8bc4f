// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "tests/sdk/cli/checkpoint_testing.h"

namespace shardctl_testing::doctor_test {
namespace {

using Json = nlohmann::json;

Json Find(const Json& json, const std::string& section,
          const std::string& name) {
  for (const Json& finding : json["findings"]) {
    if (finding["section"] == section && finding["name"] == name) {
      return finding;
    }
  }
  ADD_FAILURE() << section << ": " << name;
  return Json();
}

TEST(DoctorTest, LooksAtEverything) {
  const Folder folder;
  const Result result = RunShardctl({"doctor", folder / "", "--json"});
  EXPECT_EQ(result.code, 0) << result.error;
  const Json json = ParseJson(result);
  EXPECT_EQ(Find(json, "library", "version")["level"], "ok");
  EXPECT_EQ(Find(json, "library", "abi")["found"],
            "libshard.so." + std::to_string(shard_abi_version()));
  Find(json, "cpu", "simd");
  Find(json, "cpu", "cores");
  Find(json, "memory", "available");
  Find(json, "memory", "huge pages");
  Find(json, "limits", "open files");
  EXPECT_EQ(Find(json, "backends", "threads")["level"], "ok");
  // The tests of ranks need both backends, so this machine has them.
  EXPECT_EQ(Find(json, "backends", "shm: memfd")["level"], "ok");
  EXPECT_EQ(Find(json, "backends", "shm: pidfd")["level"], "ok");
  Find(json, "backends", "blas");
  Find(json, "gpus", "driver");
  const std::string section = "folder " + (folder / "");
  EXPECT_EQ(Find(json, section, "writable")["level"], "ok");
  Find(json, section, "file system");
  Find(json, section, "free");
  Find(json, section, "O_DIRECT");
  Find(json, section, "fsync");
  size_t warnings = 0;
  for (const Json& finding : json["findings"]) {
    EXPECT_NE(finding["found"], "");
    const bool warns = finding["level"] == "warn";
    // Warnings have a remedy, and other findings have none.
    EXPECT_EQ(finding["remedy"] != "", warns) << finding;
    warnings += warns ? 1 : 0;
  }
  EXPECT_EQ(json["warnings"], warnings);
  EXPECT_TRUE(std::filesystem::is_empty(folder / ""));
}

TEST(DoctorTest, WarnsOfAFolderThatIsNotThere) {
  const Result result = RunShardctl({"doctor", "/no/such/folder", "--strict"});
  EXPECT_EQ(result.code, 1);
  EXPECT_TRUE(Has(result.out,
                  "folder /no/such/folder\n"
                  "  warn  file system: No such file or directory\n"
                  "        remedy: give a folder that exists\n"))
      << result.out;
  EXPECT_EQ(RunShardctl({"doctor", "/no/such/folder"}).code, 0);
}

TEST(DoctorTest, LeavesTheFilesOfJobsAlone) {
  const Folder folder;
  ASSERT_EQ(::setenv("SHARD_DUMP", (folder / "dump.json").c_str(), 1), 0);
  const Result result = RunShardctl({"doctor"});
  ::unsetenv("SHARD_DUMP");
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_TRUE(std::filesystem::is_empty(folder / ""));
}

TEST(DoctorTest, WarnsOfABlasThatDoesNotLoad) {
  ASSERT_EQ(::setenv("SHARD_BLAS_LIBRARY", "/no/such.so", 1), 0);
  const Result result = RunShardctl({"doctor", "--json"});
  ::unsetenv("SHARD_BLAS_LIBRARY");
  const Json blas = Find(ParseJson(result), "backends", "blas");
  EXPECT_EQ(blas["level"], "warn");
  EXPECT_EQ(blas["found"],
            "SHARD_BLAS_LIBRARY names /no/such.so, which does not load");
}

}  // namespace
}  // namespace shardctl_testing::doctor_test
