// SPDX-License-Identifier: Apache-2.0
//
// `shardctl run --hosts`: hosts that are all this machine, with real agents.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/core/base/sanitizers.h"
#include "tests/core/base/temp_folder.h"
#include "tests/sdk/cli/shardctl_testing.h"

namespace run_hosts_test {
namespace {

using shard::testing::TempFolder;
using shardctl_testing::AlivePipe;
using shardctl_testing::Has;
using shardctl_testing::kSeconds;
using shardctl_testing::kShardctl;
using shardctl_testing::Result;
using shardctl_testing::RunShardctl;
using shardctl_testing::Shardctl;
using shardctl_testing::SortedLines;

// Reaches a host without a shell.
constexpr const char* kVia = "env VIA_HOST={host}";

std::vector<std::string> Hosts(const std::vector<std::string>& options,
                               const std::vector<std::string>& command) {
  std::vector<std::string> arguments = {"run"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.emplace_back("--");
  arguments.insert(arguments.end(), command.begin(), command.end());
  return arguments;
}

std::vector<std::string> Script(const std::string& hosts,
                                const std::string& script,
                                std::vector<std::string> options = {}) {
  options.insert(options.end(), {"--hosts", hosts, "--via", kVia});
  return Hosts(options, {"sh", "-c", script});
}

TEST(RunHostsTest, EveryRankKnowsItsPlace) {
  const Result result = RunShardctl(
      Script("a:2,ann@b:1",
             "echo $VIA_HOST $SHARD_RANK $SHARD_LOCAL_RANK $SHARD_WORLD_SIZE "
             "$SHARD_LOCAL_WORLD_SIZE $SHARD_RESTART_COUNT; "
             "echo $SHARD_RENDEZVOUS $MASTER_ADDR $MASTER_PORT >&2",
             {"--name", "mine", "--master", "10.0.0.7:31000"}));
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(SortedLines(result.out),
            (std::vector<std::string>{"[a:0] a 0 0 3 2 0", "[a:1] a 1 1 3 2 0",
                                      "[b:2] ann@b 2 0 3 1 0"}));
  const std::string place = "tcp://10.0.0.7:31000?job=mine&restart=0&host=";
  const std::string master = " 10.0.0.7 31000";
  EXPECT_EQ(SortedLines(result.error),
            (std::vector<std::string>{"[a:0] " + place + "a" + master,
                                      "[a:1] " + place + "a" + master,
                                      "[b:2] " + place + "b" + master}));
}

// The port, the job and the secret are those of one run.
TEST(RunHostsTest, EveryRunHasASecretOfItsOwn) {
  ::unsetenv("SHARD_TOKEN");
  const auto script = Script("a,b", "echo $SHARD_TOKEN $SHARD_RENDEZVOUS");
  std::set<std::string> secrets;
  for (int run = 0; run < 2; ++run) {
    const auto lines = SortedLines(RunShardctl(script).out);
    ASSERT_EQ(lines.size(), 2u);
    const std::string secret = lines[0].substr(6, 64);
    EXPECT_EQ(lines[1].substr(6, 64), secret);
    EXPECT_EQ(secret.find_first_not_of("0123456789abcdef"), std::string::npos);
    EXPECT_TRUE(Has(lines[1], " tcp://a:")) << lines[1];
    secrets.insert(secret);
  }
  EXPECT_EQ(secrets.size(), 2u);
  ::setenv("SHARD_TOKEN", "the user's", 1);
  EXPECT_TRUE(Has(RunShardctl(script).out, "[b:1] the user's tcp:"));
  ::unsetenv("SHARD_TOKEN");
}

// Hosts have their own environment, here none. Ranks get what shardctl passes.
TEST(RunHostsTest, VariablesAreThoseThatWereGiven) {
  ::setenv("SHARD_LOG_FILE", "a b", 1);
  ::setenv("COPIED", "it's \"here\"\n$HOME", 1);
  ::setenv("NOT_COPIED", "1", 1);
  const Result result = RunShardctl(
      Hosts({"--hosts", "a", "--via", "env -i PATH=/bin:/usr/bin {command}",
             "--env", "COPIED", "--env", "SET=x=y", "--env", "EMPTY="},
            {"true"}));
  EXPECT_EQ(result.code, 2);
  EXPECT_TRUE(Has(result.error, "does not have {host}")) << result.error;
  const Result good = RunShardctl(
      Hosts({"--hosts", "a", "--via", "env -i PATH=/bin:/usr/bin H={host}",
             "--env", "COPIED", "--env", "SET=x=y", "--env", "EMPTY="},
            {"sh", "-c",
             "printf '%s|' \"$SHARD_LOG_FILE\" \"$COPIED\" \"$SET\" "
             "\"${EMPTY-unset}\" \"${NOT_COPIED-unset}\""}));
  for (const char* name : {"SHARD_LOG_FILE", "COPIED", "NOT_COPIED"}) {
    ::unsetenv(name);
  }
  EXPECT_EQ(good.code, 0) << good.error;
  EXPECT_EQ(good.out, "[a:0] a b|it's \"here\"\n[a:0] $HOME|x=y||unset|\n");
  const Result missing = RunShardctl(
      {"run", "-n", "1", "--env", "NO_SUCH_VARIABLE", "--", "true"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_TRUE(Has(missing.error, "--env NO_SUCH_VARIABLE: there is no such"));
}

// Neither shardctl's path nor the program's words are read by a shell, or else
// they are quoted for it.
TEST(RunHostsTest, WordsArriveAsTheyAre) {
  const TempFolder temp;
  const std::string folder = temp / "it's a \"path\" $HOME";
  std::filesystem::create_directory(folder);
  const std::string shardctl = folder + "/shard ctl";
  std::filesystem::create_symlink(std::filesystem::canonical(kShardctl),
                                  shardctl);
  const std::vector<std::string> words = {
      "a b", "it's", "\"q\"", "$HOME", "`id`", "\\",    "",
      "*",   "x\ny", "\xff",  "-n",    "--",   "{host}"};
  std::string expected;
  for (const std::string& word : words) {
    for (const char c : word + "|") {
      expected += c;
      if (c == '\n') expected += "[a:0] ";
    }
  }
  std::vector<std::string> command = {"printf", "%s|"};
  command.insert(command.end(), words.begin(), words.end());
  for (const char* via :
       {"env VIA={host}", "env VIA={host} sh -c {command}",
        "sh -c 'exec sh -c \"$1\"' {host} {command}",
        // As ssh does it: words are joined and given to a shell.
        "sh -c 'shift; sh -c \"$*\"' sh {host} {command}"}) {
    SCOPED_TRACE(via);
    const Result result = RunShardctl(
        Hosts({"--hosts", "a", "--via", via, "--shardctl", shardctl}, command));
    EXPECT_EQ(result.code, 0) << result.error;
    EXPECT_EQ(result.out, "[a:0] " + expected + "\n");
  }
}

// As ssh does, this one gives a shell on the host what follows the host's name.
TEST(RunHostsTest, SshReachesHostsByDefault) {
  const TempFolder temp;
  shard::testing::WriteText(temp / "ssh",
                            "#!/bin/sh\n"
                            "while case $1 in -*) true;; *) false;; esac; do\n"
                            "  echo $1 >&2; shift; done\n"
                            "export SSH_HOST=$1; shift; cd /\n"
                            "exec sh -c \"$*\"\n");
  std::filesystem::permissions(temp / "ssh", std::filesystem::perms::owner_all);
  const std::string path = ::getenv("PATH");
  ::setenv("PATH", (temp.path() + ":" + path).c_str(), 1);
  const std::string shardctl = temp / "a 'b' $c";
  std::filesystem::create_symlink(std::filesystem::canonical(kShardctl),
                                  shardctl);
  const Result result =
      RunShardctl(Hosts({"--hosts", "ann@a:2", "--shardctl", shardctl},
                        {"sh", "-c", "echo $SSH_HOST $PWD"}));
  ::setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(result.code, 0) << result.error;
  const std::string here = std::filesystem::current_path();
  EXPECT_EQ(
      SortedLines(result.out),
      (std::vector<std::string>{"[a:0] ann@a " + here, "[a:1] ann@a " + here}));
  EXPECT_TRUE(Has(result.error, "[a] -oBatchMode=yes\n")) << result.error;
  EXPECT_TRUE(Has(result.error, "[a] -oConnectTimeout=60\n"));
}

TEST(RunHostsTest, ManyBytesArrive) {
  std::string longest(100 * 1000, 'x');
  const Result result = RunShardctl(Hosts(
      {"--hosts", "a,b", "--via", kVia},
      {"sh", "-c", "echo ${#1} ${#2} ${#3}", "sh", longest, longest, longest}));
  EXPECT_EQ(SortedLines(result.out),
            (std::vector<std::string>{"[a:0] 100000 100000 100000",
                                      "[b:1] 100000 100000 100000"}));
}

TEST(RunHostsTest, LinesStayWhole) {
  const Result result =
      RunShardctl(Script("a:2,b:2",
                         "i=0; while [ $i -lt 500 ]; do printf 'abc'; "
                         "printf 'def %s\\n' $i; i=$((i+1)); done; printf 'no "
                         "newline'; echo >&2"));
  EXPECT_EQ(result.code, 0);
  const auto lines = SortedLines(result.out);
  ASSERT_EQ(lines.size(), 4u * 501u);
  for (const std::string& line : lines) {
    const std::string text = line.substr(6);
    EXPECT_TRUE(Has("[a:0] [a:1] [b:2] [b:3] ", line.substr(0, 6))) << line;
    EXPECT_TRUE(text.rfind("abcdef ", 0) == 0 || text == "no newline") << line;
  }
  EXPECT_EQ(SortedLines(result.error),
            (std::vector<std::string>{"[a:0] ", "[a:1] ", "[b:2] ", "[b:3] "}));
}

TEST(RunHostsTest, OneFailsAndAllHostsEnd) {
  AlivePipe alive;
  Shardctl shardctl(Script("a:2,b:2",
                           "sleep 1000 & if [ $SHARD_RANK = 2 ]; then exit 3; "
                           "fi; exec sleep 1000"));
  alive.Keep();
  const Result result = shardctl.Wait();
  EXPECT_EQ(result.code, 3);
  EXPECT_EQ(result.error,
            "shardctl: rank 2 (host b) ended with code 3; ending the others\n");
  EXPECT_TRUE(alive.Ends(5));
}

// The first failure is on one host, and its cause on the other.
TEST(RunHostsTest, TheCauseIsNamedAndNotWhoFollowed) {
  const TempFolder temp;
  const std::string pid = temp / "pid";
  const Result result = RunShardctl(Script(
      "a,b", "if [ $SHARD_RANK = 0 ]; then echo $$ >" + pid + ".new; mv " +
                 pid + ".new " + pid + "; exit 65; fi; until [ -e " + pid +
                 " ]; do :; done; read p <" + pid +
                 "; while read -r x y state z </proc/$p/stat && "
                 "[ $state != Z ]; do :; done; kill -SEGV $$"));
  EXPECT_EQ(result.code, 128 + SIGSEGV);
  EXPECT_TRUE(Has(result.error, "rank 1 (host b) was ended by signal 11"))
      << result.error;
}

TEST(RunHostsTest, SignalsReachAllRanks) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    Shardctl shardctl(Script("a:2,b",
                             "trap 'echo caught; exit 7' INT TERM HUP; "
                             "echo ready; while :; do sleep 0.01; done"));
    shardctl.ReadUntil("ready", 3);
    shardctl.Kill(signal);
    const Result result = shardctl.Wait();
    EXPECT_EQ(result.code, 7);
    for (const char* line : {"[a:0] caught", "[a:1] caught", "[b:2] caught"}) {
      EXPECT_TRUE(Has(result.out, line)) << line;
    }
  }
}

TEST(RunHostsTest, StubbornRanksAreKilled) {
  AlivePipe alive;
  Shardctl shardctl(
      Script("a,b", "trap '' TERM; echo ready; while :; do sleep 0.01; done"));
  alive.Keep();
  shardctl.ReadUntil("ready", 2);
  shardctl.Kill(SIGTERM);
  const Result result = shardctl.Wait();
  EXPECT_EQ(result.code, 128 + SIGKILL);
  EXPECT_TRUE(Has(result.error, "did not end within 5 s; killing them"));
  EXPECT_TRUE(alive.Ends(5));
}

TEST(RunHostsTest, TheSecondSignalKills) {
  Shardctl shardctl(Script(
      "a,b", "trap 'echo no' INT; echo ready; while :; do sleep 0.01; done"));
  shardctl.ReadUntil("ready", 2);
  shardctl.Kill(SIGINT);
  shardctl.ReadUntil("no");
  shardctl.Kill(SIGINT);
  const Result result = shardctl.Wait();
  EXPECT_EQ(result.code, 128 + SIGKILL);
  EXPECT_FALSE(Has(result.error, "killing"));
}

TEST(RunHostsTest, Timeout) {
  const Result result =
      RunShardctl(Script("a,b", "exec sleep 1000", {"--timeout", "0.5"}));
  EXPECT_EQ(result.code, 124);
  EXPECT_TRUE(Has(result.error, "longer than its timeout of 0.5 s"));
}

// Nothing is left of a run whose launcher is killed, not even what ranks have
// started, and ranks that do not want to end.
TEST(RunHostsTest, NothingOutlivesTheLauncher) {
  for (const char* script : {"sleep 1000 & echo ready; wait",
                             "trap '' TERM; sleep 1000 & echo ready; while :; "
                             "do sleep 0.01; done"}) {
    SCOPED_TRACE(script);
    AlivePipe alive;
    Shardctl shardctl(Script("a:2,b", script));
    alive.Keep();
    shardctl.ReadUntil("ready", 3);
    shardctl.Kill(SIGKILL);
    EXPECT_TRUE(alive.Ends(kSeconds));
  }
}

// A launcher that hangs, as behind a network that fails without a word. Only
// the ranks have the fifo open.
TEST(RunHostsTest, NothingOutlivesASilentLauncher) {
  const TempFolder temp;
  const std::string fifo = temp / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const int reader = ::open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  Shardctl shardctl(Script("a:2,b",
                           "exec 9>" + fifo + "; sleep 1000 & echo ready; wait",
                           {"--host-timeout", "3"}));
  shardctl.ReadUntil("ready", 3);
  shardctl.Kill(SIGSTOP);
  pollfd entry{reader, 0, 0};  // POLLHUP alone.
  EXPECT_EQ(::poll(&entry, 1, kSeconds / 2 * 1000), 1);
  ::close(reader);
  shardctl.Kill(SIGCONT);
  const Result result = shardctl.Wait();
  EXPECT_EQ(result.code, 255);
  EXPECT_TRUE(Has(result.error, "`shardctl run` is silent; ending the ranks"))
      << result.error;
}

TEST(RunHostsTest, AnAgentThatDiesIsALostHost) {
  AlivePipe alive;
  Shardctl shardctl(Script("a,b",
                           "if [ $SHARD_RANK = 1 ]; then kill -KILL $PPID; fi; "
                           "exec sleep 1000"));
  alive.Keep();
  const Result result = shardctl.Wait();
  EXPECT_EQ(result.code, 255);
  EXPECT_TRUE(Has(result.error,
                  "host b is lost: env was ended by signal 9; ending the"))
      << result.error;
  EXPECT_TRUE(alive.Ends(10));
}

TEST(RunHostsTest, AnAgentThatIsSilentIsALostHost) {
  const TempFolder temp;
  const std::string go = temp / "go";
  AlivePipe alive;
  Shardctl shardctl(
      Script("a,b",
             "if [ $SHARD_RANK = 1 ]; then echo ready; until [ -e " + go +
                 " ]; do :; done; kill -STOP $PPID; fi; "
                 "exec sleep 1000",
             {"--host-timeout", "3"}));
  alive.Keep();
  shardctl.ReadUntil("ready");
  shard::testing::WriteText(go, "");
  const Result result = shardctl.Wait();
  EXPECT_EQ(result.code, 255);
  EXPECT_TRUE(
      Has(result.error, "host b is lost: there was no sign of life for 3 s"))
      << result.error;
  EXPECT_TRUE(alive.Ends(10));
}

// Commands that start no agent, or not only.
TEST(RunHostsTest, HostsThatCannotBeReached) {
  struct {
    const char* via;
    int code;
    const char* said;
  } const cases[] = {
      {"no-such-program {host}", 126,
       "cannot run 'no-such-program' for host a: No such file"},
      {"sh -c 'echo why >&2; exit 255' {host}", 255,
       "[a] why\nshardctl: host a is lost: sh ended with code 255"},
      {"sh -c 'exit 127' {host}", 255,
       "sh ended with code 127; shardctl is to be at the same path"},
      {"sh -c 'kill $$' {host}", 255, "sh was ended by signal 15"},
      {"sh -c 'exec sleep 1000' {host}", 255, "did not answer within 2 s"},
      {"sh -c 'exec >&-; exec sleep 1000' {host}", 255,
       "sh has closed its output"},
      {"sh -c 'exec </dev/null; exec \"$@\"' {host}", 255,
       "shardctl agent: no job came by stdin"},
      {"sh -c 'exec yes' {host}", 255,
       "'sh' prints other text than shardctl's agent"},
      {"sh -c 'exec cat /dev/zero' {host}", 255, "prints other text"},
      {"sh -c 'echo SHARDCTL-AGENT 1; exec cat /dev/zero' {host}", 255,
       "sent a wrong message"},
      {"sh -c 'echo SHARDCTL-AGENT 1; exec yes' {host}", 255,
       "sent what is no message of shardctl"},
      // Sends back what it gets.
      {"sh -c 'echo SHARDCTL-AGENT 1; exec cat' {host}", 255,
       "sent a wrong message"},
  };
  // All at once: most of them wait.
  struct Run {
    AlivePipe alive;
    std::unique_ptr<Shardctl> shardctl;
  };
  std::vector<std::unique_ptr<Run>> runs;
  for (const auto& each : cases) {
    auto run = std::make_unique<Run>();
    run->shardctl = std::make_unique<Shardctl>(Hosts(
        {"--hosts", "a", "--host-timeout", "2", "--via", each.via}, {"true"}));
    run->alive.Keep();
    runs.push_back(std::move(run));
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    SCOPED_TRACE(cases[i].via);
    const Result result = runs[i]->shardctl->Wait();
    EXPECT_EQ(result.code, cases[i].code);
    EXPECT_TRUE(Has(result.error, cases[i].said)) << result.error;
    EXPECT_LT(result.max_rss_kib, 256 * 1024);
    EXPECT_TRUE(runs[i]->alive.Ends(10));
  }
}

// Login scripts print, and some end without a newline.
TEST(RunHostsTest, WelcomesAreNoMessages) {
  const Result result =
      RunShardctl(Hosts({"--hosts", "a", "--via",
                         "sh -c 'echo Welcome; printf to; exec \"$@\"' {host}"},
                        {"echo", "hello"}));
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out, "[a:0] hello\n");
  EXPECT_EQ(result.error,
            "shardctl: host a says: Welcome\nshardctl: host a says: to\n");
}

TEST(RunHostsTest, NoSuchProgramAndNoSuchFolder) {
  const Result missing =
      RunShardctl(Hosts({"--hosts", "a:2,b", "--via", kVia, "--restarts", "2"},
                        {"no-such-program"}));
  EXPECT_EQ(missing.code, 127);
  EXPECT_TRUE(
      Has(missing.error, ": cannot run 'no-such-program': no such program"))
      << missing.error;
  EXPECT_FALSE(Has(missing.error, "restart"));

  // The folder is gone on the host b.
  const std::string shardctl = std::filesystem::canonical(kShardctl);
  const TempFolder temp;
  const std::string before = std::filesystem::current_path();
  const std::string folder = temp / "not everywhere";
  std::filesystem::create_directory(folder);
  std::filesystem::create_directory(folder + "/sdk");
  std::filesystem::create_directory(folder + "/sdk/cli");
  std::filesystem::create_symlink(shardctl, folder + "/" + kShardctl);
  std::filesystem::current_path(folder);
  const Result gone = RunShardctl(Hosts(
      {"--hosts", "a,b", "--via",
       "sh -c 'if [ $0 = b ]; then rm -r ../not*; fi; exec \"$@\"' {host}"},
      {"sleep", "1000"}));
  std::filesystem::current_path(before);
  EXPECT_EQ(gone.code, 126);
  EXPECT_TRUE(Has(gone.error, "cannot enter the folder '")) << gone.error;
  EXPECT_TRUE(Has(gone.error, "start shardctl in one that all hosts have"));
}

// Nobody reads for as long as the run lasts. Signals arrive all the same, and
// neither shardctl nor its agents hold much of the output.
TEST(RunHostsTest, AStalledReaderStopsNoSignal) {
  Shardctl shardctl(Script("a,b", "exec yes"));
  shardctl.WaitUntilStalled();
  shardctl.Kill(SIGTERM);
  EXPECT_TRUE(shardctl.EndsUnread(kSeconds / 2));
  const Result result = shardctl.Wait();
  EXPECT_EQ(result.code, 128 + SIGTERM);
  EXPECT_LT(result.max_rss_kib, 256 * 1024);
}

TEST(RunHostsTest, AStalledReaderStopsNoTimeout) {
  Shardctl shardctl(Script("a,b", "exec yes", {"--timeout", "3"}));
  EXPECT_TRUE(shardctl.EndsUnread(kSeconds / 2));
  const Result result = shardctl.Wait();
  EXPECT_EQ(result.code, 124);
  // The address sanitizer keeps memory that was freed.
  EXPECT_LT(result.max_rss_kib, (shard::kSanitized ? 256 : 64) * 1024);
}

TEST(RunHostsTest, ASlowReaderGetsEverything) {
  Shardctl shardctl(Script(
      "a,b", "i=0; while [ $i -lt 200000 ]; do echo $i; i=$((i+1)); done"));
  shardctl.WaitUntilStalled();
  const Result result = shardctl.Wait();
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(SortedLines(result.out).size(), 400000u);
}

TEST(RunHostsTest, AFailureStartsAllRanksAgain) {
  const Result result = RunShardctl(
      Script("a:2,b",
             "echo $SHARD_RESTART_COUNT $SHARD_RENDEZVOUS; "
             "if [ $SHARD_RESTART_COUNT$SHARD_RANK = 01 ]; then exit 3; fi; "
             "if [ $SHARD_RESTART_COUNT = 0 ]; then exec sleep 1000; fi; "
             "if [ $SHARD_RESTART_COUNT$SHARD_RANK = 12 ]; then "
             "kill -KILL $PPID; fi",
             {"--restarts", "5", "--name", "job", "--master", "m:31000"}));
  EXPECT_EQ(result.code, 0);
  const auto lines = SortedLines(result.out);
  // The last line of the host whose agent was killed may be lost.
  ASSERT_GE(lines.size(), 8u) << result.out;
  const std::string place = " tcp://m:31000?job=job&restart=";
  EXPECT_EQ(lines[0], "[a:0] 0" + place + "0&host=a");
  EXPECT_EQ(lines.back(), "[b:2] 2" + place + "2&host=b");
  EXPECT_TRUE(Has(result.error,
                  "rank 1 (host a) ended with code 3; ending the others\n"
                  "shardctl: restart 1 of 5\n"))
      << result.error;
  EXPECT_TRUE(Has(result.error, "shardctl: restart 2 of 5\n"));
  EXPECT_FALSE(Has(result.error, "restart 3"));
}

}  // namespace
}  // namespace run_hosts_test
