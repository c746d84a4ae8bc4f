// SPDX-License-Identifier: Apache-2.0
//
// The restarts of `shardctl run`, its binding, and the checks of its options.

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/sdk/cli/shardctl_testing.h"

namespace run_options_test {
namespace {

using shardctl_testing::Has;
using shardctl_testing::Result;
using shardctl_testing::RunShardctl;
using shardctl_testing::Shardctl;

std::vector<std::string> Script(std::vector<std::string> options,
                                const std::string& script) {
  options.insert(options.begin(), "run");
  options.insert(options.end(), {"--", "sh", "-c", script});
  return options;
}

TEST(RunOptionsTest, RanksStartAgainAfterAFailure) {
  // Each start has a rendezvous of its own.
  const Result result = RunShardctl(
      Script({"-n", "2", "--restarts", "3", "--name", "mine"},
             "if [ $SHARD_RANK = 0 ]; then echo $SHARD_RESTART_COUNT "
             "$SHARD_RENDEZVOUS; fi; [ $SHARD_RESTART_COUNT = 2 ] || "
             "[ $SHARD_RANK = 0 ]"));
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out, "[0] 0 mine\n[0] 1 mine-r1\n[0] 2 mine-r2\n");
  EXPECT_EQ(result.error,
            "shardctl: rank 1 ended with code 1\nshardctl: restart 1 of 3\n"
            "shardctl: rank 1 ended with code 1\nshardctl: restart 2 of 3\n");
}

TEST(RunOptionsTest, TheLastFailureIsTheResult) {
  const Result result =
      RunShardctl(Script({"-n", "2", "--restarts", "2"},
                         "echo start; exit $((3 + SHARD_RESTART_COUNT))"));
  EXPECT_EQ(result.code, 5);
  EXPECT_FALSE(Has(result.error, "restart 3"));
}

TEST(RunOptionsTest, OneRankStartsAgain) {
  const Result result = RunShardctl(
      Script({"-n", "1", "--restarts", "1"},
             "printf \"$SHARD_RESTART_COUNT \"; [ $SHARD_RESTART_COUNT = 1 ]"));
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out, "0 1 ");
}

// A user who ends a run does not want another one.
TEST(RunOptionsTest, WhoIsToldToEndStartsNothingAgain) {
  Shardctl shardctl(
      Script({"-n", "2", "--restarts", "3"}, "echo ready; exec sleep 1000"));
  shardctl.ReadUntil("ready", 2);
  shardctl.Kill(SIGTERM);
  const Result stopped = shardctl.Wait();
  EXPECT_EQ(stopped.code, 128 + SIGTERM);
  EXPECT_FALSE(Has(stopped.error, "restart")) << stopped.error;

  const Result late = RunShardctl(Script(
      {"-n", "2", "--restarts", "3", "--timeout", "0.2"}, "exec sleep 1000"));
  EXPECT_EQ(late.code, 124);
  EXPECT_FALSE(Has(late.error, "restart")) << late.error;

  const Result missing = RunShardctl(
      {"run", "-n", "2", "--restarts", "3", "--", "no-such-program"});
  EXPECT_EQ(missing.code, 127);
  EXPECT_FALSE(Has(missing.error, "restart")) << missing.error;
}

// The timeout is for all starts together.
TEST(RunOptionsTest, RestartsEndWithTheTimeout) {
  const Result result = RunShardctl(
      Script({"-n", "1", "--restarts", "1000000", "--timeout", "1"}, "exit 3"));
  EXPECT_TRUE(Has(result.error, "restart 2 of 1000000")) << result.error;
  EXPECT_NE(result.code, 0);
}

TEST(RunOptionsTest, BoundRanksHaveCpusOfTheirOwn) {
  cpu_set_t allowed;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  const auto list_of = [](const std::string& text) {
    return text.substr(text.find('\t') + 1);
  };
  // One rank has all there is.
  const std::string script = "grep Cpus_allowed_list /proc/self/status";
  const Result unbound = RunShardctl(Script({"-n", "1"}, script));
  for (const char* binding : {"none", "cores", "numa"}) {
    const Result result =
        RunShardctl(Script({"-n", "1", "--bind", binding}, script));
    EXPECT_EQ(result.code, 0) << result.error;
    EXPECT_EQ(list_of(result.out), list_of(unbound.out)) << binding;
  }
  // shardctl, which was held to one CPU, gives no others away.
  const auto first = std::to_string([&] {
    int cpu = 0;
    while (!CPU_ISSET(cpu, &allowed)) ++cpu;
    return cpu;
  }());
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(std::stoi(first), &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
  const Result bound =
      RunShardctl(Script({"-n", "1", "--bind", "cores"}, script));
  const Result too_few =
      RunShardctl(Script({"-n", "2", "--bind", "cores"}, "exit 0"));
  const Result numa =
      RunShardctl(Script({"-n", "2", "--bind", "numa"}, script));
  ASSERT_EQ(::sched_setaffinity(0, sizeof(allowed), &allowed), 0);
  EXPECT_EQ(list_of(bound.out), first + "\n");
  EXPECT_EQ(too_few.code, 126);
  EXPECT_TRUE(Has(too_few.error,
                  "--bind cores: 2 ranks are to run on this host, and there "
                  "are 1 cores that this process may use"))
      << too_few.error;
  EXPECT_EQ(numa.code, 0) << numa.error;
}

TEST(RunOptionsTest, WrongUse) {
  struct {
    std::vector<std::string> options;
    const char* said;
  } const cases[] = {
      {{}, "--ranks or --hosts is required"},
      {{"-n", "2", "--hosts", "a"}, "give one of them"},
      {{"-n", "2", "--via", "x {host}"}, "--via is for --hosts"},
      {{"-n", "2", "--master", "a"}, "--master is for --hosts"},
      {{"-n", "2", "--shardctl", "a"}, "--shardctl is for --hosts"},
      {{"-n", "2", "--host-timeout", "3"}, "--host-timeout is for --hosts"},
      {{"-n", "2", "--restarts", "-1"}, "--restarts"},
      {{"-n", "2", "--bind", "core"}, "--bind"},
      {{"-n", "2", "--env", "=x"}, "has no name"},
      {{"-n", "2", "--env", ""}, "has no name"},
      {{"-n", "2", "--name", "a&b"}, "a byte that a URL cannot have"},
      {{"--hosts", "-oProxyCommand=id"}, "is no name of a host"},
      {{"--hosts", "a,a"}, "'a' is there twice"},
      {{"--hosts", "a", "--via", "ssh"}, "does not have {host}"},
      {{"--hosts", "a", "--via", "ssh {host} 'x"}, "a quote that does not end"},
      {{"--hosts", "a", "--master", "x y"}, "is no place to meet"},
      {{"--hosts", "a", "--master", "ann@x"}, "is no place to meet"},
      {{"--hosts", "a", "--master", "x:0"}, "no port from 1 to 65535"},
      {{"--hosts", "a", "--master", "x:65536"}, "no port from 1 to 65535"},
      {{"--hosts", "a", "--master", "x:"}, "no port from 1 to 65535"},
      {{"--hosts", "a", "--master", "[::1"}, "is no place to meet"},
      {{"--hosts", "a", "--host-timeout", "nan"}, "is no number above 0"},
  };
  for (const auto& each : cases) {
    std::vector<std::string> arguments = each.options;
    arguments.insert(arguments.begin(), "run");
    arguments.insert(arguments.end(), {"--", "true"});
    const Result result = RunShardctl(arguments);
    EXPECT_EQ(result.code, 2) << result.error;
    EXPECT_TRUE(Has(result.error, each.said))
        << each.said << ": " << result.error;
    EXPECT_TRUE(Has(result.error, "see shardctl run --help")) << result.error;
  }
}

}  // namespace
}  // namespace run_options_test
