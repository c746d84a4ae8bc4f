// SPDX-License-Identifier: Apache-2.0
//
// The program itself, running ranks that are shell scripts.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/core/base/sanitizers.h"
#include "tests/sdk/cli/shardctl_testing.h"

namespace shardctl_test {
namespace {

using shardctl_testing::Has;
using shardctl_testing::kSeconds;
using shardctl_testing::Result;
using shardctl_testing::RunShardctl;
using shardctl_testing::Shardctl;
using shardctl_testing::SortedLines;

std::vector<std::string> Script(int ranks, const std::string& script) {
  return {"run", "-n", std::to_string(ranks), "--", "sh", "-c", script};
}

TEST(ShardctlTest, HelpAndVersion) {
  const Result help = RunShardctl({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_TRUE(Has(help.out, "run"));
  const Result run = RunShardctl({"run", "--help"});
  EXPECT_EQ(run.code, 0);
  EXPECT_TRUE(Has(run.out, "SHARD_RENDEZVOUS"));
  EXPECT_TRUE(Has(run.out, "shardctl run -n 4 -- ./train"));
  const Result version = RunShardctl({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_TRUE(Has(version.out, "libshard"));
}

// Memory may run out while the commands are made, too.
TEST(ShardctlTest, AnAllocationThatFailsIsAnError) {
  if (shard::kAddressSanitized) GTEST_SKIP() << "operator new is asan's";
  int failed = 0;
  // The first fifteen are made before main, for constants of CLI11.
  for (int number = 50;; number += 50) {
    ::setenv("FAILING_NEW", std::to_string(number).c_str(), 1);
    ::setenv("LD_PRELOAD", "tests/sdk/cli/libfailing_new.so", 1);
    Shardctl shardctl({"--version"});
    ::unsetenv("LD_PRELOAD");
    const Result result = shardctl.Wait();
    if (result.code == 0) break;
    EXPECT_EQ(result.code, 3)
        << "allocation " << number << ": " << result.error;
    EXPECT_EQ(result.error, "shardctl: out of memory\n");
    ++failed;
    if (::testing::Test::HasFailure()) break;
  }
  EXPECT_GT(failed, 5);
}

TEST(ShardctlTest, HelpThatStdoutDoesNotTakeIsAnError) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{
           {"--help"}, {"--version"}, {"run", "--help"}}) {
    SCOPED_TRACE(arguments[0]);
    const Result result = Shardctl(arguments, "/dev/full").Wait();
    EXPECT_EQ(result.code, 3);
    EXPECT_EQ(result.error,
              "shardctl: cannot write to stdout: No space left on device\n");
  }
  // A wrong use is reported on stderr.
  const Result wrong = Shardctl({"no-such-command"}, "/dev/full").Wait();
  EXPECT_EQ(wrong.code, 2);
  EXPECT_FALSE(Has(wrong.error, "stdout")) << wrong.error;
}

TEST(ShardctlTest, WrongUse) {
  EXPECT_EQ(RunShardctl({}).code, 2);
  EXPECT_EQ(RunShardctl({"no-such-command"}).code, 2);
  EXPECT_EQ(RunShardctl({"run", "-n", "0", "--", "true"}).code, 2);
  EXPECT_EQ(RunShardctl({"run", "-n", "two", "--", "true"}).code, 2);
  EXPECT_EQ(RunShardctl({"run", "--", "true"}).code, 2);
  EXPECT_EQ(RunShardctl({"run", "-n", "2"}).code, 2);
  const Result url =
      RunShardctl({"run", "-n", "1", "--name", "a:b", "--", "true"});
  EXPECT_NE(url.code, 0);
  EXPECT_TRUE(Has(url.error, "'a:b' has a ':'; give a name, not a URL"));
}

TEST(ShardctlTest, UsageErrorsNameTheCommandAndItsHelp) {
  EXPECT_EQ(RunShardctl({}).error,
            "shardctl: a command is required; see shardctl --help\n");
  EXPECT_EQ(RunShardctl({"rn", "-n", "2"}).error,
            "shardctl: 'rn' is no command; see shardctl --help\n");
  EXPECT_EQ(RunShardctl({"run", "--", "true"}).error,
            "shardctl run: --ranks or --hosts is required; see shardctl run "
            "--help\n");
}

TEST(ShardctlTest, EveryRankKnowsItsPlace) {
  const Result result =
      RunShardctl(Script(3,
                         "echo $SHARD_RANK $SHARD_LOCAL_RANK $SHARD_WORLD_SIZE "
                         "$SHARD_LOCAL_WORLD_SIZE ${SHARD_TERMINAL:-none}; "
                         "echo $SHARD_RENDEZVOUS >&2"));
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(SortedLines(result.out),
            (std::vector<std::string>{"[0] 0 0 3 3 none", "[1] 1 1 3 3 none",
                                      "[2] 2 2 3 3 none"}));
  // All ranks have one name, and each run has another.
  auto names = SortedLines(result.error);
  ASSERT_EQ(names.size(), 3u);
  const std::string name = names[0].substr(4);
  for (const std::string& line : names) EXPECT_EQ(line.substr(4), name);
  const Result again = RunShardctl(Script(1, "echo $SHARD_RENDEZVOUS"));
  EXPECT_NE(again.out, name + "\n");
  EXPECT_EQ(RunShardctl({"run", "-n1", "--name", "mine", "sh", "-c",
                         "echo $SHARD_RENDEZVOUS"})
                .out,
            "mine\n");
}

TEST(ShardctlTest, LinesStayWhole) {
  // Each rank writes its lines in two pieces, as fast as it can.
  const Result result = RunShardctl(
      Script(4,
             "i=0; while [ $i -lt 500 ]; do printf 'abc'; "
             "printf 'def %s\\n' $i; i=$((i+1)); done; printf 'no newline'"));
  EXPECT_EQ(result.code, 0);
  const auto lines = SortedLines(result.out);
  ASSERT_EQ(lines.size(), 4u * 501u);
  for (const std::string& line : lines) {
    const std::string text = line.substr(4);
    EXPECT_TRUE(line[0] == '[' && line[2] == ']' && line[3] == ' ') << line;
    EXPECT_TRUE(text.rfind("abcdef ", 0) == 0 || text == "no newline") << line;
  }
}

TEST(ShardctlTest, StreamsStayApart) {
  const Result result = RunShardctl(Script(2, "echo out; echo err >&2"));
  EXPECT_EQ(SortedLines(result.out),
            (std::vector<std::string>{"[0] out", "[1] out"}));
  EXPECT_EQ(SortedLines(result.error),
            (std::vector<std::string>{"[0] err", "[1] err"}));
}

TEST(ShardctlTest, OneRankIsLeftAsItIs) {
  const Result result = RunShardctl(Script(1, "printf 'as it is'; exit 5"));
  EXPECT_EQ(result.out, "as it is");
  EXPECT_EQ(result.code, 5);
}

TEST(ShardctlTest, ArgumentsAreTheProgramsOwn) {
  const Result result = RunShardctl(
      {"run", "-n", "2", "printf", "%s,", "-n", "--help", "a b", "--"});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(SortedLines(result.out)[1], "[1] -n,--help,a b,--,");
}

TEST(ShardctlTest, OneFailsAndTheOthersAreEnded) {
  const Result result = RunShardctl(
      Script(3, "if [ $SHARD_RANK = 1 ]; then exit 3; fi; exec sleep 1000"));
  EXPECT_EQ(result.code, 3);
  EXPECT_TRUE(Has(result.error,
                  "shardctl: rank 1 ended with code 3; ending the others"));
  EXPECT_FALSE(Has(result.error, "killing"));
}

// Returns true when the other ends of a pipe are all closed within 10 seconds.
bool Ends(int fd) {
  char byte;
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 10 * 1000) == 1 && ::read(fd, &byte, 1) == 0;
}

// Processes that ranks have started hold the write end of a pipe, as the ranks
// do.
TEST(ShardctlTest, NothingOutlivesTheRun) {
  for (const char* script :
       {"sleep 1000 & if [ $SHARD_RANK = 1 ]; then exit 3; fi; wait",
        "sleep 1000 & exit 3", "sleep 1000 & exit 0",
        "trap '' TERM; sleep 1000 & exit 3"}) {
    SCOPED_TRACE(script);
    int alive[2];
    ASSERT_EQ(::pipe(alive), 0);
    Shardctl shardctl(Script(2, script));
    ::close(alive[1]);
    EXPECT_TRUE(Ends(alive[0]));
    EXPECT_EQ(shardctl.Wait().code, Has(script, "exit 3") ? 3 : 0);
    ::close(alive[0]);
  }
}

// As in `shardctl run ... | head -1`, the ranks go on, and end as they will.
// Their own pipes break as usual.
TEST(ShardctlTest, NobodyReads) {
  Shardctl shardctl(
      Script(2,
             "echo first; i=0; while [ $i -lt 50 ]; do echo more; "
             "sleep 0.01; i=$((i+1)); done; yes | head -1 >/dev/null; "
             "sh -c 'kill -PIPE $$'; echo pipe=$? >&2; exit 0"));
  shardctl.ReadUntil("first");
  shardctl.CloseOutput();
  const Result result = shardctl.Wait();
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(SortedLines(result.error),
            (std::vector<std::string>{"[0] pipe=141", "[1] pipe=141"}));
}

// As on a full disk, the ranks go on, and shardctl reports once that their
// lines are lost.
TEST(ShardctlTest, OutputThatStdoutDoesNotTake) {
  const Result result =
      Shardctl(Script(2,
                      "i=0; while [ $i -lt 2000 ]; do echo $i; i=$((i+1)); "
                      "done; echo end >&2"),
               "/dev/full")
          .Wait();
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(SortedLines(result.error),
            (std::vector<std::string>{
                "[0] end", "[1] end",
                "shardctl: cannot write to stdout: No space left on device; "
                "lines of the ranks are lost, and the ranks go on"}));
}

// Another process that shares stdout has made it non-blocking, and reads late.
TEST(ShardctlTest, NonBlockingOutputLosesNothing) {
  Shardctl shardctl(
      Script(2,
             "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done"),
      /*out_path=*/nullptr, /*non_blocking=*/true);
  shardctl.WaitUntilStalled();
  const Result result = shardctl.Wait();
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(SortedLines(result.out).size(), 40000u);
}

// Nobody reads for as long as the run lasts. A signal ends the run all the
// same, and shardctl holds only a little of the ranks' output.
TEST(ShardctlTest, AStalledReaderStopsNoSignal) {
  for (const char* script : {"exec yes", "exec yes >&2"}) {
    SCOPED_TRACE(script);
    const bool error = Has(script, ">&2");
    Shardctl shardctl(Script(2, script), nullptr, false,
                      /*join_streams=*/error);
    shardctl.WaitUntilStalled();
    shardctl.Kill(SIGTERM);
    EXPECT_TRUE(shardctl.EndsUnread(kSeconds / 2));
    const Result result = shardctl.Wait();
    EXPECT_EQ(result.code, 128 + SIGTERM);
    EXPECT_LT(result.max_rss_kib, 256 * 1024);
  }
}

TEST(ShardctlTest, AStalledReaderStopsNoTimeout) {
  Shardctl shardctl(
      {"run", "-n", "2", "--timeout", "1", "--", "sh", "-c", "exec yes"});
  EXPECT_TRUE(shardctl.EndsUnread(kSeconds / 2));
  const Result result = shardctl.Wait();
  EXPECT_EQ(result.code, 124);
  EXPECT_TRUE(Has(result.error, "longer than its timeout of 1 s"));
  EXPECT_LT(result.max_rss_kib, 256 * 1024);
}

// The ranks have ended while their output is still to be written.
TEST(ShardctlTest, ASlowReaderGetsEverything) {
  Shardctl shardctl(
      Script(2, "i=0; while [ $i -lt 50000 ]; do echo $i; i=$((i+1)); done"));
  shardctl.WaitUntilStalled();
  const Result result = shardctl.Wait();
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(SortedLines(result.out).size(), 100000u);
}

TEST(ShardctlTest, AStalledReaderIsNotWaitedForAfterTheTimeout) {
  // 128 KiB are more than a pipe holds, and less than shardctl and the pipes
  // hold together.
  Shardctl shardctl({"run", "-n", "2", "--timeout", "1", "--", "sh", "-c",
                     "head -c 131072 /dev/zero | tr '\\0' x"});
  EXPECT_TRUE(shardctl.EndsUnread(kSeconds / 2));
  const Result result = shardctl.Wait();
  EXPECT_EQ(result.code, 124);
  EXPECT_TRUE(Has(result.error, "its output is not read")) << result.error;
}

// Makes shardctl see a rank that only followed first: rank 1 waits until rank 0
// is a zombie.
std::vector<std::string> FollowerFirst(const std::string& follower,
                                       const std::string& cause) {
  char folder[] = "/tmp/shardctl-test-XXXXXX";
  EXPECT_NE(::mkdtemp(folder), nullptr);
  const std::string pid = std::string(folder) + "/pid";
  return Script(2, "case $SHARD_RANK in 0) echo $$ >" + pid + ".new; mv " +
                       pid + ".new " + pid + "; " + follower +
                       ";; 1) until [ -e " + pid + " ]; do :; done; read p <" +
                       pid + "; rm -r " + folder +
                       "; while read -r x y state z </proc/$p/stat && "
                       "[ $state != Z ]; do :; done; " +
                       cause + ";; esac");
}

TEST(ShardctlTest, TheCauseIsNamedAndNotWhoFollowed) {
  const std::string lost = "exit 65";  // SHARD_RANK_LOST
  struct {
    std::string follower;
    std::string cause;
    int code;
    const char* said;
  } const cases[] = {
      {"exit 1", "kill -KILL $$", 128 + SIGKILL,
       "rank 1 was ended by signal 9"},
      {"kill -ABRT $$", "kill -SEGV $$", 128 + SIGSEGV,
       "rank 1 was ended by signal 11"},
      {lost, "exit 3", 3, "rank 1 ended with code 3"},
      {lost, "kill -ABRT $$", 128 + SIGABRT, "rank 1 was ended by signal 6"},
      // When both are of the same kind, the first rank is named.
      {"exit 4", "exit 3", 4, "rank 0 ended with code 4"},
      {"kill -ABRT $$", "exit 3", 128 + SIGABRT,
       "rank 0 was ended by signal 6"},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.follower + ", " + each.cause);
    const Result result = RunShardctl(FollowerFirst(each.follower, each.cause));
    EXPECT_EQ(result.code, each.code);
    EXPECT_TRUE(Has(result.error, each.said)) << result.error;
  }
}

TEST(ShardctlTest, ASignalIsNamed) {
  const Result result = RunShardctl(Script(
      2, "if [ $SHARD_RANK = 1 ]; then kill -SEGV $$; fi; exec sleep 1000"));
  EXPECT_EQ(result.code, 128 + SIGSEGV);
  EXPECT_TRUE(Has(result.error, "rank 1 was ended by signal 11"));
}

TEST(ShardctlTest, StubbornRanksAreKilled) {
  Shardctl shardctl(
      Script(2, "trap '' TERM; echo ready; while :; do sleep 0.01; done"));
  shardctl.ReadUntil("ready", 2);
  shardctl.Kill(SIGTERM);
  const Result result = shardctl.Wait();
  EXPECT_EQ(result.code, 128 + SIGKILL);
  EXPECT_TRUE(Has(result.error, "did not end within 5 s; killing them"));
}

TEST(ShardctlTest, TheSecondSignalKills) {
  Shardctl shardctl(Script(
      2, "trap 'echo no' INT; echo ready; while :; do sleep 0.01; done"));
  shardctl.ReadUntil("ready", 2);
  shardctl.Kill(SIGINT);
  shardctl.ReadUntil("no");
  shardctl.Kill(SIGINT);
  const Result result = shardctl.Wait();
  EXPECT_EQ(result.code, 128 + SIGKILL);
  EXPECT_FALSE(Has(result.error, "killing"));
}

TEST(ShardctlTest, Timeout) {
  const Result result = RunShardctl(
      {"run", "-n", "2", "--timeout", "0.2", "--", "sleep", "1000"});
  EXPECT_EQ(result.code, 124);
  EXPECT_TRUE(Has(result.error, "longer than its timeout"));
}

TEST(ShardctlTest, ALongTimeoutIsForever) {
  for (const char* seconds : {"9.3e9", "1e300"}) {
    const Result result = RunShardctl(
        {"run", "-n", "2", "--timeout", seconds, "--", "sh", "-c", "exit 0"});
    EXPECT_EQ(result.code, 0) << seconds << result.error;
  }
  for (const char* seconds : {"0", "-1", "nan", "inf", "1e400", "x"}) {
    const Result result = RunShardctl(
        {"run", "-n", "2", "--timeout", seconds, "--", "sh", "-c", "exit 0"});
    EXPECT_EQ(result.code, 2) << seconds;
    EXPECT_TRUE(Has(result.error, "is no number above 0")) << result.error;
  }
}

TEST(ShardctlTest, NoSuchProgram) {
  const Result result =
      RunShardctl({"run", "-n", "2", "--", "no-such-program"});
  EXPECT_EQ(result.code, 127);
  EXPECT_TRUE(
      Has(result.error, "cannot run 'no-such-program': no such program"));
  EXPECT_EQ(RunShardctl({"run", "-n", "2", "--", "/"}).code, 126);
}

TEST(ShardctlTest, SignalsArePassedOn) {
  for (const int signal : {SIGINT, SIGTERM}) {
    for (const int ranks : {1, 2}) {
      Shardctl shardctl(
          Script(ranks,
                 "trap 'echo caught; exit 7' INT TERM; echo ready; "
                 "while :; do sleep 0.01; done"));
      shardctl.ReadUntil("ready", ranks);
      shardctl.Kill(signal);
      const Result result = shardctl.Wait();
      EXPECT_EQ(result.code, 7);
      EXPECT_TRUE(Has(result.out, "caught"));
    }
  }
}

// The ranks hold the write end of a pipe, so the pipe ends when they do.
TEST(ShardctlTest, RanksDoNotOutliveShardctl) {
  int alive[2];
  ASSERT_EQ(::pipe(alive), 0);
  Shardctl shardctl(Script(3, "echo ready; exec sleep 1000"));
  ::close(alive[1]);
  shardctl.ReadUntil("ready", 3);
  shardctl.Kill(SIGKILL);
  pollfd entry{alive[0], POLLIN, 0};
  ASSERT_EQ(::poll(&entry, 1, kSeconds * 1000), 1) << "ranks are still there";
  char byte;
  EXPECT_EQ(::read(alive[0], &byte, 1), 0);
  ::close(alive[0]);
}

// On a terminal rank 0 may draw a bar, which stays below the lines of the other
// ranks.
TEST(ShardctlTest, ProgressBarOnATerminal) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  ASSERT_GE(terminal, 0);
  ASSERT_EQ(::grantpt(terminal), 0);
  ASSERT_EQ(::unlockpt(terminal), 0);
  // The script ends the bar only when the test tells it to: the bar is live.
  char folder[] = "/tmp/shardctl-test-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string go = std::string(folder) + "/go";
  Shardctl shardctl(
      Script(2,
             "if [ $SHARD_RANK = 0 ]; then echo t=$SHARD_TERMINAL; "
             "printf '\\r42%%'; while [ ! -e " +
                 go + " ]; do sleep 0.01; done; printf '\\r99%%\\n'; fi"),
      ::ptsname(terminal));
  std::string seen;
  const auto read_until = [&](const std::string& text) {
    while (seen.find(text) == std::string::npos) {
      pollfd entry{terminal, POLLIN, 0};
      ASSERT_GT(::poll(&entry, 1, kSeconds * 1000), 0) << seen;
      char buffer[1024];
      const ssize_t size = ::read(terminal, buffer, sizeof(buffer));
      ASSERT_GT(size, 0) << seen;
      seen.append(buffer, static_cast<size_t>(size));
    }
  };
  read_until("[0] t=1");
  read_until("[0] 42%");
  const int file = ::open(go.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  EXPECT_GE(file, 0);
  ::close(file);
  read_until("[0] 99%\r\n");
  EXPECT_EQ(shardctl.Wait().code, 0);
  ::unlink(go.c_str());
  ::rmdir(folder);
  ::close(terminal);
}

}  // namespace
}  // namespace shardctl_test
