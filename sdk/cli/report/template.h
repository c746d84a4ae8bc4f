// SPDX-License-Identifier: Apache-2.0
//
// The page that `shardctl report` fills in: template.html, as it is in this
// folder, put into the program when that is built.

#ifndef SHARD_SDK_CLI_REPORT_TEMPLATE_H_
#define SHARD_SDK_CLI_REPORT_TEMPLATE_H_

#include <map>
#include <string>
#include <string_view>

namespace shardctl {

extern const std::string_view kReportTemplate;

// Replaces each {{name}} by the value of that name; what a value holds is not
// replaced again. Throws Failure when a name has no value, or a value no place.
std::string FillTemplate(std::string_view page,
                         const std::map<std::string, std::string>& values);

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_REPORT_TEMPLATE_H_
