// SPDX-License-Identifier: Apache-2.0
//
// The folder that checkpoints lie in, and how to find one.
//
//     ckpt/step-000042/                        complete: it has a manifest
//     ckpt/step-000043.tmp-0123456789abcdef/   being written, or being deleted
//     ckpt/LATEST                              "step-000042\n"
//
// A checkpoint gets its name last (pending.h) and loses it first (cleanup.h),
// with a sync of the root in between, so what has one is whole, whenever a
// process was killed or the power went. LATEST is what was committed last; it
// is not trusted, and what it says is looked up like any name.
//
// The path that the host gives may be a symbolic link. Nothing below it is
// followed.
//
// Thread-safe, and safe beside processes that commit, clean and retain in the
// same root. An opened checkpoint may lose its files to one that deletes or
// overwrites it: files that are open already stay readable, opening others is
// kNotFound; then resolve again.

#ifndef SHARD_CORE_CHECKPOINT_FOLDER_DIRECTORY_H_
#define SHARD_CORE_CHECKPOINT_FOLDER_DIRECTORY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/file.h"
#include "core/base/file_env.h"
#include "core/base/status.h"

namespace shard {

inline constexpr const char* kLatestName = "LATEST";

// "step-000042": six digits, or more when it takes more. REQUIRES: step >= 0.
std::string CheckpointName(int64_t step);

// The step; nullopt unless `name` is what CheckpointName makes of it.
std::optional<int64_t> ParseCheckpointName(std::string_view name);

// `base`, ".tmp-", and 16 random hexadecimal digits.
StatusOr<std::string> TemporaryName(std::string_view base);

// The base; nullopt unless `name` is a name that TemporaryName makes.
std::optional<std::string_view> ParseTemporaryName(std::string_view name);

struct OpenCheckpoint {
  Directory directory;
  std::string name;  // The folder's.
  // For the log: why it is not the one that LATEST names. Empty if it is, or if
  // the host named it.
  std::string note;
};

// `path` is a checkpoint, or a root: then what LATEST names, and if that is
// missing, damaged or not complete, the complete one of the highest step.
// kNotFound says what was looked for; kFailedPrecondition for a folder that is
// still being written.
StatusOr<OpenCheckpoint> ResolveCheckpoint(FileEnv* env,
                                           const std::string& path);

// The steps of the complete checkpoints in a root, ascending.
StatusOr<std::vector<int64_t>> ListCheckpoints(const Directory& root);

// Whether `name` in the root is a folder with a manifest.
StatusOr<bool> IsCheckpoint(const Directory& root, const std::string& name);

// The step that LATEST names; nullopt when it is missing or damaged.
StatusOr<std::optional<int64_t>> ReadLatest(const Directory& root);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_FOLDER_DIRECTORY_H_
