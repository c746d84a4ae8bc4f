// SPDX-License-Identifier: Apache-2.0
//
// Valid names, in models, plans, blobs and manifests alike: a name that is
// accepted when it is declared can be saved, read back and printed.
//
// Also names as other systems write them. Frameworks that wrap modules put the
// names of their wrappers into the paths of the parameters inside; the
// library's keys never contain one, so that a wrapped run loads into an
// unwrapped model and back.

#ifndef SHARD_CORE_MODEL_NAMES_H_
#define SHARD_CORE_MODEL_NAMES_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace shard {

// The longest key, file name or blob name of a checkpoint, in bytes.
inline constexpr size_t kMaxKeyBytes = 65535;
// The longest fully qualified name. The remaining bytes are for the parts that
// keys add to it: "state.", the state's name and ".q8_scale".
inline constexpr size_t kMaxFqnBytes = 65000;
// The longest name of an optimizer state.
inline constexpr size_t kMaxStateNameBytes = 255;

// Prefixes of the keys of a parameter's states and of its group's numbers:
// "state.layer.weight.exp_avg", "param_groups.layer.weight.lr".
inline constexpr std::string_view kStatePrefix = "state.";
inline constexpr std::string_view kGroupPrefix = "param_groups.";
// The scales of the q8 tensor "K" are the tensor "K.q8_scale".
inline constexpr std::string_view kScaleSuffix = ".q8_scale";
// The name of a parameter's number of steps, stored beside its states:
// "state.layer.weight.step".
inline constexpr std::string_view kStepName = "step";
// Keys of the numbers of a run, which belong to no parameter.
inline constexpr std::string_view kLossScaleKey = "loss_scale.scale";
inline constexpr std::string_view kGoodStepsKey = "loss_scale.good_steps";

// The parts of a key "state.FQN.NAME" or "param_groups.FQN.NAME".
struct OwnedKey {
  bool in_group;         // True for "param_groups.".
  std::string_view fqn;  // The FQN of the parameter, "layer.weight".
  std::string_view name;
};
// Returns the parts of `key`, or nullopt for a key of another form.
std::optional<OwnedKey> ParseOwnedKey(std::string_view key);

// Returns true for text that a terminal, a log or a JSON document takes
// unchanged: UTF-8 without control characters (U+0000 to U+001F, U+007F to
// U+009F).
bool IsPlainText(std::string_view text);

// Returns `text` in quotes for a message: long text is shortened; control
// characters and bytes that are not UTF-8 become \xNN.
std::string QuoteName(std::string_view text);

// Returns kInvalidArgument, with the text and the remedy, for a text that is
// empty, longer than `max_bytes` or not plain. `what` names the kind of text:
// "blob name".
Status CheckName(std::string_view what, std::string_view text,
                 size_t max_bytes);

// Returns kInvalidArgument for a module's class that is not UTF-8 or holds a
// NUL. A class may be empty, and of any length.
Status CheckClassName(std::string_view name);

// Returns true for the components that CleanTensorName leaves out.
bool IsWrapperName(std::string_view component);

// Returns `name` without its wrapper components `_fsdp_wrapped_module`,
// `_checkpoint_wrapped_module`, `_fpw_module` and `_orig_mod`, anywhere in the
// path. Only whole components count, and only those with something after them:
// a parameter that is itself called `_orig_mod` keeps its name.
// `strip_leading_module` also removes one leading `module.`, which is DDP's
// wrapper but may just as well be a module of the host's own.
std::string CleanTensorName(std::string_view name,
                            bool strip_leading_module = false);

}  // namespace shard

#endif  // SHARD_CORE_MODEL_NAMES_H_
