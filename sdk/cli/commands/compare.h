// SPDX-License-Identifier: Apache-2.0
//
// Pairs the tensors of two checkpoints, and compares their values.
//
// Tensors are paired by any of their names: where one side has a tied weight
// under two names and the other under one of these, the common name pairs them.
// Values are compared as numbers: -0 is 0, NaN is NaN whatever its bits, and a
// number is never NaN. Memory is bounded by two pieces (sdk/cli/checkpoint.h)
// and their values as doubles.

#ifndef SHARD_SDK_CLI_COMMANDS_COMPARE_H_
#define SHARD_SDK_CLI_COMMANDS_COMPARE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sdk/cli/checkpoint.h"
#include "sdk/cli/progress.h"

namespace shardctl {

struct Pairing {
  // Numbers of tensors in a and b, none of them an alias.
  std::vector<std::pair<size_t, size_t>> pairs;
  std::vector<std::string> only_in_a;  // Keys of tensors that the other lacks.
  std::vector<std::string> only_in_b;
  // Names that one side lacks, of tensors that both sides have.
  std::vector<std::string> names_only_in_a;
  std::vector<std::string> names_only_in_b;
};

// Pairs the tensors that `content` (SHARD_CONTENT_*) selects.
Pairing PairUp(const CheckpointView& a, const CheckpointView& b,
               int32_t content);

// a and b are the same when |a - b| <= absolute + relative * max(|a|, |b|).
struct Tolerance {
  double absolute = 0;
  double relative = 0;
};

struct Difference {
  int64_t differing = 0;  // Elements that differ.
  int64_t nans = 0;       // Those with NaN on one side.
  double max_abs = 0;     // |a - b| of the others.
  double max_rel = 0;     // |a - b| / max(|a|, |b|).
  int64_t first = -1;     // The first element that differs, and its values.
  double first_a = 0;
  double first_b = 0;

  void Add(int64_t index, double a, double b, const Tolerance& tolerance);
};

// Returns whether two tensors' elements can be compared: numbers with numbers,
// codes of q8 with codes of q8, and bytes with as many bytes of the same opaque
// type.
bool AreComparable(const TensorView& a, const TensorView& b);

// Compares the elements of two tensors; bytes of opaque types without the
// tolerance, which is of numbers. `progress` is set to `done` bytes of
// `total` and more. REQUIRES: AreComparable, and the same shape.
Difference CompareValues(const CheckpointView& a, const TensorView& in_a,
                         const CheckpointView& b, const TensorView& in_b,
                         const Tolerance& tolerance, uint64_t done,
                         uint64_t total, Progress* progress);

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_COMMANDS_COMPARE_H_
