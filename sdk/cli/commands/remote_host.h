// SPDX-License-Identifier: Apache-2.0
//
// RemoteHost: the connection to the agent of one host.

#ifndef SHARD_SDK_CLI_COMMANDS_REMOTE_HOST_H_
#define SHARD_SDK_CLI_COMMANDS_REMOTE_HOST_H_

#include <poll.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sdk/cli/commands/host_list.h"
#include "sdk/cli/commands/host_wire.h"
#include "sdk/cli/commands/rank_output.h"
#include "sdk/cli/commands/ranks.h"

namespace shardctl {

// Threads: one.
class RemoteHost {
 public:
  // Starts `command`, which runs the agent. `timeout` is that to reach the host
  // and of silence, in seconds. `output` outlives this.
  RemoteHost(const HostRanks& host, const std::vector<std::string>& command,
             const HostJob& job, double timeout, RankOutput* output);
  // Kills the command if it has not ended.
  ~RemoteHost();
  RemoteHost(const RemoteHost&) = delete;
  RemoteHost& operator=(const RemoteHost&) = delete;

  // Reads what the agent has sent, and appends failures.
  void Advance(std::vector<RankFailure>* failures);

  int alive() const { return alive_; }
  // Returns whether the command has ended, or was given up.
  bool closed() const { return pid_ < 0; }

  // Passes a signal on to all ranks of the host. SIGKILL also begins the time
  // that the agent has to say that they have ended.
  void Signal(int signal);

  // Tells the agent to read no more output, or to go on.
  void Pause(bool pause);

  void AddToPoll(std::vector<pollfd>* entries) const;
  std::optional<Clock::time_point> NextTime() const;

 private:
  void Send(Message message, std::string_view body = "");
  void Write();
  void Read(std::vector<RankFailure>* failures);
  // Takes the lines before the greeting. Returns the bytes after it.
  std::string_view TakeNoise(std::string_view bytes);
  void Take(Message message, std::string_view body,
            std::vector<RankFailure>* failures);
  void KeepTime(std::vector<RankFailure>* failures);
  // Records that no more will come from the host.
  void Lose(const std::string& why, std::vector<RankFailure>* failures);
  void NoticeEnd(std::vector<RankFailure>* failures);
  void CloseInput();
  void Close();

  const HostRanks host_;
  const std::string program_;  // Of the command, for messages.
  const double timeout_;
  RankOutput* const output_;
  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
  std::string unsent_;
  std::string noise_;  // An incomplete line before the greeting.
  size_t noise_bytes_ = 0;
  FrameReader frames_;
  std::vector<bool> has_ended_;  // Of the host's ranks.
  int alive_ = 0;
  bool greeted_ = false;
  bool done_ = false;  // The agent has said so, or the host is lost.
  std::optional<Clock::time_point> answer_by_;  // To the start, or to a ping.
  std::optional<Clock::time_point> ping_at_;
  std::optional<Clock::time_point> killed_by_;  // After SIGKILL.
  std::optional<Clock::time_point> close_by_;   // The command is at its end.
};

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_COMMANDS_REMOTE_HOST_H_
