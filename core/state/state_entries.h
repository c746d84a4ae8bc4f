// SPDX-License-Identifier: Apache-2.0
//
// The tensors of a training state: parameters, their other names, persistent
// host tensors, and optimizer states, under their keys in state dicts and on
// disk:
//
//   layer.weight                          a parameter, by FQN
//   norm.running_mean                     a host tensor, by FQN
//   state.layer.weight.exp_avg            its optimizer state of that name
//   state.layer.weight.exp_avg.q8_scale   and that state's scales, if it is q8
//
// Keys never hold the wrappers that frameworks leave in names
// (core/model/names.h). The list of tensors, and the elements that each rank
// owns, are pure functions of plan and options. Padding, buffers, units and
// ranks do not appear in the list: a tensor is a row of elements, whole on disk
// and in slices in memory.

#ifndef SHARD_CORE_STATE_STATE_ENTRIES_H_
#define SHARD_CORE_STATE_STATE_ENTRIES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/element_type.h"
#include "core/base/status.h"
#include "core/checkpoint/store/tensor_info.h"
#include "core/flat/plan.h"
#include "core/model/model.h"
#include "core/model/names.h"

namespace shard {

// Selects a part of a training state. The values are those of shard_content in
// shard/checkpoint.h.
enum class StateContent : int32_t {
  kAll = 0,
  kModel = 1,      // Parameters and host tensors only.
  kOptimizer = 2,  // Optimizer states only, master weights among them.
};

struct StateOptions {
  StateContent content = StateContent::kAll;
  bool ignore_frozen = false;
  // Only parameters that have a name in one of these modules or below, and host
  // tensors in them; empty: all.
  std::vector<ModuleId> submodules;
  // Keys without the module's path, as if it were the root. One module only:
  // keys of several could collide.
  bool strip_prefix = false;
};

// Returns an error for a module that does not exist, strip_prefix with any
// number of modules but one, and content with an unknown value.
Status CheckStateOptions(const Model& model, const StateOptions& options);

// Returns the key under which libshard knows a key of another program: the name
// after "state." and "param_groups." is changed by CleanTensorName.
std::string CleanStateKey(std::string_view key, bool strip_leading_module);

struct StateEntry {
  std::string key;
  TensorRole role = TensorRole::kParam;
  ElementType type = ElementType::kF32;  // kF32 for scales, too.
  std::vector<int64_t> shape;
  int64_t numel = 0;
  ParamId param = -1;  // -1 for a host tensor.
  HostTensorId host_tensor = -1;
  // Index into FlatBufferPlan::states; -1: the entry is no state.
  int32_t state = -1;
  // Whether this is the scales of the state's blocks of kQ8Block elements,
  // instead of its codes.
  bool scales = false;
  // The index of the entry that this one is an alias of; -1: none.
  int32_t alias_of = -1;

  bool is_param() const { return role == TensorRole::kParam; }
  bool is_state() const { return role == TensorRole::kState; }
  bool is_host_tensor() const { return role == TensorRole::kBuffer; }
};

// The elements of an entry that a rank owns. numel 0: none.
struct OwnedElements {
  int64_t begin = 0;  // From the tensor's first element.
  int64_t numel = 0;
  // Where they begin in the rank's memory of this entry's buffer
  // (FlatBufferPlan::layout or StateLayout): elements from the begin of the
  // rank's range; for scales, scales from the first. 0 for host tensors.
  int64_t offset = 0;
};

// Lists parameters and their other names in module-walk order, then the
// persistent host tensors, then the states of each trainable parameter, in the
// same order. The key of a parameter is the
// first of its names that is selected; its other names are aliases. Errors:
// those of CheckStateOptions; with strip_prefix, two tensors, or a tensor and a
// number of a state dict, with one key: otherwise the keys of a plan do not
// collide.
StatusOr<std::vector<StateEntry>> ListStateEntries(const Plan& plan,
                                                   const StateOptions& options);

// Returns the names of each parameter that keys may have, by ParamId, the one
// of its own key first; whatever content is selected, and of frozen ones too.
// Errors: those of ListStateEntries.
StatusOr<std::vector<std::vector<std::string>>> ListParamNames(
    const Plan& plan, StateOptions options);

// The rank that owns host tensors: all ranks have them whole, one saves them.
inline constexpr int kHostTensorOwner = 0;

// Returns the elements of an entry that `rank` owns. O(log slots). REQUIRES: an
// entry of this plan that is not an alias, 0 <= rank < world size.
OwnedElements OwnedBy(const Plan& plan, const StateEntry& entry, int rank);

// Returns the ranks that own elements of an entry, in the order of the
// elements.
std::vector<int> OwnersOf(const Plan& plan, const StateEntry& entry);

}  // namespace shard

#endif  // SHARD_CORE_STATE_STATE_ENTRIES_H_
