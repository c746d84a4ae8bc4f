// SPDX-License-Identifier: Apache-2.0
//
// `shardctl verify`, on damaged checkpoints.

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "tests/sdk/cli/checkpoint_testing.h"

namespace shardctl_testing::verify_test {
namespace {

using Json = nlohmann::json;
using VerifyTest = CheckpointTest;

std::string DataFile(const std::string& root, int file) {
  return root + "/step-000002/data-0000" + std::to_string(file) + ".bin";
}

// Changes one byte in the middle of a file.
void Damage(const std::string& path) {
  std::string bytes = ReadFile(path);
  ASSERT_GT(bytes.size(), 100u);
  bytes[100] = static_cast<char>(bytes[100] ^ 0x40);
  WriteFile(path, bytes);
}

TEST_F(VerifyTest, FindsWhatIsDamaged) {
  const Result fine = RunShardctl({"verify", root_});
  EXPECT_EQ(fine.code, 0) << fine.error;
  EXPECT_TRUE(Has(fine.out, "ok: " + root_));
  Damage(DataFile(root_, 0));
  Damage(DataFile(root_, 1));
  const Result result = RunShardctl({"verify", root_});
  EXPECT_EQ(result.code, 1);
  EXPECT_TRUE(Has(result.out, "data-00000.bin")) << result.out;
  EXPECT_TRUE(Has(result.out, "data-00001.bin")) << result.out;
  EXPECT_TRUE(Has(result.out, "load another checkpoint"));
  const Json json = RunJson({"verify", root_}, 1);
  EXPECT_EQ(json["ok"], false);
  EXPECT_GE(json["problems"].size(), 2u);
}

TEST_F(VerifyTest, ADamagedManifest) {
  Damage(root_ + "/step-000002/manifest.shard");
  const Json json = RunJson({"verify", root_ + "/step-000002"}, 1);
  EXPECT_EQ(json["problems"].size(), 1u);
  // Other commands fail on the checkpoint.
  EXPECT_EQ(RunShardctl({"inspect", root_ + "/step-000002"}).code, 3);
}

TEST_F(VerifyTest, ADataFileThatIsNoFile) {
  const std::string data = DataFile(root_, 1);
  ASSERT_EQ(::unlink(data.c_str()), 0);
  ASSERT_EQ(::mkfifo(data.c_str(), 0600), 0);
  const Json json = RunJson({"verify", root_}, 1);
  ASSERT_EQ(json["problems"].size(), 1u);
  EXPECT_TRUE(
      Has(json["problems"][0], "data-00001.bin' is not a regular file"));
}

TEST_F(VerifyTest, NothingIsAnError) {
  const Result result = RunShardctl({"verify", folder_ / "nothing"});
  EXPECT_EQ(result.code, 3);
  EXPECT_EQ(result.out, "");
  EXPECT_TRUE(Has(result.error, "shardctl: "));
}

TEST_F(VerifyTest, WrongUse) {
  EXPECT_EQ(RunShardctl({"verify", root_, "--threads", "0"}).code, 2);
}

}  // namespace
}  // namespace shardctl_testing::verify_test
