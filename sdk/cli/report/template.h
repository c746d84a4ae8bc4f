// SPDX-License-Identifier: Apache-2.0
//
// The page that `shardctl report` fills in: the file template.html, put into
// the program by the build.

#ifndef SHARD_SDK_CLI_REPORT_TEMPLATE_H_
#define SHARD_SDK_CLI_REPORT_TEMPLATE_H_

#include <map>
#include <string>
#include <string_view>

namespace shardctl {

extern const std::string_view kReportTemplate;

// Replaces each {{name}} by the value of that name; a {{name}} within a value
// is not replaced. Throws Failure when a name has no value, or a value no
// place.
std::string FillTemplate(std::string_view page,
                         const std::map<std::string, std::string>& values);

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_REPORT_TEMPLATE_H_
