// SPDX-License-Identifier: Apache-2.0
//
// Helpers that the tests of checkpoint_options_test share: the ids of
// AwkwardModel's modules and parameters, and quick saves.

#ifndef SHARD_TESTS_CORE_ENGINE_CHECKPOINT_OPTIONS_H_
#define SHARD_TESTS_CORE_ENGINE_CHECKPOINT_OPTIONS_H_

#include <memory>
#include <string>

#include "core/checkpoint/data/shard_store.h"
#include "core/checkpoint/folder/directory.h"
#include "tests/core/base/forwarding_env.h"
#include "tests/core/engine/worlds.h"

namespace shard {

// Modules of AwkwardModel.
inline constexpr ModuleId kBlock = 1;
inline constexpr ModuleId kHead = 2;
inline constexpr ParamId kWeight = 2;
inline constexpr ParamId kBias = 3;
inline constexpr ParamId kFrozen = 4;
inline constexpr ParamId kBig = 5;

inline SaveOptions Quick() { return {.env = testing::NoSyncEnv::Get()}; }

inline StatusOr<std::shared_ptr<const ShardStore>> OpenIn(
    const std::string& root) {
  SHARD_ASSIGN_OR_RETURN(const OpenCheckpoint found,
                         ResolveCheckpoint(FileEnv::Posix(), root));
  return ShardStore::Open(found.directory);
}

}  // namespace shard

#endif  // SHARD_TESTS_CORE_ENGINE_CHECKPOINT_OPTIONS_H_
