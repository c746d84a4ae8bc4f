// SPDX-License-Identifier: Apache-2.0
//
// The tensors of a training state: parameters, their other names, and optimizer
// states, under the keys they have in state dicts and on disk:
//
//   layer.weight                          a parameter, by FQN
//   state.layer.weight.exp_avg            its optimizer state of that name
//   state.layer.weight.exp_avg.q8_scale   and that state's scales, if it is q8
//
// Keys never hold the wrappers that frameworks leave in names
// (core/model/names.h). Which tensors there are, and which rank owns which of
// their elements, is a pure function of plan and options. Padding, buffers,
// units and ranks do not appear in it: a tensor is a row of elements, whole on
// disk and in slices in memory.

#ifndef SHARD_CORE_STATE_STATE_ENTRIES_H_
#define SHARD_CORE_STATE_STATE_ENTRIES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/checkpoint/store/tensor_info.h"
#include "core/flat/plan.h"
#include "core/model/model.h"
#include "core/model/names.h"

namespace shard {

// What of a training state is meant. The values are those of
// shard_content in shard/checkpoint.h.
enum class StateContent : int32_t {
  kAll = 0,
  kModel = 1,      // Parameters only.
  kOptimizer = 2,  // Optimizer states only, master weights among them.
};

struct StateOptions {
  StateContent content = StateContent::kAll;
  bool ignore_frozen = false;
  // Only what has a name in one of these modules or below; empty: all.
  std::vector<ModuleId> submodules;
  // Keys without the module's path, as if it were the root. One module only:
  // of several, keys could collide.
  bool strip_prefix = false;
};

// A module that does not exist, strip_prefix with other than one module,
// content with an unknown value.
Status CheckStateOptions(const Model& model, const StateOptions& options);

// A key of another program as it would be here: what follows "state." and
// "param_groups." by CleanTensorName.
std::string CleanStateKey(std::string_view key, bool strip_leading_module);

struct StateEntry {
  std::string key;
  DType dtype = DType::kF32;  // Of scales too: kF32.
  std::vector<int64_t> shape;
  int64_t numel = 0;
  ParamId param = 0;
  // Index into FlatBufferPlan::states; -1: the parameter itself.
  int32_t state = -1;
  // Of that state, the scales of its blocks of kQ8Block instead of its codes.
  bool scales = false;
  // The index of the entry that this is another name of; -1: none.
  int32_t alias_of = -1;

  bool is_param() const { return state < 0; }
};

// What a rank owns of an entry. numel 0: nothing.
struct OwnedElements {
  int64_t begin = 0;  // From the tensor's first element.
  int64_t numel = 0;
  // Where they begin in the memory of this entry's buffer that is the rank's,
  // FlatBufferPlan::layout or StateLayout: elements from the begin of its
  // range. Of scales: scales, from the first.
  int64_t offset = 0;
};

// Parameters and their other names in module-walk order, then the states of
// each trainable parameter in the same order. A parameter goes by the first of
// its names that is meant; its other ones are aliases. Errors: those of
// CheckStateOptions, and with strip_prefix two tensors, or a tensor and a
// number of a state dict, of one key: the keys of a plan do not collide
// otherwise.
StatusOr<std::vector<StateEntry>> ListStateEntries(const Plan& plan,
                                                   const StateOptions& options);

// The names that keys have of each parameter, by ParamId, the one it goes by
// first; whatever content is asked for, and of frozen ones too. Errors: those
// of ListStateEntries.
StatusOr<std::vector<std::vector<std::string>>> ListParamNames(
    const Plan& plan, StateOptions options);

// REQUIRES: an entry of this plan that is no alias, 0 <= rank < world size.
// O(log slots).
OwnedElements OwnedBy(const Plan& plan, const StateEntry& entry, int rank);

// The ranks that own some of it, in the order of its elements.
std::vector<int> OwnersOf(const Plan& plan, const StateEntry& entry);

}  // namespace shard

#endif  // SHARD_CORE_STATE_STATE_ENTRIES_H_
