// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/table.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "sdk/cli/text.h"

namespace shardctl {

Table::Table(std::vector<std::string> head) {
  for (std::string& name : head) {
    right_.push_back(name[0] == '>');
    if (right_.back()) name.erase(0, 1);
  }
  rows_.push_back(std::move(head));
}

void Table::Add(std::vector<std::string> cells) {
  rows_.push_back(std::move(cells));
}

std::string Table::Text(const std::string& indent) const {
  std::vector<size_t> widths(right_.size(), 0);
  for (const auto& row : rows_) {
    for (size_t c = 0; c < row.size(); ++c) {
      widths[c] = std::max(widths[c], Width(row[c]));
    }
  }
  std::string text;
  for (size_t r = 0; r < rows_.size(); ++r) {
    std::string line = indent;
    for (size_t c = 0; c < rows_[r].size(); ++c) {
      const std::string padding(widths[c] - Width(rows_[r][c]), ' ');
      if (c > 0) line += "  ";
      line += right_[c] ? padding + rows_[r][c] : rows_[r][c] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    if (r == 0) line = OutStyle().bold + line + OutStyle().reset;
    text += line + "\n";
  }
  return text;
}

const Style& OutStyle() {
  static const Style style = [] {
    const char* const no_color = std::getenv("NO_COLOR");
    if (::isatty(STDOUT_FILENO) != 1 ||
        (no_color != nullptr && no_color[0] != '\0')) {
      return Style();
    }
    return Style{"\x1b[1m",  "\x1b[2m",  "\x1b[31m",
                 "\x1b[32m", "\x1b[33m", "\x1b[0m"};
  }();
  return style;
}

}  // namespace shardctl
