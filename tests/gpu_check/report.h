// SPDX-License-Identifier: Apache-2.0
//
// What a part of gpu_check prints: a JSON object per line, each a check that
// holds or not, or a number.
//
//   {"part": "bits", "check": "adamw, bf16", "ok": true}
//   {"part": "bandwidth", "check": "adamw f32, 1 tensor", "value": 0.93,
//    "unit": "of a copy"}

#ifndef SHARD_TESTS_GPU_CHECK_REPORT_H_
#define SHARD_TESTS_GPU_CHECK_REPORT_H_

#include <string>
#include <string_view>

namespace shard::gpu_check {

class Report {
 public:
  explicit Report(std::string_view part) : part_(part) {}

  // `why`: what is wrong where `ok` is false.
  void Check(std::string_view check, bool ok, std::string_view why = "");
  void Number(std::string_view check, double value, std::string_view unit);
  void Text(std::string_view check, std::string_view text);

  bool ok() const { return ok_; }

 private:
  const std::string part_;
  bool ok_ = true;
};

}  // namespace shard::gpu_check

#endif  // SHARD_TESTS_GPU_CHECK_REPORT_H_
