// SPDX-License-Identifier: Apache-2.0
//
// A table as lines of text: columns as wide as their widest cell, numbers to
// the right. The first row is the head; on a terminal it is bold.

#ifndef SHARD_SDK_CLI_TABLE_H_
#define SHARD_SDK_CLI_TABLE_H_

#include <string>
#include <vector>

namespace shardctl {

class Table {
 public:
  // A column of numbers has a name that begins with '>', which is not shown.
  explicit Table(std::vector<std::string> head);

  // Adds a row. REQUIRES: as many cells as columns; texts that were read from a
  // file are Shown.
  void Add(std::vector<std::string> cells);

  bool empty() const { return rows_.size() == 1; }

  // Returns the lines. Each begins with `indent`; none ends with spaces.
  std::string Text(const std::string& indent = "") const;

 private:
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

// The terminal's control sequences for the look of text, each "" where stdout
// is no terminal or NO_COLOR is set: see https://no-color.org.
struct Style {
  const char* bold = "";
  const char* dim = "";
  const char* red = "";
  const char* green = "";
  const char* yellow = "";
  const char* reset = "";
};
const Style& OutStyle();

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_TABLE_H_
