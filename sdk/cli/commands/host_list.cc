// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/commands/host_list.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

namespace shardctl {

namespace {

constexpr size_t kMaxHosts = 1024;
constexpr size_t kMaxHostName = 255;  // Of DNS.
constexpr int kMaxRanks = 512;        // Of a host, as for --ranks.

bool IsAlphanumeric(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         (c >= '0' && c <= '9');
}

// `more`: bytes that a name may have, too.
bool IsName(std::string_view text, std::string_view more) {
  return !text.empty() && text.size() <= kMaxHostName && text[0] != '-' &&
         std::all_of(text.begin(), text.end(), [&](char c) {
           return IsAlphanumeric(c) || more.find(c) != std::string_view::npos;
         });
}

// Reads NAME[:RANKS] or [ADDRESS][:RANKS]. Returns what is wrong.
std::string ReadHost(std::string_view text, HostRanks* host) {
  const size_t at = text.find('@');
  const std::string_view user =
      at == std::string_view::npos ? "" : text.substr(0, at);
  std::string_view rest =
      at == std::string_view::npos ? text : text.substr(at + 1);
  const bool is_ipv6 = !rest.empty() && rest[0] == '[';
  const size_t end = rest.find(is_ipv6 ? ']' : ':');
  if (is_ipv6 && end == std::string_view::npos) return "has no ']'";
  std::string_view name = rest.substr(is_ipv6 ? 1 : 0, end - (is_ipv6 ? 1 : 0));
  rest.remove_prefix(std::min(rest.size(), is_ipv6 ? end + 1 : end));
  if (at != std::string_view::npos && !IsName(user, "._-")) {
    return "has no user before the '@'";
  }
  if (!IsName(name, is_ipv6 ? ":.%" : "._-")) {
    return "is no name of a host: letters, digits, '.', '_' and '-', not at "
           "the beginning; an address of IPv6 is written [fd00::7]";
  }
  host->name = name;
  host->target =
      user.empty() ? host->name : std::string(user) + "@" + host->name;
  if (rest.empty()) return "";
  const bool has_colon = rest[0] == ':';
  rest.remove_prefix(1);
  const bool is_number = has_colon && !rest.empty() && rest.size() <= 4 &&
                         std::all_of(rest.begin(), rest.end(), [](char c) {
                           return c >= '0' && c <= '9';
                         });
  host->ranks = is_number ? std::atoi(std::string(rest).c_str()) : 0;
  if (host->ranks < 1 || host->ranks > kMaxRanks) {
    return "has no number of ranks from 1 to " + std::to_string(kMaxRanks) +
           " behind the name, as node-1:2";
  }
  return "";
}

void ReplaceAll(std::string* text, const std::string& from,
                const std::string& to) {
  for (size_t at = text->find(from); at != std::string::npos;
       at = text->find(from, at + to.size())) {
    text->replace(at, from.size(), to);
  }
}

}  // namespace

std::vector<HostRanks> ReadHosts(const std::string& text,
                                 std::string* problem) {
  problem->clear();
  std::vector<HostRanks> hosts;
  int ranks = 0;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    begin = end + 1;
    HostRanks host;
    host.first_rank = ranks;
    *problem = ReadHost(item, &host);
    if (!problem->empty()) {
      *problem = "'" + item + "' " + *problem;
      return {};
    }
    for (const HostRanks& other : hosts) {
      if (other.name != host.name) continue;
      *problem = "'" + host.name +
                 "' is there twice; give all of its ranks at "
                 "once, as " +
                 host.name + ":" + std::to_string(other.ranks + host.ranks);
      return {};
    }
    ranks += host.ranks;
    hosts.push_back(std::move(host));
    if (hosts.size() > kMaxHosts) {
      *problem = "more than " + std::to_string(kMaxHosts) + " hosts";
      return {};
    }
  }
  return hosts;
}

std::vector<std::string> SplitWords(const std::string& text,
                                    std::string* problem) {
  problem->clear();
  std::vector<std::string> words;
  bool in_word = false;
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool is_space = c == ' ' || c == '\t' || c == '\n';
    if (quote == 0 && is_space) {
      in_word = false;
      continue;
    }
    if (!in_word) words.emplace_back();
    in_word = true;
    if (c == '\\' && quote != '\'') {
      if (++i == text.size()) {
        *problem = "'" + text + "' ends with a backslash";
        return {};
      }
      words.back() += text[i];
    } else if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
    } else if (c == quote) {
      quote = 0;
    } else {
      words.back() += c;
    }
  }
  if (quote != 0) {
    *problem = "'" + text + "' has a quote that does not end";
    return {};
  }
  return words;
}

std::string QuoteForShell(const std::vector<std::string>& words) {
  constexpr std::string_view kPlain = "._-/=:@%+,";
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += ' ';
    const bool is_plain =
        !word.empty() && std::all_of(word.begin(), word.end(), [&](char c) {
          return IsAlphanumeric(c) || kPlain.find(c) != std::string_view::npos;
        });
    if (is_plain) {
      text += word;
      continue;
    }
    text += '\'';
    for (const char c : word) {
      if (c == '\'') {
        text += "'\\''";
      } else {
        text += c;
      }
    }
    text += '\'';
  }
  return text;
}

std::string SshTemplate(double timeout_seconds) {
  const double seconds = std::clamp(std::ceil(timeout_seconds), 1.0, 1e6);
  return "ssh -T -x -oBatchMode=yes -oConnectTimeout=" +
         std::to_string(static_cast<int>(seconds)) + " {host} {command}";
}

std::vector<std::string> CommandFor(const std::string& via_template,
                                    const std::string& target,
                                    const std::vector<std::string>& command,
                                    std::string* problem) {
  std::vector<std::string> words = SplitWords(via_template, problem);
  if (!problem->empty()) return {};
  if (via_template.find("{host}") == std::string::npos) {
    *problem = "'" + via_template +
               "' does not have {host}, which becomes the name of each host";
    return {};
  }
  bool has_command = false;
  for (std::string& word : words) {
    ReplaceAll(&word, "{host}", target);
    if (word.find("{command}") == std::string::npos) continue;
    has_command = true;
    ReplaceAll(&word, "{command}", QuoteForShell(command));
  }
  if (!has_command) words.insert(words.end(), command.begin(), command.end());
  return words;
}

}  // namespace shardctl
