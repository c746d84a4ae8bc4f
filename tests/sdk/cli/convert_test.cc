// SPDX-License-Identifier: Apache-2.0
//
// `shardctl reshard`, `merge` and `import`.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "tests/sdk/cli/checkpoint_testing.h"

namespace shardctl_testing::convert_test {
namespace {

using Json = nlohmann::json;
using ConvertTest = CheckpointTest;

TEST_F(ConvertTest, ReshardAndBack) {
  const std::string five = folder_ / "five";
  const std::string two = folder_ / "two";
  const Json json = RunJson({"reshard", root_, five, "--ranks", "5"});
  EXPECT_EQ(json["path"], five + "/step-000002");
  EXPECT_EQ(json["files"].size(), 5u);
  EXPECT_EQ(RunShardctl({"diff", root_, five}).code, 0);
  EXPECT_EQ(RunShardctl({"verify", five}).code, 0);
  EXPECT_EQ(RunShardctl({"reshard", five, two, "--ranks", "2"}).code, 0);
  EXPECT_EQ(RunShardctl({"diff", root_, two}).code, 0);
  // An existing checkpoint stays, unless --overwrite is given.
  const Result again = RunShardctl({"reshard", five, two, "--ranks", "3"});
  EXPECT_EQ(again.code, 3);
  EXPECT_EQ(RunJson({"inspect", two})["files"].size(), 2u);
  EXPECT_EQ(
      RunShardctl({"reshard", five, two, "--ranks", "3", "--overwrite"}).code,
      0);
  EXPECT_EQ(RunJson({"inspect", two})["files"].size(), 3u);
}

TEST_F(ConvertTest, MergeAndImport) {
  const std::string file = folder_ / "model.safetensors";
  const Result merged = RunShardctl({"merge", root_, file});
  EXPECT_EQ(merged.code, 0) << merged.error;
  EXPECT_TRUE(Has(merged.out, "wrote " + file + ": 6 tensors, ")) << merged.out;
  // The tied weight has one name fewer, which is no difference.
  const Json same = RunJson({"diff", root_, file, "--content", "model"});
  EXPECT_EQ(same["names_only_in_a"], Json({"head.weight"}));
  EXPECT_EQ(same["compared"]["tensors"], 6);
  // Only the checkpoint has states.
  EXPECT_EQ(RunJson({"diff", root_, file}, 1)["only_in_a"].size(), 10u);

  const std::string imported = folder_ / "imported";
  const Json json = RunJson({"import", file, imported, "--ranks", "3"});
  EXPECT_EQ(json["step"], 0);
  EXPECT_EQ(json["files"].size(), 3u);
  EXPECT_EQ(RunShardctl({"diff", imported, file}).code, 0);
  EXPECT_EQ(RunShardctl({"verify", imported}).code, 0);
}

TEST_F(ConvertTest, MergeReplacesNothingButFiles) {
  namespace fs = std::filesystem;
  const std::string file = folder_ / "model.safetensors";
  const std::string link = folder_ / "link.safetensors";
  WriteFile(file, "old");
  fs::create_symlink("model.safetensors", link);
  const Result linked = RunShardctl({"merge", root_, link, "--overwrite"});
  EXPECT_EQ(linked.code, 0) << linked.error;
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(RunShardctl({"diff", root_, file, "--content", "model"}).code, 0);

  const std::string fifo = folder_ / "fifo.safetensors";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const Result refused = RunShardctl({"merge", root_, fifo, "--overwrite"});
  EXPECT_EQ(refused.code, 3);
  EXPECT_TRUE(Has(refused.error, "is not a regular file")) << refused.error;
  EXPECT_TRUE(fs::is_fifo(fifo));
}

TEST_F(ConvertTest, MergeIntoSeveralFiles) {
  const std::string file = folder_ / "model.safetensors";
  const Json json = RunJson({"merge", root_, file, "--max-shard-size", "1KiB",
                             "--expand-aliases", "--content", "all"});
  EXPECT_EQ(json["path"], file + ".index.json");
  EXPECT_GE(json["files"].size(), 4u);
  EXPECT_EQ(RunShardctl({"diff", root_, file + ".index.json"}).code, 0);
  EXPECT_EQ(json["tensors"], 17);
}

// Writes a safetensors file of 512 MiB, which takes no room on the disk.
void WriteLargeFile(const std::string& path) {
  const std::string header =
      R"({"w":{"dtype":"F32","shape":[134217728],"data_offsets":[0,536870912]}})";
  const std::string size = {
      static_cast<char>(header.size()), 0, 0, 0, 0, 0, 0, 0};
  WriteFile(path, size + header);
  std::filesystem::resize_file(path, 8 + header.size() + (1 << 29));
}

// The files that a command was writing are deleted, and a shell sees the
// signal.
TEST_F(ConvertTest, CtrlCLeavesNoFiles) {
  namespace fs = std::filesystem;
  const std::string large = folder_ / "large.safetensors";
  WriteLargeFile(large);
  for (const std::string command : {"merge", "import"}) {
    for (const int signal : {SIGINT, SIGTERM}) {
      SCOPED_TRACE(command + ", signal " + std::to_string(signal));
      const std::string to = folder_ / "to";
      fs::create_directory(to);
      Shardctl shardctl(
          {command, large, command == "merge" ? to + "/m.safetensors" : to});
      const auto deadline = Clock::now() + std::chrono::seconds(kSeconds);
      while (fs::is_empty(to) && Clock::now() < deadline) continue;
      ASSERT_FALSE(fs::is_empty(to));
      shardctl.Kill(signal);
      const Result result = shardctl.Wait();
      EXPECT_EQ(result.code, 128 + signal) << result.out << result.error;
      EXPECT_TRUE(fs::is_empty(to)) << fs::directory_iterator(to)->path();
      fs::remove_all(to);
    }
  }
}

// Types that are not read keep their names and bytes on all ways.
TEST_F(ConvertTest, TypesThatAreNotRead) {
  const std::string file = folder_ / "complex.safetensors";
  WriteSafetensors(file, {{"known", {1}}, {"complex", {2, 3}}});
  std::string bytes = ReadFile(file);
  const std::string of_floats = R"("F32","shape":[2])";
  const size_t at = bytes.find(of_floats);
  ASSERT_NE(at, std::string::npos);
  WriteFile(file, bytes.replace(at, of_floats.size(), R"("C64","shape":[1])"));
  const std::string merged = folder_ / "merged.safetensors";
  ASSERT_EQ(RunShardctl({"merge", file, merged}).code, 0);

  const std::string imported = folder_ / "imported";
  const std::string two = folder_ / "two";
  const Json json = RunJson({"import", file, imported, "--ranks", "3"});
  EXPECT_EQ(json["version"], 3);
  ASSERT_EQ(RunShardctl({"reshard", imported, two, "--ranks", "2"}).code, 0);
  EXPECT_EQ(RunShardctl({"verify", two}).code, 0);
  const std::string back = folder_ / "back.safetensors";
  ASSERT_EQ(RunShardctl({"merge", two, back}).code, 0);
  EXPECT_EQ(ReadFile(back), ReadFile(merged));

  const Json tensor = RunJson({"inspect", two, "--tensor", "complex"});
  EXPECT_EQ(tensor["dtype"], "C64");
  EXPECT_EQ(tensor["shape"], Json({1}));
  EXPECT_EQ(tensor["bytes"], 8);
  EXPECT_EQ(tensor["slices"][0]["numel"], 8);
  EXPECT_TRUE(tensor["values"].is_null());
  const Result text = RunShardctl({"inspect", two});
  EXPECT_TRUE(Has(text.out, "param C64: 1 tensor, 1 elements, 8 B\n"))
      << text.out;
  const Json plan = RunJson({"plan", two, "--ranks", "2"});
  EXPECT_EQ(plan["model"]["params"], 1);
  EXPECT_EQ(plan["model"]["left_out"], 1);
  const std::string page = folder_ / "page.html";
  ASSERT_EQ(RunShardctl({"report", two, "-o", page}).code, 0);
  EXPECT_TRUE(Has(ReadFile(page), "param C64"));
  const Json diff = RunJson({"diff", two, back});
  EXPECT_EQ(diff["same"], true);
  EXPECT_EQ(diff["compared"]["tensors"], 2);
}

TEST_F(ConvertTest, OtherTypes) {
  const std::string file = folder_ / "model.safetensors";
  EXPECT_EQ(RunShardctl({"merge", root_, file, "--dtype", "bf16"}).code, 0);
  const Json json = RunJson({"diff", root_, file, "--content", "model"}, 1);
  EXPECT_EQ(json["dtypes"].size(), 6u);
  EXPECT_EQ(json["dtypes"][0]["b"], "bf16");
  // bf16 has 8 bits of mantissa, the hidden one included.
  EXPECT_EQ(RunShardctl({"diff", root_, file, "--content", "model",
                         "--ignore-dtypes", "--relative", "0.004"})
                .code,
            0);
}

TEST_F(ConvertTest, WrongUse) {
  EXPECT_EQ(RunShardctl({"reshard", root_, folder_ / "x"}).code, 2);
  const Result size = RunShardctl(
      {"merge", root_, folder_ / "m.safetensors", "--max-shard-size", "big"});
  EXPECT_EQ(size.code, 3);
  EXPECT_TRUE(Has(size.error, "'big' is no number of bytes"));
}

}  // namespace
}  // namespace shardctl_testing::convert_test
