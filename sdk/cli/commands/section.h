// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_SDK_CLI_COMMANDS_SECTION_H_
#define SHARD_SDK_CLI_COMMANDS_SECTION_H_

#include <string>
#include <utility>
#include <vector>

#include "sdk/cli/commands/machine.h"

namespace shardctl {

// Adds findings of one section.
class Section {
 public:
  Section(std::string name, std::vector<Finding>* findings)
      : name_(std::move(name)), findings_(findings) {}

  void Ok(const std::string& name, const std::string& found) {
    findings_->push_back({name_, name, Finding::kOk, found, ""});
  }
  void Info(const std::string& name, const std::string& found) {
    findings_->push_back({name_, name, Finding::kInfo, found, ""});
  }
  void Warn(const std::string& name, const std::string& found,
            const std::string& remedy) {
    findings_->push_back({name_, name, Finding::kWarn, found, remedy});
  }
  void Say(bool ok, const std::string& name, const std::string& found,
           const std::string& remedy) {
    ok ? Ok(name, found) : Warn(name, found, remedy);
  }

 private:
  const std::string name_;
  std::vector<Finding>* const findings_;
};

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_COMMANDS_SECTION_H_
