// SPDX-License-Identifier: Apache-2.0
//
// Names as other systems write them. Frameworks that wrap modules leave their
// wrappers in the names of what is inside; our keys never hold one, so that a
// wrapped run loads into an unwrapped model and back.

#ifndef SHARD_CORE_MODEL_NAMES_H_
#define SHARD_CORE_MODEL_NAMES_H_

#include <string>
#include <string_view>

namespace shard {

// `name` without its wrapper components `_fsdp_wrapped_module`,
// `_checkpoint_wrapped_module`, `_fpw_module` and `_orig_mod`, wherever in the
// path they stand. Only whole components count, and only those with something
// after them: a parameter that is itself called `_orig_mod` keeps its name.
// `strip_leading_module` also takes off one leading `module.`, which is DDP's
// wrapper but may just as well be a module of the host's own.
std::string CleanTensorName(std::string_view name,
                            bool strip_leading_module = false);

}  // namespace shard

#endif  // SHARD_CORE_MODEL_NAMES_H_
