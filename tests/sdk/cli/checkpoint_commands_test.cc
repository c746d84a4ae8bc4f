// SPDX-License-Identifier: Apache-2.0
//
// The commands of shardctl that read and write checkpoints, on files that
// engines have saved and on files that somebody else has written.

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/sdk/cli/checkpoint_testing.h"

namespace shardctl_testing::checkpoint_commands_test {
namespace {

using Json = nlohmann::json;

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

class CheckpointCommandsTest : public ::testing::Test {
 protected:
  void SetUp() override { SaveCheckpoint(root_, 2, 2); }

  Json RunJson(std::vector<std::string> arguments, int code = 0) {
    arguments.push_back("--json");
    const Result result = RunShardctl(arguments);
    EXPECT_EQ(result.code, code) << result.error;
    EXPECT_EQ(result.error, "");
    return ParseJson(result);
  }

  Folder folder_;
  const std::string root_ = folder_ / "ckpt";
};

// ---- inspect

TEST_F(CheckpointCommandsTest, InspectAsJson) {
  const Json json = RunJson({"inspect", root_});
  EXPECT_EQ(json["path"], root_ + "/step-000002");
  EXPECT_EQ(json["format"], "checkpoint");
  EXPECT_EQ(json["step"], 2);
  EXPECT_EQ(json["world_size"], 2);
  EXPECT_EQ(json["id"].get<std::string>().size(), 32u);
  EXPECT_EQ(json["files"].size(), 2u);
  EXPECT_EQ(json["files"][1]["name"], "data-00001.bin");
  EXPECT_EQ(json["groups"].size(), 2u);
  EXPECT_EQ(json["blobs"].size(), 2u);
  EXPECT_EQ(json["blobs"][0]["rule"], "per_rank");
  // Five that are stepped with two states each, a frozen one, and an alias.
  EXPECT_EQ(json["totals"]["tensors"], 6 + 10);
  EXPECT_EQ(json["totals"]["aliases"], 1);
  EXPECT_EQ(json["totals"]["numel"], kElements + 2 * (kElements - 8));
  EXPECT_EQ(json["tensor_bytes"], json["totals"]["bytes"]);
  int checked = 0;
  for (const Json& tensor : json["tensors"]) {
    if (tensor["key"] == "head.weight") {
      EXPECT_EQ(tensor["alias_of"], "embed.weight");
      ++checked;
    } else if (tensor["key"] == "scale") {
      EXPECT_EQ(tensor["trainable"], false);
      ++checked;
    } else if (tensor["key"] == "block.1.bias") {
      EXPECT_EQ(tensor["group"], 1);
      EXPECT_EQ(tensor["step"], 2);
      EXPECT_EQ(tensor["shape"], Json({8}));
      EXPECT_EQ(tensor["dtype"], "f32");
      ++checked;
    } else if (tensor["key"] == "state.block.1.bias.exp_avg") {
      EXPECT_EQ(tensor["role"], "state");
      EXPECT_TRUE(tensor["trainable"].is_null());
      ++checked;
    }
  }
  EXPECT_EQ(checked, 4);
}

TEST_F(CheckpointCommandsTest, InspectAsText) {
  const Result result =
      RunShardctl({"inspect", root_, "--match", "block.0.*", "--role", "param",
                   "--match", "head*", "--sort", "key"});
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_TRUE(Has(result.out, "  step      2\n  saved by  2 ranks\n"));
  EXPECT_TRUE(Has(
      result.out,
      "\nkey             role   dtype  shape       bytes  of\n"
      "block.0.bias    param  f32    [8]          32 B  group 1\n"
      "block.0.weight  param  f32    [16, 8]     512 B\n"
      "head.weight     param  f32    [32, 8]  1.00 KiB  alias of embed.weight\n"
      "\nparam f32: 2 tensors, 136 elements, 544 B, and 1 alias\n"))
      << result.out;
  // No color where there is no terminal.
  EXPECT_FALSE(Has(result.out, "\x1b"));
}

TEST_F(CheckpointCommandsTest, InspectSorts) {
  const Json json = RunJson({"inspect", root_, "--sort", "bytes"});
  uint64_t last = UINT64_MAX;
  for (const Json& tensor : json["tensors"]) {
    EXPECT_LE(tensor["bytes"].get<uint64_t>(), last);
    last = tensor["bytes"].get<uint64_t>();
  }
}

TEST_F(CheckpointCommandsTest, InspectATensor) {
  const Json json = RunJson({"inspect", root_, "--tensor", "scale"});
  // Its id is 5: (0 .. 7 + 35) / 64.
  const Json& values = json["values"];
  EXPECT_EQ(values["min"], 35.0 / 64);
  EXPECT_EQ(values["max"], 42.0 / 64);
  EXPECT_DOUBLE_EQ(values["mean"], 38.5 / 64);
  EXPECT_EQ(values["nans"], 0);
  EXPECT_EQ(values["first"].size(), 8u);
  EXPECT_EQ(values["first"][1], 36.0 / 64);
  ASSERT_GE(json["slices"].size(), 1u);
  EXPECT_EQ(json["slices"][0]["checksum"].get<std::string>().size(), 32u);
  // An alias has the values of what it stands for.
  const Json alias = RunJson({"inspect", root_, "--tensor", "head.weight"});
  const Json base = RunJson({"inspect", root_, "--tensor", "embed.weight"});
  EXPECT_EQ(alias["values"], base["values"]);

  const Result text = RunShardctl({"inspect", root_, "--tensor", "scale"});
  EXPECT_TRUE(Has(text.out,
                  "scale\n  param, f32 [8], 8 elements, 32 B\n"
                  "  min 0.546875, max 0.65625, mean 0.601562, rms "))
      << text.out;
  const Result none = RunShardctl({"inspect", root_, "--tensor", "nothing"});
  EXPECT_EQ(none.code, 3);
  EXPECT_TRUE(Has(none.error, "has no tensor 'nothing'"));
}

TEST_F(CheckpointCommandsTest, ValuesThatAreNoNumbersAreCounted) {
  const std::string path = folder_ / "odd.safetensors";
  WriteSafetensors(path, {{"x", {NAN, INFINITY, 0, -2, 4, -INFINITY, NAN}}});
  const Json json = RunJson({"inspect", path, "--tensor", "x"});
  const Json& values = json["values"];
  EXPECT_EQ(values["nans"], 2);
  EXPECT_EQ(values["infinities"], 2);
  EXPECT_EQ(values["zeros"], 1);
  EXPECT_EQ(values["min"], -2);
  EXPECT_EQ(values["max"], 4);
  EXPECT_DOUBLE_EQ(values["mean"], 2.0 / 3);
  EXPECT_TRUE(json["slices"][0]["checksum"].is_null());
}

// ---- verify

TEST_F(CheckpointCommandsTest, VerifyFindsWhatIsDamaged) {
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

TEST_F(CheckpointCommandsTest, VerifyOfADamagedManifest) {
  Damage(root_ + "/step-000002/manifest.shard");
  const Json json = RunJson({"verify", root_ + "/step-000002"}, 1);
  EXPECT_EQ(json["problems"].size(), 1u);
  // Other commands cannot go on.
  EXPECT_EQ(RunShardctl({"inspect", root_ + "/step-000002"}).code, 3);
}

TEST_F(CheckpointCommandsTest, VerifyOfNothingIsAnError) {
  const Result result = RunShardctl({"verify", folder_ / "nothing"});
  EXPECT_EQ(result.code, 3);
  EXPECT_EQ(result.out, "");
  EXPECT_TRUE(Has(result.error, "shardctl: "));
}

// ---- diff

TEST_F(CheckpointCommandsTest, DiffOfTheSame) {
  const Json json = RunJson({"diff", root_, root_});
  EXPECT_EQ(json["same"], true);
  EXPECT_EQ(json["compared"]["tensors"], 16);
  EXPECT_TRUE(Has(RunShardctl({"diff", root_, root_}).out, "\nsame: compared"));
}

TEST_F(CheckpointCommandsTest, DiffOfTwoSteps) {
  const std::string other = folder_ / "other";
  SaveCheckpoint(other, 4, 3);
  const Json json = RunJson({"diff", root_, other}, 1);
  EXPECT_EQ(json["same"], false);
  EXPECT_EQ(json["only_in_a"], Json::array());
  EXPECT_EQ(json["training"][0],
            Json({{"name", "step"}, {"a", "2"}, {"b", "3"}}));
  // All but the frozen one.
  EXPECT_EQ(json["values"].size(), 15u);
  const Json& first = json["values"][0];
  EXPECT_GT(first["max_abs"], 0);
  EXPECT_EQ(first["differing"], first["numel"]);
  // A step of AdamW is about lr = 0.01.
  EXPECT_EQ(RunShardctl({"diff", root_, other, "--content", "model",
                         "--tolerance", "0.02"})
                .code,
            0);
  EXPECT_EQ(RunShardctl({"diff", root_, other, "--content", "model",
                         "--tolerance", "0.001"})
                .code,
            1);
  EXPECT_EQ(
      RunShardctl({"diff", root_, other, "--tensors-only", "--relative", "1"})
          .code,
      0);
}

TEST_F(CheckpointCommandsTest, TheSameOnAnotherNumberOfRanks) {
  const std::string other = folder_ / "other";
  SaveCheckpoint(other, 3, 2);
  const Json json = RunJson({"diff", root_, other});
  EXPECT_EQ(json["same"], true);
}

TEST_F(CheckpointCommandsTest, DiffOfWhatSomebodyWrote) {
  const std::string a = folder_ / "a.safetensors";
  const std::string b = folder_ / "b.safetensors";
  WriteSafetensors(a, {{"equal", {1, NAN, -0.0f, INFINITY}},
                       {"values", {1, 2, 3, 4, NAN}},
                       {"shape", {1, 2}},
                       {"mine", {1}}});
  WriteSafetensors(b, {{"equal", {1, -NAN, 0, INFINITY}},
                       {"values", {1, 2.5f, 3, -INFINITY, 5}},
                       {"shape", {1, 2, 3}},
                       {"yours", {1}}});
  const Json json = RunJson({"diff", a, b}, 1);
  EXPECT_EQ(json["only_in_a"], Json({"mine"}));
  EXPECT_EQ(json["only_in_b"], Json({"yours"}));
  ASSERT_EQ(json["shapes"].size(), 1u);
  EXPECT_EQ(json["shapes"][0]["a"], "[2]");
  ASSERT_EQ(json["values"].size(), 1u);
  const Json& values = json["values"][0];
  EXPECT_EQ(values["key"], "values");
  EXPECT_EQ(values["differing"], 3);
  EXPECT_EQ(values["nans"], 1);
  EXPECT_EQ(values["max_abs"], "inf");
  EXPECT_EQ(values["first"], Json({{"index", 1}, {"a", 2.0}, {"b", 2.5}}));
  // No tolerance makes a number of NaN, or an infinity of a number.
  const Json near = RunJson({"diff", a, b, "--tolerance", "1e300"}, 1);
  EXPECT_EQ(near["values"][0]["differing"], 2);
  const Result text = RunShardctl({"diff", a, b});
  EXPECT_TRUE(Has(text.out, "only in a:\n  mine\n")) << text.out;
  EXPECT_TRUE(Has(text.out, "different: compared 2 tensors"));
}

// ---- reshard, merge, import

TEST_F(CheckpointCommandsTest, ReshardAndBack) {
  const std::string five = folder_ / "five";
  const std::string two = folder_ / "two";
  const Json json = RunJson({"reshard", root_, five, "--ranks", "5"});
  EXPECT_EQ(json["path"], five + "/step-000002");
  EXPECT_EQ(json["files"].size(), 5u);
  EXPECT_EQ(RunShardctl({"diff", root_, five}).code, 0);
  EXPECT_EQ(RunShardctl({"verify", five}).code, 0);
  EXPECT_EQ(RunShardctl({"reshard", five, two, "--ranks", "2"}).code, 0);
  EXPECT_EQ(RunShardctl({"diff", root_, two}).code, 0);
  // What is there stays, unless it is said otherwise.
  const Result again = RunShardctl({"reshard", five, two, "--ranks", "3"});
  EXPECT_EQ(again.code, 3);
  EXPECT_EQ(RunJson({"inspect", two})["files"].size(), 2u);
  EXPECT_EQ(
      RunShardctl({"reshard", five, two, "--ranks", "3", "--overwrite"}).code,
      0);
  EXPECT_EQ(RunJson({"inspect", two})["files"].size(), 3u);
}

TEST_F(CheckpointCommandsTest, MergeAndImport) {
  const std::string file = folder_ / "model.safetensors";
  const Result merged = RunShardctl({"merge", root_, file});
  EXPECT_EQ(merged.code, 0) << merged.error;
  EXPECT_TRUE(Has(merged.out, "wrote " + file + ": 6 tensors, ")) << merged.out;
  // The tied weight has one name fewer, which is no difference.
  const Json same = RunJson({"diff", root_, file, "--content", "model"});
  EXPECT_EQ(same["names_only_in_a"], Json({"head.weight"}));
  EXPECT_EQ(same["compared"]["tensors"], 6);
  // States are in the checkpoint only.
  EXPECT_EQ(RunJson({"diff", root_, file}, 1)["only_in_a"].size(), 10u);

  const std::string imported = folder_ / "imported";
  const Json json = RunJson({"import", file, imported, "--ranks", "3"});
  EXPECT_EQ(json["step"], 0);
  EXPECT_EQ(json["files"].size(), 3u);
  EXPECT_EQ(RunShardctl({"diff", imported, file}).code, 0);
  EXPECT_EQ(RunShardctl({"verify", imported}).code, 0);
}

TEST_F(CheckpointCommandsTest, MergeReplacesNothingButFiles) {
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

TEST_F(CheckpointCommandsTest, MergeIntoSeveralFiles) {
  const std::string file = folder_ / "model.safetensors";
  const Json json = RunJson({"merge", root_, file, "--max-shard-size", "1KiB",
                             "--expand-aliases", "--content", "all"});
  EXPECT_EQ(json["path"], file + ".index.json");
  EXPECT_GE(json["files"].size(), 4u);
  EXPECT_EQ(RunShardctl({"diff", root_, file + ".index.json"}).code, 0);
  EXPECT_EQ(json["tensors"], 17);
}

TEST_F(CheckpointCommandsTest, OtherTypes) {
  const std::string file = folder_ / "model.safetensors";
  EXPECT_EQ(RunShardctl({"merge", root_, file, "--dtype", "bf16"}).code, 0);
  const Json json = RunJson({"diff", root_, file, "--content", "model"}, 1);
  EXPECT_EQ(json["dtypes"].size(), 6u);
  EXPECT_EQ(json["dtypes"][0]["b"], "bf16");
  // bf16 has 8 bits of mantissa.
  EXPECT_EQ(RunShardctl({"diff", root_, file, "--content", "model",
                         "--ignore-dtypes", "--relative", "0.004"})
                .code,
            0);
}

// ---- report

TEST_F(CheckpointCommandsTest, ReportSaysWhatItCounted) {
  const std::string page = folder_ / "report.html";
  const Json json = RunJson({"report", root_, "-o", page});
  EXPECT_EQ(json["files"], 2);
  EXPECT_GE(json["imbalance"], 1);
  const std::string html = ReadFile(page);
  EXPECT_EQ(html.size(), json["page_bytes"]);
  EXPECT_TRUE(Has(html, "Checkpoint of step 2"));
  EXPECT_TRUE(Has(html, "state.embed.weight.exp_avg"));
  // No draft is left behind.
  EXPECT_FALSE(
      Has(RunShardctl({"run", "-n1", "ls", folder_ / ""}).out, "part"));
}

// Every command that writes says so in the same words.
TEST_F(CheckpointCommandsTest, FoldersThatCannotBeWritten) {
  namespace fs = std::filesystem;
  const std::string safetensors = folder_ / "in.safetensors";
  ASSERT_EQ(RunShardctl({"merge", root_, safetensors}).code, 0);
  const std::string file = folder_ / "file";
  WriteFile(file, "text");
  const std::string forbidden = folder_ / "forbidden";
  fs::create_directory(forbidden);
  fs::permissions(forbidden, fs::perms::owner_read | fs::perms::owner_exec);
  // Root may write to every folder, unless a program that it starts does not
  // get that right.
  const bool may_be_denied =
      ::geteuid() != 0 ||
      ::prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0) == 0;
  if (!may_be_denied)
    std::printf("root's rights cannot be dropped: no EACCES\n");

  const auto try_all = [&](const std::string& below,
                           const std::string& reason) {
    const std::string to = below + "/x.safetensors";
    for (const std::vector<std::string>& command :
         std::vector<std::vector<std::string>>{
             {"report", root_, "-o", to},
             {"merge", root_, to},
             {"reshard", root_, to, "-n", "1"},
             {"import", safetensors, to}}) {
      const Result result = RunShardctl(command);
      EXPECT_EQ(result.code, 3) << command[0];
      EXPECT_TRUE(Has(result.error, "cannot write '" + to + "': " + reason))
          << result.error;
    }
  };
  const std::string missing = folder_ / "no/such";
  try_all(missing, "the folder '" + missing +
                       "' does not exist; make it, or name another path");
  try_all(file, "'" + file + "' is not a folder; name another path");
  if (may_be_denied) {
    try_all(forbidden,
            "the folder '" + forbidden +
                "': Permission denied; name a place that you may write to");
  }
  EXPECT_EQ(ReadFile(file), "text");
  EXPECT_TRUE(fs::is_empty(forbidden));
}

// What is no file stays what it is, and is written to.
TEST_F(CheckpointCommandsTest, ReportGoesWhereItIsTold) {
  namespace fs = std::filesystem;
  const std::string page = folder_ / "report.html";
  ASSERT_EQ(RunShardctl({"report", root_, "-o", page}).code, 0);
  const std::string html = ReadFile(page);

  const auto report = [&](const std::string& path) {
    return RunShardctl({"report", root_, "-o", path});
  };
  // A link stays a link, and its file keeps its permissions.
  fs::permissions(page, fs::perms::owner_read | fs::perms::owner_write);
  WriteFile(page, "old");
  const std::string link = folder_ / "link.html";
  fs::create_symlink("report.html", link);
  EXPECT_EQ(report(link).code, 0);
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_FALSE(fs::is_symlink(page));
  EXPECT_EQ(ReadFile(page), html);
  EXPECT_EQ(fs::status(page).permissions(),
            fs::perms::owner_read | fs::perms::owner_write);

  // By a link, so that a mistake costs no device.
  const std::string full = folder_ / "full";
  fs::create_symlink("/dev/full", full);
  const Result no_space = report(full);
  EXPECT_EQ(no_space.code, 3);
  EXPECT_TRUE(Has(no_space.error,
                  "cannot write '" + full +
                      "': No space left on device; free space, or name another "
                      "place"))
      << no_space.error;
  EXPECT_TRUE(fs::is_symlink(full));
  EXPECT_TRUE(fs::is_character_file(full));
  const std::string null = folder_ / "null";
  fs::create_symlink("/dev/null", null);
  EXPECT_EQ(report(null).code, 0);
  EXPECT_TRUE(fs::is_character_file(null));

  const std::string fifo = folder_ / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const Result through =
      RunShardctl({"run", "-n", "1", "--", "sh", "-c",
                   "cat " + fifo + " & sdk/cli/shardctl report " + root_ +
                       " -o " + fifo + " >/dev/null; wait"});
  EXPECT_EQ(through.out, html);
  EXPECT_TRUE(fs::is_fifo(fifo));

  // Not /dev/stdout, which a mistake would replace for the whole machine.
  EXPECT_EQ(report("/dev/fd/1").out, html);
  // What a shell has opened is gone on with, and not begun anew.
  const std::string log = folder_ / "log";
  EXPECT_EQ(RunShardctl({"run", "-n", "1", "--", "sh", "-c",
                         "{ echo a; sdk/cli/shardctl report " + root_ +
                             " -o /dev/fd/1; echo b; } >" + log})
                .code,
            0);
  EXPECT_EQ(ReadFile(log), "a\n" + html + "b\n");
  const Result twice =
      RunShardctl({"report", root_, "-o", "/dev/fd/1", "--json"});
  EXPECT_EQ(twice.code, 3);
  EXPECT_TRUE(Has(twice.error, "give another --output")) << twice.error;

  const Result on_folder = report(folder_ / "");
  EXPECT_EQ(on_folder.code, 3);
  EXPECT_TRUE(Has(on_folder.error, "it is a folder")) << on_folder.error;
  const std::string broken = folder_ / "broken";
  fs::create_symlink("/no/such/file", broken);
  EXPECT_TRUE(Has(report(broken).error, "cannot follow the link"));
}

// ---- hostile keys

TEST_F(CheckpointCommandsTest, KeysAreHarmlessToATerminal) {
  const std::string path = folder_ / "hostile.safetensors";
  const std::string key = "\x1b]0;title\x07\nforged: line\xe2\x80\xae<b>";
  const std::string shown = "\\x1b]0;title\\x07\\nforged: line\\u{202e}<b>";
  WriteSafetensors(path, {{key, {1, 2}}});
  const std::string other = folder_ / "other.safetensors";
  WriteSafetensors(other, {{"x", {1, 2}}});
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{
           {"inspect", path},
           {"inspect", path, "--tensor", key},
           {"diff", path, other},
           {"plan", path, "--ranks", "2", "--json"}}) {
    SCOPED_TRACE(arguments[0]);
    const Result result = RunShardctl(arguments);
    const std::string all = result.out + result.error;
    EXPECT_FALSE(Has(all, "\x1b"));
    EXPECT_FALSE(Has(all, "\nforged"));
    EXPECT_FALSE(Has(all, "\xe2\x80\xae"));
    // The plan refuses it, as every model does.
    EXPECT_TRUE(Has(all, shown)) << all;
    EXPECT_EQ(result.code == 0, arguments[0] == "inspect") << result.code;
  }
  // The library's message has its own escapes, which are not escaped again.
  const Result none = RunShardctl({"inspect", other, "--tensor", key});
  EXPECT_TRUE(
      Has(none.error, "'\\x1b]0;title\\x07\\x0aforged: line\\u{202e}<b>'\n"))
      << none.error;
  // JSON has the key as it is, in ASCII.
  const Json json = RunJson({"inspect", path});
  EXPECT_EQ(json["tensors"][0]["key"], key);
  const Result raw = RunShardctl({"inspect", path, "--json"});
  for (const char c : raw.out) {
    EXPECT_TRUE(c == '\n' || (c >= ' ' && c < 0x7f));
  }
}

TEST_F(CheckpointCommandsTest, WrongUse) {
  EXPECT_EQ(RunShardctl({"inspect"}).code, 2);
  EXPECT_EQ(RunShardctl({"inspect", root_, "--role", "x"}).code, 2);
  EXPECT_EQ(RunShardctl({"diff", root_}).code, 2);
  EXPECT_EQ(RunShardctl({"reshard", root_, folder_ / "x"}).code, 2);
  EXPECT_EQ(RunShardctl({"report", root_}).code, 2);
  EXPECT_EQ(RunShardctl({"verify", root_, "--threads", "0"}).code, 2);
  const Result size = RunShardctl(
      {"merge", root_, folder_ / "m.safetensors", "--max-shard-size", "big"});
  EXPECT_EQ(size.code, 3);
  EXPECT_TRUE(Has(size.error, "'big' is no number of bytes"));
}

}  // namespace
}  // namespace shardctl_testing::checkpoint_commands_test
