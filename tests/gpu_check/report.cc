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

Judged WhatIsJudged(std::string_view device, std::int64_t elements) {
  if (elements < kWholeElements) return {};
  const auto is = [device](const char* name) {
    return device.find(name) != std::string_view::npos;
  };
  return {.speeds = is("H100") || is("H200"), .hidden = true};
}

double HiddenShare(double pass, double step, double both) {
  return (pass + step - both) / step;
}

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

void Report::Judge(std::string_view check, double value, std::string_view unit,
                   double least, double most) {
  const auto judge = [&](const char* bound, double number, bool holds) {
    Check(std::string(check) + " is " + bound + " " + std::to_string(number) +
              " " + std::string(unit),
          holds, std::to_string(value));
  };
  // No comparison holds for a NaN.
  if (least > 0) judge("at least", least, value >= least);
  if (most > 0) judge("at most", most, value <= most);
}

void Report::Text(std::string_view check, std::string_view text) {
  Print({{"part", part_}, {"check", check}, {"text", text}});
}

}  // namespace shard::gpu_check
