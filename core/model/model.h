// SPDX-License-Identifier: Apache-2.0
//
// Model: the host's declaration of its network: a tree of modules, and named
// parameters and host tensors in them. A model holds no tensor data.
//
// A parameter is stored once and may be reachable under several names (tied
// weights). Its fully qualified name (FQN) is the dotted path of the first name
// in module-walk order: pre-order, modules and parameters each in the order in
// which they were added, a module's own parameters before those of its
// children. Later names are aliases.
//
// A host tensor is a tensor that is neither trained nor sharded, such as the
// statistics of a batch norm. The C interface calls it a buffer, as torch does;
// in the core a buffer is a flat buffer of parameters, and a host tensor is
// never called so.
//
// Ids are dense and count up from 0 in the order of adding; module 0 is the
// root, has the empty name, and always exists.
//
// Threads: const members may run concurrently, others not.

#ifndef SHARD_CORE_MODEL_MODEL_H_
#define SHARD_CORE_MODEL_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/element_type.h"
#include "core/base/status.h"
#include "core/model/name_index.h"

namespace shard {

using ModuleId = int32_t;
using ParamId = int32_t;
using HostTensorId = int32_t;
using GroupId = int32_t;

inline constexpr ModuleId kRootModule = 0;
// The group of every parameter that no other group names.
inline constexpr GroupId kDefaultGroup = 0;
inline constexpr int kMaxDims = 8;

class Model {
 public:
  // One name of a parameter.
  struct Reference {
    ModuleId module;
    ParamId param;
    std::string name;  // Without the module's path.
    // The XXH3-64 of the name, the same in every process, so that planning
    // reads no names. A module and the shape of a parameter have one, too.
    uint64_t name_hash;
  };

  struct Module {
    ModuleId parent;  // -1 for the root.
    std::string name;
    std::string class_name;
    std::vector<ModuleId> children;
    std::vector<int32_t> references;  // Indices into references().
    std::vector<HostTensorId> host_tensors;
    bool ignored = false;  // The module and all below it.
    size_t fqn_bytes = 0;  // Length of the path from the root.
    uint64_t name_hash = 0;
  };

  struct Param {
    DType dtype;
    std::vector<int64_t> shape;  // Empty for a scalar; a dimension may be 0.
    int64_t numel;
    uint64_t shape_hash;
    bool trainable = true;
    bool ignored = false;
    GroupId group = kDefaultGroup;
  };

  struct HostTensor {
    ModuleId module;
    std::string name;  // Without the module's path.
    ElementType type;
    std::vector<int64_t> shape;
    int64_t numel;
    bool persistent;  // Part of checkpoints and state dicts.
  };

  // Parameters with hyperparameters of their own.
  struct ParamGroup {
    // The text as the host wrote it; empty for the default group. core/optim
    // parses it.
    std::string optimizer;
  };

  // Makes a model with a root of class `class_name`. REQUIRES: CheckClassName.
  explicit Model(std::string class_name = "");

  // Adds a module to `parent`. `name` is one path component: not empty, plain
  // text (names.h) without '.', unlike every other name in `parent`, and with
  // its path at most kMaxFqnBytes long. `class_name` passes CheckClassName.
  StatusOr<ModuleId> AddModule(ModuleId parent, std::string_view name,
                               std::string_view class_name);

  // Adds a parameter to `module`. Errors name the offending value: a bad name,
  // a name that exists, more than kMaxDims dimensions, a negative dimension, an
  // element or byte count beyond int64.
  StatusOr<ParamId> AddParam(ModuleId module, std::string_view name,
                             DType dtype, const std::vector<int64_t>& shape);

  // Adds a host tensor to `module`. Parameters, host tensors and modules share
  // the names of a module. Errors are those of AddParam; any type is allowed
  // but kQ8 and kOpaque.
  StatusOr<HostTensorId> AddHostTensor(ModuleId module, std::string_view name,
                                       ElementType type,
                                       const std::vector<int64_t>& shape,
                                       bool persistent);

  // Makes `module`.`name` another name of `param`.
  Status Tie(ModuleId module, std::string_view name, ParamId param);

  // Freezes or unfreezes a parameter. A frozen parameter keeps its values and
  // has no gradient and no state.
  Status SetTrainable(ParamId param, bool trainable);

  // Stores a parameter in another dtype. Errors as those of AddParam.
  Status SetDType(ParamId param, DType dtype);

  // Moves `params` from the default group to a new one. Groups have dense ids
  // from 1. Errors: no parameters; more than the model has; a parameter that
  // does not exist, is in another group or is listed twice (naming the
  // parameter and the group); a text that is not plain.
  StatusOr<GroupId> AddParamGroup(std::string_view optimizer,
                                  std::span<const ParamId> params);

  // Ignores a parameter: libshard neither stores nor touches it. IgnoreModule
  // does so for all parameters and host tensors in and below a module.
  Status IgnoreParam(ParamId param);
  Status IgnoreModule(ModuleId module);

  const std::vector<Module>& modules() const { return modules_; }
  const std::vector<Param>& params() const { return params_; }
  const std::vector<Reference>& references() const { return references_; }
  const std::vector<HostTensor>& host_tensors() const { return host_tensors_; }
  // Returns the param groups; the default group is first.
  const std::vector<ParamGroup>& groups() const { return groups_; }

  // Returns the dotted path of a module, such as "layer1.attention"; "" for the
  // root. REQUIRES: a valid id.
  std::string ModuleFqn(ModuleId module) const;

  // Returns the dotted path of one name. REQUIRES: a valid index into
  // references().
  std::string ReferenceFqn(int32_t reference) const;

  // Returns the dotted path of a host tensor. REQUIRES: a valid id.
  std::string HostTensorFqn(HostTensorId id) const;

  // Returns the host tensors in module-walk order, without those in ignored
  // modules.
  std::vector<HostTensorId> WalkHostTensors() const;

  // Returns the indices into references() in module-walk order, without ignored
  // names. The first reference to a parameter is its primary name.
  std::vector<int32_t> Walk() const;

  // Returns the parameter with this FQN, which may be any of its names; ignored
  // parameters are found, too. The message of kNotFound tells how far the path
  // goes. O(length).
  StatusOr<ParamId> FindParam(std::string_view fqn) const;

  // Returns the FQN of every parameter by ParamId, ignored ones too: the first
  // name that is not ignored, or else the first name.
  std::vector<std::string> ParamFqns() const;

 private:
  // Makes the checks of all functions that add a name to `module`, and sets
  // `hash` to the name's hash for index_.
  Status CheckName(ModuleId module, std::string_view name,
                   uint64_t* hash) const;
  Status CheckModule(ModuleId module) const;
  Status CheckParam(ParamId param) const;
  // Returns true when `id` of index_ stands for `name` in `module`.
  bool HasName(int32_t id, ModuleId module, std::string_view name) const;
  // Returns the dotted path of `name` in `module`.
  std::string Path(ModuleId module, std::string_view name) const;
  void AddReference(ModuleId module, std::string_view name, ParamId param,
                    uint64_t hash);

  std::vector<Module> modules_;
  std::vector<Param> params_;
  std::vector<Reference> references_;
  std::vector<HostTensor> host_tensors_;
  std::vector<ParamGroup> groups_ = {{}};
  // Reference r is stored as 2 r + 1, host tensor t as 2 t + 2, and module m as
  // -m; the root needs no entry.
  NameIndex index_;
};

}  // namespace shard

#endif  // SHARD_CORE_MODEL_MODEL_H_
