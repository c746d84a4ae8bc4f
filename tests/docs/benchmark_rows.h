// SPDX-License-Identifier: Apache-2.0
//
// The table of docs/benchmarks.md, for tests that count the bytes it has.

#ifndef SHARD_TESTS_DOCS_BENCHMARK_ROWS_H_
#define SHARD_TESTS_DOCS_BENCHMARK_ROWS_H_

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace shard::testing {

struct BenchmarkRow {
  std::string name;   // "muon high, 4096 x 4096"
  std::string bytes;  // Per element: "36", or "40 and 12".
};

// Returns the rows whose case begins with `begin`.
inline std::vector<BenchmarkRow> BenchmarkRows(const std::string& begin) {
  std::ifstream file("docs/benchmarks.md");
  std::vector<BenchmarkRow> rows;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("| `")) continue;
    line.erase(std::remove(line.begin(), line.end(), '`'), line.end());
    std::vector<std::string> cells;
    for (size_t at = 0; at != std::string::npos && at + 2 < line.size();) {
      const size_t next = line.find(" |", at + 1);
      cells.push_back(line.substr(at + 2, next - at - 2));
      at = next == std::string::npos ? next : next + 1;
    }
    if (cells.size() < 3 || !cells[0].starts_with(begin)) continue;
    rows.push_back({std::move(cells[0]), std::move(cells[2])});
  }
  return rows;
}

}  // namespace shard::testing

#endif  // SHARD_TESTS_DOCS_BENCHMARK_ROWS_H_
