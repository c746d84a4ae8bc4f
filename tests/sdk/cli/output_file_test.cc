// SPDX-License-Identifier: Apache-2.0
//
// The paths that commands write to, and `shardctl report`, which writes to any
// path.

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/sdk/cli/checkpoint_testing.h"

namespace shardctl_testing::output_file_test {
namespace {

using Json = nlohmann::json;
using OutputFileTest = CheckpointTest;

TEST_F(OutputFileTest, ReportSaysWhatItCounted) {
  const std::string page = folder_ / "report.html";
  const Json json = RunJson({"report", root_, "-o", page});
  EXPECT_EQ(json["files"], 2);
  EXPECT_GE(json["imbalance"], 1);
  const std::string html = ReadFile(page);
  EXPECT_EQ(html.size(), json["page_bytes"]);
  EXPECT_TRUE(Has(html, "Checkpoint of step 2"));
  EXPECT_TRUE(Has(html, "state.embed.weight.exp_avg"));
  // No temporary file is left behind.
  EXPECT_FALSE(
      Has(RunShardctl({"run", "-n1", "ls", folder_ / ""}).out, "part"));
}

// Every command that writes reports such folders in the same words.
TEST_F(OutputFileTest, FoldersThatCannotBeWritten) {
  namespace fs = std::filesystem;
  const std::string safetensors = folder_ / "in.safetensors";
  ASSERT_EQ(RunShardctl({"merge", root_, safetensors}).code, 0);
  const std::string file = folder_ / "file";
  WriteFile(file, "text");
  const std::string forbidden = folder_ / "forbidden";
  fs::create_directory(forbidden);
  fs::permissions(forbidden, fs::perms::owner_read | fs::perms::owner_exec);
  // Root may write to every folder, unless it drops that right for the programs
  // that it starts.
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

// The report is written into links, devices and pipes, which stay what they
// are.
TEST_F(OutputFileTest, ReportGoesWhereItIsTold) {
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

  // The path is a link, so that a mistake costs no device.
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

  // The path is not /dev/stdout, which a mistake would replace for the whole
  // machine.
  EXPECT_EQ(report("/dev/fd/1").out, html);
  // A file that a shell has opened is continued, and not begun anew.
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

TEST_F(OutputFileTest, WrongUse) {
  EXPECT_EQ(RunShardctl({"report", root_}).code, 2);
}

}  // namespace
}  // namespace shardctl_testing::output_file_test
