// SPDX-License-Identifier: Apache-2.0
//
// The hosts of `shardctl run --hosts`, and the commands that reach them.
// Pure functions.

#ifndef SHARD_SDK_CLI_COMMANDS_HOST_LIST_H_
#define SHARD_SDK_CLI_COMMANDS_HOST_LIST_H_

#include <string>
#include <vector>

namespace shardctl {

struct HostRanks {
  std::string target;  // For ssh: with the user, as "ann@node-1".
  std::string name;    // Without: names the host in output and errors.
  int first_rank = 0;
  int ranks = 1;
};

// Reads "ann@node-1:2,node-2,[fd00::7]:2": a host's ranks follow its name, and
// are 1 where they are missing. A name has no byte that a shell, ssh or a URL
// could take for anything else. Sets *problem on a mistake, else to "".
std::vector<HostRanks> ReadHosts(const std::string& text, std::string* problem);

// Splits a command as a shell does: at spaces, but for those in '' or "" or
// behind a backslash. Nothing else has a meaning. Sets *problem as ReadHosts.
std::vector<std::string> SplitWords(const std::string& text,
                                    std::string* problem);

// Returns words as text that a POSIX shell reads as these words.
std::string QuoteForShell(const std::vector<std::string>& words);

// The command that reaches a host, unless --via gives another one. A password
// cannot be asked for, because several commands run at once.
std::string SshTemplate(double timeout_seconds);

// Returns the command that runs `command` on a host. In the template's words,
// "{host}" is the host's target, and "{command}" the command as text for a
// shell, as ssh wants it. Without "{command}" the command's words follow the
// template's, as `docker exec` wants them. Sets *problem as ReadHosts.
std::vector<std::string> CommandFor(const std::string& via_template,
                                    const std::string& target,
                                    const std::vector<std::string>& command,
                                    std::string* problem);

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_COMMANDS_HOST_LIST_H_
