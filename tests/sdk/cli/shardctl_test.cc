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

#include "tests/sdk/cli/shardctl_testing.h"

namespace {

using shardctl_testing::Has;
using shardctl_testing::kSeconds;
using shardctl_testing::Result;
using shardctl_testing::RunShardctl;
using shardctl_testing::Shardctl;

std::vector<std::string> Script(int ranks, const std::string& script) {
  return {"run", "-n", std::to_string(ranks), "--", "sh", "-c", script};
}

std::vector<std::string> SortedLines(const std::string& text) {
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t end; (end = text.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    lines.push_back(text.substr(begin, end - begin));
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  std::sort(lines.begin(), lines.end());
  return lines;
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
  // One name for all, another one for each run.
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

// True when the other ends of a pipe are all closed within a few seconds.
bool Ends(int fd) {
  char byte;
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 10 * 1000) == 1 && ::read(fd, &byte, 1) == 0;
}

// What ranks have started holds the write end of a pipe, as do the ranks.
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

// As in `shardctl run ... | head -1`: the ranks go on, and end as they will.
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

// Whoever shares stdout has made it non-blocking, and reads late.
TEST(ShardctlTest, NonBlockingOutputLosesNothing) {
  Shardctl shardctl(
      Script(2,
             "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done"),
      /*terminal=*/nullptr, /*non_blocking=*/true);
  ::poll(nullptr, 0, 500);  // The pipe fills.
  const Result result = shardctl.Wait();
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(SortedLines(result.out).size(), 40000u);
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

// The ranks hold the write end of a pipe: its end is theirs.
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

// On a terminal rank 0 may draw a bar, which stays below the others' lines.
TEST(ShardctlTest, ProgressBarOnATerminal) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  ASSERT_GE(terminal, 0);
  ASSERT_EQ(::grantpt(terminal), 0);
  ASSERT_EQ(::unlockpt(terminal), 0);
  // The script ends the bar only when it is told to: the bar is live.
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
