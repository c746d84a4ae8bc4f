// SPDX-License-Identifier: Apache-2.0

#include "tests/gpu_check/report.h"

#include <cstdio>
#include <nlohmann/json.hpp>

namespace shard::gpu_check {

namespace {

void Print(const nlohmann::ordered_json& line) {
  std::printf("%s\n", line.dump().c_str());
  // What a part has found is there when it is ended.
  std::fflush(stdout);
}

}  // namespace

void Report::Check(std::string_view check, bool ok, std::string_view why) {
  nlohmann::ordered_json line = {{"part", part_}, {"check", check}, {"ok", ok}};
  if (!ok) line["why"] = why;
  Print(line);
  ok_ = ok_ && ok;
}

void Report::Number(std::string_view check, double value,
                    std::string_view unit) {
  Print({{"part", part_}, {"check", check}, {"value", value}, {"unit", unit}});
}

void Report::Text(std::string_view check, std::string_view text) {
  Print({{"part", part_}, {"check", check}, {"text", text}});
}

}  // namespace shard::gpu_check
