// SPDX-License-Identifier: Apache-2.0
//
// Matching: finds the stored tensor from which each entry of a training state
// is loaded, and the entries and tensors that do not fit. A pure function of
// both sides, so that all ranks come to the same result without communication.
//
// Names match under CleanTensorName, so that tensors are found that a framework
// saved with its wrappers in the names. A tied parameter is found under any of
// its names. A host tensor is found by its name, whatever role it has in the
// store: other programs' files have no roles.

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
  // Missing and unexpected keys are an error that lists all of them.
  bool strict = true;
  // Elements of another type are converted: f32, bf16, f16 and f64, and states
  // in q8, into each other, to nearest. Where only one side has master weights,
  // they are matched with the parameter of the other side.
  bool convert = false;
  // One leading "module.", as DDP writes it, is removed from keys of the store.
  bool strip_leading_module = false;
};

// The source of an entry.
struct EntryMatch {
  enum class Kind : uint8_t {
    kNone,     // Missing; or nothing is read: an alias, an empty tensor.
    kSame,     // Reads the stored elements as they are.
    kConvert,  // Converts one float type to another.
    kDecode,   // Decodes q8; `scales` has its scales.
    kEncode,   // Encodes q8 codes and scales; the scales' entry is kNone.
  };
  Kind kind = Kind::kNone;
  size_t tensor = 0;  // Number in the store.
  size_t scales = 0;
};

struct MatchReport {
  int64_t loaded = 0;     // Entries that are read.
  int64_t converted = 0;  // Those of them in another type.
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;
  // Entries that have another shape, or another type without `convert`: a line
  // each, with both values.
  std::vector<std::string> mismatched;

  // Returns {"missing": [...], "unexpected": [...], "mismatched": [...]}.
  std::string ToJson() const;
};

// Returns the matches, by entry. `report` is filled also on errors, which are
// kFailedPrecondition and have the report as their detail: a mismatch; with
// rules.strict a missing or an unexpected key; a store without any of the
// requested tensors, unless only some submodules or only parameters that are
// not frozen are requested, or rules are not strict.
StatusOr<std::vector<EntryMatch>> MatchState(
    const Plan& plan, const std::vector<StateEntry>& entries,
    const TensorStore& store, const StateOptions& options,
    const LoadRules& rules, MatchReport* report);

}  // namespace shard

#endif  // SHARD_CORE_STATE_MATCH_H_
