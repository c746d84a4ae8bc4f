// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/commands/remote_ranks.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <string_view>
#include <utility>

namespace shardctl {

namespace {

// The port where the ranks meet is one of these. They lie below those that
// systems give to connections.
constexpr int kFirstPort = 29400;
constexpr int kPorts = 3000;

std::string WorkingFolder() {
  char path[PATH_MAX];
  return ::getcwd(path, sizeof(path)) != nullptr ? path : "/";
}

std::string OwnPath() {
  char path[PATH_MAX];
  const ssize_t size = ::readlink("/proc/self/exe", path, sizeof(path));
  return size > 0 ? std::string(path, static_cast<size_t>(size)) : "shardctl";
}

// Returns the variables that are passed on to all hosts: those of libshard.
std::vector<std::pair<std::string, std::string>> OwnVariables() {
  std::vector<std::pair<std::string, std::string>> variables;
  for (char** at = ::environ; *at != nullptr; ++at) {
    const std::string_view variable = *at;
    const size_t end = variable.find('=');
    if (end == std::string_view::npos) continue;
    const std::string_view name = variable.substr(0, end);
    if ((name.rfind("SHARD_", 0) != 0 && name != "OMP_NUM_THREADS") ||
        name == "SHARD_TERMINAL") {
      continue;
    }
    variables.emplace_back(name, variable.substr(end + 1));
  }
  return variables;
}

}  // namespace

Meeting ChooseMeeting(const RunOptions& options) {
  Meeting meeting;
  meeting.host =
      options.master_host.empty() ? options.hosts[0].name : options.master_host;
  meeting.port = options.master_port;
  if (meeting.port == 0) {
    const std::string random = RandomHex(4);
    meeting.port =
        kFirstPort +
        static_cast<int>(std::strtoul(random.c_str(), nullptr, 16) % kPorts);
  }
  const char* const secret = ::getenv("SHARD_TOKEN");
  if (secret == nullptr || *secret == '\0') meeting.secret = RandomHex(32);
  return meeting;
}

RemoteRanks::RemoteRanks(const RunOptions& options, const Meeting& meeting,
                         const std::string& job, int restart, int columns,
                         RankOutput* output)
    : output_(output) {
  HostJob shared;
  RankSetup& setup = shared.setup;
  setup.world_size =
      options.hosts.back().first_rank + options.hosts.back().ranks;
  setup.command = options.command;
  setup.binding = options.binding;
  setup.environment = OwnVariables();
  const auto set = [&](const std::string& name, const std::string& value) {
    setup.environment.emplace_back(name, value);
  };
  if (!meeting.secret.empty()) set("SHARD_TOKEN", meeting.secret);
  // A program with a secret file takes no token: --env SHARD_TOKEN= clears it.
  for (const auto& [name, value] : options.environment) set(name, value);
  set("SHARD_RESTART_COUNT", std::to_string(restart));
  set("MASTER_ADDR", meeting.host);
  set("MASTER_PORT", std::to_string(meeting.port));
  shared.folder = WorkingFolder();
  shared.silence_seconds = options.host_timeout;

  const bool is_ipv6 = meeting.host.find(':') != std::string::npos;
  const std::string where =
      "tcp://" + (is_ipv6 ? "[" + meeting.host + "]" : meeting.host) + ":" +
      std::to_string(meeting.port) + "?job=" + job +
      "&restart=" + std::to_string(restart) + "&host=";
  const std::vector<std::string> agent = {
      options.shardctl.empty() ? OwnPath() : options.shardctl, "agent"};
  const std::string via =
      options.via.empty() ? SshTemplate(options.host_timeout) : options.via;
  for (const HostRanks& host : options.hosts) {
    HostJob own = shared;
    own.setup.first_rank = host.first_rank;
    own.setup.ranks = host.ranks;
    own.setup.environment.emplace_back("SHARD_RENDEZVOUS", where + host.name);
    if (host.first_rank == 0 && columns > 0) {
      const int prefix = static_cast<int>(host.name.size()) + 5;  // "[a:0] "
      own.setup.columns = std::max(20, columns - prefix);
    }
    std::string problem;  // None: the options were checked.
    hosts_.push_back(std::make_unique<RemoteHost>(
        host, CommandFor(via, host.target, agent, &problem), own,
        options.host_timeout, output));
  }
}

std::vector<RankFailure> RemoteRanks::Advance() {
  if (output_->full() != paused_) {
    paused_ = !paused_;
    for (const auto& host : hosts_) host->Pause(paused_);
  }
  std::vector<RankFailure> failures;
  for (const auto& host : hosts_) host->Advance(&failures);
  return failures;
}

int RemoteRanks::alive() const {
  int alive = 0;
  for (const auto& host : hosts_) alive += host->alive();
  return alive;
}

bool RemoteRanks::done() const {
  return std::all_of(hosts_.begin(), hosts_.end(), [](const auto& host) {
    return host->closed() && host->alive() == 0;
  });
}

void RemoteRanks::Signal(int signal) {
  for (const auto& host : hosts_) host->Signal(signal);
}

void RemoteRanks::AddToPoll(std::vector<pollfd>* entries) const {
  for (const auto& host : hosts_) host->AddToPoll(entries);
}

std::optional<Clock::time_point> RemoteRanks::NextTime() const {
  std::optional<Clock::time_point> next;
  for (const auto& host : hosts_) {
    const auto at = host->NextTime();
    if (at && (!next || *at < *next)) next = at;
  }
  return next;
}

}  // namespace shardctl
