// SPDX-License-Identifier: Apache-2.0
//
// `shardctl run`: reads its options. And the command that it starts on hosts.

#include <stdlib.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sdk/cli/command.h"
#include "sdk/cli/commands/host_agent.h"
#include "sdk/cli/commands/host_list.h"
#include "sdk/cli/commands/run.h"
#include "sdk/cli/text.h"

namespace shardctl {

namespace {

constexpr const char* kRunHelp =
    R"(
Each rank finds its place in SHARD_RANK, SHARD_WORLD_SIZE, SHARD_LOCAL_RANK,
SHARD_LOCAL_WORLD_SIZE and SHARD_RENDEZVOUS; a program that opens the
communicator "env:" needs no more. OMP_NUM_THREADS is set to the CPUs per rank
unless it is set already. SHARD_RESTART_COUNT counts the starts of the job, from
0.

With several ranks each line they print has "[rank] " in front, and their input
is empty. When one rank fails, the others have 1 s to end, are then told to
(SIGTERM), and killed 5 s later. SIGINT, SIGTERM and SIGHUP are passed on; the
second one kills. What several ranks leave running in their process groups is
killed at the end. When nobody reads the output, the ranks that print wait.

With --restarts all ranks are then started again. A program that saves
checkpoints and begins with the last one goes on from there.

With --hosts the ranks run on other hosts, which ssh reaches without a password,
and lines have "[host:rank] " in front. shardctl has to be at the same path
there, and the folder in which it is started has to exist. Ranks get the
variables named SHARD_*, those of --env, and the rest of their host. They meet at
a port of the first host, with a secret of their own (SHARD_TOKEN). No rank
outlives shardctl, or the connection. The words that start shardctl there follow
the command of --via, or are its {command}, as text for a shell.

--bind cores gives each rank as many cores of its own; --bind numa the CPUs and
the memory of a NUMA node, or a share of the nodes.

Exit code: 0 when all ranks ended with 0; else that of the rank that failed, or
128 + its signal; 124 after --timeout; 127 when there is no such program, 126
when it cannot be run; 255 when a host cannot be reached or is lost. When several
fail within 1 s, one that was killed comes before one that ended, and that before
one that ended with 65 (SHARD_RANK_LOST), as a program does that ends because of
another rank.

Examples: shardctl run -n 4 -- ./train --steps 1000
  shardctl run --hosts node-1:2,node-2:2 --restarts 3 -- ./train --steps 1000
  shardctl run --hosts web1,web2 --via 'docker exec -i {host}' -- train)";

// The options as they are given, where RunOptions has another form.
struct RunArguments {
  RunOptions run;
  std::string hosts;
  std::string master;
  std::string binding = "none";
  std::vector<std::string> environment;
};

// Names go into URLs, with what the user wants them to be.
std::string CheckName(const std::string& name) {
  if (name.find(':') != std::string::npos) {
    return "'" + name + "' has a ':'; give a name, not a URL";
  }
  if (name.find_first_of("?&=# ") != std::string::npos) {
    return "'" + name + "' has a byte that a URL cannot have in a name";
  }
  return "";
}

std::string CheckHosts(const std::string& hosts) {
  std::string problem;
  ReadHosts(hosts, &problem);
  return problem;
}

std::string CheckVia(const std::string& via) {
  std::string problem;
  CommandFor(via, "host", {"shardctl"}, &problem);
  return problem;
}

std::string CheckVariable(const std::string& variable) {
  return variable.empty() || variable[0] == '='
             ? "'" + variable + "' has no name; give NAME or NAME=VALUE"
             : "";
}

// Reads HOST[:PORT] or [ADDRESS][:PORT], the place of a meeting.
std::string ReadMaster(const std::string& text, RunOptions* run) {
  const bool is_ipv6 = !text.empty() && text[0] == '[';
  const size_t host_end = text.find(is_ipv6 ? "]" : ":");
  const size_t colon = text.find(':', is_ipv6 ? host_end : 0);
  std::string problem;
  const auto hosts = ReadHosts(text.substr(0, colon), &problem);
  if (!problem.empty() || hosts.size() != 1 ||
      hosts[0].target != hosts[0].name) {
    return "'" + text +
           "' is no place to meet; give HOST or HOST:PORT, and an address of "
           "IPv6 as [fd00::7]:29400";
  }
  run->master_host = hosts[0].name;
  if (colon == std::string::npos) return "";
  const std::string port = text.substr(colon + 1);
  const bool is_number =
      port.find_first_not_of("0123456789") == std::string::npos;
  run->master_port =
      is_number && port.size() <= 5 ? std::atoi(port.c_str()) : 0;
  return run->master_port >= 1 && run->master_port <= 65535
             ? ""
             : "'" + port + "' is no port from 1 to 65535";
}

int WrongUse(const std::string& problem) {
  std::fprintf(stderr, "shardctl run: %s; see shardctl run --help\n",
               ShownMessage(problem).c_str());
  return kUsage;
}

int RunWith(const Command& command, RunArguments* arguments) {
  RunOptions* const run = &arguments->run;
  const bool has_ranks = command.WasGiven("--ranks");
  if (!has_ranks && arguments->hosts.empty()) {
    return WrongUse("--ranks or --hosts is required");
  }
  if (has_ranks && !arguments->hosts.empty()) {
    return WrongUse(
        "--ranks counts ranks of this host, and --hosts has a number for each "
        "of its hosts, as node-1:2; give one of them");
  }
  for (const char* const option :
       {"--via", "--master", "--shardctl", "--host-timeout"}) {
    if (arguments->hosts.empty() && command.WasGiven(option)) {
      return WrongUse(std::string(option) + " is for --hosts");
    }
  }
  std::string problem;
  if (!arguments->hosts.empty()) {
    run->hosts = ReadHosts(arguments->hosts, &problem);
  }
  if (!arguments->master.empty()) ReadMaster(arguments->master, run);
  if (arguments->binding == "cores") run->binding = Binding::kCores;
  if (arguments->binding == "numa") run->binding = Binding::kNuma;
  for (const std::string& variable : arguments->environment) {
    const size_t end = variable.find('=');
    const std::string name = variable.substr(0, end);
    const char* const own =
        end == std::string::npos ? ::getenv(name.c_str()) : nullptr;
    if (end == std::string::npos && own == nullptr) {
      return WrongUse("--env " + name + ": there is no such variable here");
    }
    run->environment.emplace_back(
        name, own != nullptr ? own : variable.substr(end + 1));
  }
  return Run(*run);
}

}  // namespace

void AddRun(CommandLine* line) {
  const auto arguments = std::make_shared<RunArguments>();
  RunOptions* const run = &arguments->run;
  Command command = line->AddCommand(
      "run", "Start the ranks of a program, here or on several hosts",
      kRunHelp);
  command.AddOption("-n,--ranks", &run->ranks, "How many ranks to start here")
      .Between(1, 512);
  command
      .AddOption("--hosts", &arguments->hosts,
                 "Hosts and their numbers of ranks: node-1:2,node-2:2")
      .Check(CheckHosts);
  command
      .AddOption("--via", &run->via,
                 "Command that reaches {host}, as 'docker exec -i {host}' "
                 "(default: ssh)")
      .Check(CheckVia);
  command
      .AddOption("--master", &arguments->master,
                 "HOST or HOST:PORT where the ranks of several hosts meet "
                 "(default: the first host, a port from 29400 to 32399)")
      .Check([](const std::string& text) {
        RunOptions unused;
        return ReadMaster(text, &unused);
      });
  command.AddOption("--shardctl", &run->shardctl,
                    "Path of shardctl on the hosts (default: the one here)");
  command
      .AddOption("--host-timeout", &run->host_timeout,
                 "Seconds to reach a host, and of silence after which it is "
                 "lost")
      .Positive()
      .ShowDefault();
  command
      .AddOption("--restarts", &run->restarts,
                 "How often to start all ranks again after a failure")
      .Between(0, 1000000)
      .ShowDefault();
  command
      .AddOption("--bind", &arguments->binding,
                 "Pin ranks to CPUs: cores, numa or none")
      .OneOf({"none", "cores", "numa"})
      .ShowDefault();
  command
      .AddOption("--env", &arguments->environment,
                 "NAME or NAME=VALUE: a variable for all ranks")
      .Check(CheckVariable);
  command
      .AddOption("--timeout", &run->timeout,
                 "End the run after so many seconds (default: no limit)")
      .Positive();
  command
      .AddOption("--name", &run->name,
                 "Name of the rendezvous point (default: a random one)")
      .Check(CheckName);
  command.AddOption("command", &run->command, "The program and its arguments")
      .Required();
  // From the program on, all options are the program's, with or without "--".
  command.EndOptionsAtPositionals();
  command.Runs(
      [command, arguments] { return RunWith(command, arguments.get()); });
}

void AddAgent(CommandLine* line) {
  Command command = line->AddCommand(
      "agent", "Start the ranks of this host, for a `shardctl run --hosts`",
      "\nExample: shardctl agent, which `shardctl run --hosts` starts");
  command.Hide();
  command.Runs(RunAgent);
}

}  // namespace shardctl
