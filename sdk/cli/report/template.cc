// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/report/template.h"

#include <set>

#include "sdk/cli/handles.h"

namespace shardctl {

std::string FillTemplate(std::string_view page,
                         const std::map<std::string, std::string>& values) {
  std::string filled;
  std::set<std::string> used;
  for (;;) {
    const size_t begin = page.find("{{");
    filled += page.substr(0, begin);
    if (begin == std::string_view::npos) break;
    page.remove_prefix(begin + 2);
    const size_t end = page.find("}}");
    const std::string name(page.substr(0, end));
    const auto value = values.find(name);
    if (end == std::string_view::npos || value == values.end()) {
      throw Failure("the template has a place '" + name + "' without a value");
    }
    filled += value->second;
    used.insert(name);
    page.remove_prefix(end + 2);
  }
  for (const auto& [name, value] : values) {
    if (!used.contains(name)) {
      throw Failure("the template has no place for '" + name + "'");
    }
  }
  return filled;
}

}  // namespace shardctl
