// SPDX-License-Identifier: Apache-2.0
//
// Matching: from which stored tensor each entry of a training state is loaded,
// and what does not fit. A pure function of both sides, so that all ranks come
// to the same without asking.
//
// Names match under CleanTensorName, so that what a framework saved with its
// wrappers in the names is found. A tied parameter is found under any of its
// names.

#ifndef SHARD_CORE_STATE_MATCH_H_
#define SHARD_CORE_STATE_MATCH_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/checkpoint/store/tensor_store.h"
#include "core/flat/plan.h"
#include "core/state/state_entries.h"

namespace shard {

struct LoadRules {
  // Missing and unexpected keys are an error that lists all of both.
  bool strict = true;
  // Elements of another type are converted: f32, bf16, f16 and f64, and states
  // in q8, into each other, to nearest. Where one side has master weights and
  // the other has none, they stand for the parameter and the other way around.
  bool convert = false;
  // Keys of the store go without one leading "module.", as DDP writes it.
  bool strip_leading_module = false;
};

// Where an entry comes from.
struct EntryMatch {
  enum class Kind : uint8_t {
    kNone,     // Missing; or nothing is read: an alias, an empty tensor.
    kSame,     // The stored elements as they are.
    kConvert,  // One float type to another.
    kDecode,   // From q8; `scales` has its scales.
    kEncode,   // To q8, codes and scales; an entry of scales has kNone.
  };
  Kind kind = Kind::kNone;
  size_t tensor = 0;  // In the store.
  size_t scales = 0;
};

struct MatchReport {
  int64_t loaded = 0;     // Entries that are read.
  int64_t converted = 0;  // Of them, as another type.
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;
  // What has another shape, or another type and may not be converted: a line
  // each, with both.
  std::vector<std::string> mismatched;

  // {"missing": [...], "unexpected": [...], "mismatched": [...]}
  std::string ToJson() const;
};

// By entry. `report` is filled also on errors, which are kFailedPrecondition
// and have it as their detail: a mismatch; with rules.strict a missing or an
// unexpected key; a store that has nothing of what is asked for, unless that is
// some submodules, only what is not frozen, or not strict.
StatusOr<std::vector<EntryMatch>> MatchState(
    const Plan& plan, const std::vector<StateEntry>& entries,
    const TensorStore& store, const StateOptions& options,
    const LoadRules& rules, MatchReport* report);

}  // namespace shard

#endif  // SHARD_CORE_STATE_MATCH_H_
