// SPDX-License-Identifier: Apache-2.0
//
// What a part of gpu_check prints: a JSON object per line, each a check that
// holds or not, or a number; and the judgement of numbers.
//
//   {"part": "bits", "check": "adamw, bf16", "ok": true}
//   {"part": "bandwidth", "check": "adamw f32, 1 tensor", "value": 0.93,
//    "unit": "of a copy"}

#ifndef SHARD_TESTS_GPU_CHECK_REPORT_H_
#define SHARD_TESTS_GPU_CHECK_REPORT_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace shard::gpu_check {

// The numbers that are checked, and not only told.
struct Judged {
  // The speeds of docs/benchmarks.md: on the devices that have targets.
  bool speeds = false;
  // The share that a backward pass hides: on every GPU, since that is a
  // question of order and not of speed.
  bool hidden = false;
};

// Returns what is judged of a device, by its description, with tensors of that
// many elements in all. With less than kWholeElements nothing is: they are for
// a fake of the driver, which has the time for few.
inline constexpr std::int64_t kWholeElements = std::int64_t{1} << 30;
Judged WhatIsJudged(std::string_view device, std::int64_t elements);

// Returns the part of a step that passes during a backward pass, by the seconds
// of each alone and of both together.
double HiddenShare(double pass, double step, double both);

class Report {
 public:
  explicit Report(std::string_view part) : part_(part) {}

  // `why`: what is wrong where `ok` is false.
  void Check(std::string_view check, bool ok, std::string_view why = "");
  void Number(std::string_view check, double value, std::string_view unit);
  // Checks that a number is within its bounds. 0 is no bound.
  void Judge(std::string_view check, double value, std::string_view unit,
             double least, double most);
  void Text(std::string_view check, std::string_view text);

  bool ok() const { return ok_; }

 private:
  const std::string part_;
  bool ok_ = true;
};

}  // namespace shard::gpu_check

#endif  // SHARD_TESTS_GPU_CHECK_REPORT_H_
