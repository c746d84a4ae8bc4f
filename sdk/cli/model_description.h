// SPDX-License-Identifier: Apache-2.0
//
// Models for planning, described by JSON, or by the keys of a checkpoint or of
// safetensors.
//
// The JSON is a module; only the root has `ties` and `groups`:
//
//   {
//     "class": "GPT",                        may be left out, as all but names
//     "params": [{"name": "scale", "shape": [768], "dtype": "bf16",
//                 "frozen": true}],
//     "buffers": [{"name": "running_mean", "shape": [768], "dtype": "f32",
//                  "persistent": false}],
//     "modules": [{"name": "h", "class": "Block", "count": 12,
//                  "params": [...], "modules": [...]}],
//     "ties": [{"name": "head.weight", "param": "wte.weight"}],
//     "groups": [{"optimizer": "?weight_decay=0", "match": ["*.bias"]}]
//   }
//
// The default of `dtype` is f32, of `persistent` true. A module with a `count`
// stands for a ModuleList of its name with that many children, 0 to count - 1.
// `match` has globs, as Matches; a parameter is in the first group that
// matches. Keys that are not listed here are errors, for they are most likely
// misspelled.
//
// A model made from keys has module names as classes: a module's class is its
// own name, or its parent's name where its own is a number: h.0 is an "h".

#ifndef SHARD_SDK_CLI_MODEL_DESCRIPTION_H_
#define SHARD_SDK_CLI_MODEL_DESCRIPTION_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sdk/cli/handles.h"

namespace shardctl {

struct ModelDescription {
  Model model;
  std::string class_name;
  int64_t params = 0;
  int64_t elements = 0;
  int64_t frozen_elements = 0;
  int64_t left_out = 0;  // Tensors that are neither parameters nor buffers.
};

// Make a model of JSON, or of a checkpoint's keys. Throw Failure naming the
// place in the JSON, or the key, that is wrong.
ModelDescription ReadModelDescription(const std::string& json);
ModelDescription ModelOfKeys(const shard_checkpoint* checkpoint);

// Makes a model of the file at `path`. A file whose name ends in .json is a
// description, unless it ends in .safetensors.index.json; others are
// checkpoints or safetensors.
ModelDescription OpenModelDescription(const std::string& path);

// Adds modules, parameters and buffers to a model, by name or by path. Keeps
// each name once, without the path in front of it, so that memory is linear in
// the input, however deeply modules are nested.
class ModelBuilder {
 public:
  // The longest path, dots included. A plan has the path of every unit.
  static constexpr size_t kMaxPathBytes = 4096;

  explicit ModelBuilder(const std::string& class_name);

  // Adds a module; an empty `class_name` is none. Throws Failure with the path.
  int32_t AddModule(int32_t parent, const std::string& name,
                    const std::string& class_name);
  void AddParam(int32_t module, const std::string& name, int32_t dtype,
                const std::vector<int64_t>& shape, bool frozen);
  // Adds the parameter of a path, and the modules of it that are missing, with
  // classes as for keys.
  void AddParam(const std::string& fqn, int32_t dtype,
                const std::vector<int64_t>& shape, bool frozen);
  void AddBuffer(int32_t module, const std::string& name, int32_t dtype,
                 const std::vector<int64_t>& shape, bool persistent);
  // Adds the buffer of a path, as AddParam does a parameter.
  void AddBuffer(const std::string& fqn, int32_t dtype,
                 const std::vector<int64_t>& shape);
  void Tie(const std::string& name, const std::string& param);
  void AddGroup(const std::string& optimizer,
                const std::vector<std::string>& globs);

  ModelDescription Finish() { return std::move(result_); }

 private:
  // A module and a name in it.
  using Place = std::pair<int32_t, std::string>;
  using Places = std::map<Place, int32_t>;

  // Returns the place of a path; adds the modules that are missing.
  Place PlaceOf(const std::string& fqn);
  std::string PathOf(const Place& place) const;
  // Makes a call of the library about `place`, whose path an error then names.
  template <typename Call>
  void Do(const Place& place, const Call& call) const;
  // Returns the place of a new name. Throws Failure when its path is too long.
  Place NewPlace(int32_t module, const std::string& name) const;

  ModelDescription result_;
  Places modules_;
  Places params_;
  // For each module but the root, by id: its entry of modules_, and the length
  // of its path.
  std::vector<const Places::value_type*> module_places_{nullptr};
  std::vector<size_t> path_bytes_{0};
  std::set<int32_t> grouped_;
};

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_MODEL_DESCRIPTION_H_
