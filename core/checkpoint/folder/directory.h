// SPDX-License-Identifier: Apache-2.0
//
// The root folder of checkpoints, and the lookup of a checkpoint in it.
//
//     ckpt/step-000042/                        complete: it has a manifest
//     ckpt/step-000043.tmp-0123456789abcdef/   being written, or being deleted
//     ckpt/LATEST                              "step-000042\n"
//
// A checkpoint gets its name last (pending.h) and loses it first (cleanup.h),
// with a sync of the root in between, so a folder with such a name is whole,
// whenever a process was killed or the power failed. LATEST names the
// checkpoint that was committed last; it is not trusted, and its name is looked
// up like any other.
//
// The path that the host gives may be a symbolic link. Links below it are not
// followed.
//
// Thread-safe, and safe beside processes that commit, clean and retain in the
// same root. Another process may delete or overwrite an opened checkpoint:
// files that are open already stay readable, opening others is kNotFound; then
// resolve again.

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

// Returns the last name of a path: "step-000042" of "ckpt/step-000042/".
std::string LastPart(std::string_view path);

// Returns the name of a checkpoint: "step-000042", with six digits or more as
// needed. REQUIRES: step >= 0.
std::string CheckpointName(int64_t step);

// Returns the step of a name that CheckpointName makes, else nullopt.
std::optional<int64_t> ParseCheckpointName(std::string_view name);

// Returns `base`, ".tmp-", and 16 random hexadecimal digits.
StatusOr<std::string> TemporaryName(std::string_view base);

// Returns the base of a name that TemporaryName makes, else nullopt.
std::optional<std::string_view> ParseTemporaryName(std::string_view name);

struct OpenCheckpoint {
  Directory directory;
  std::string name;  // The folder's name.
  // For the log: why this is not the checkpoint that LATEST names. Empty if it
  // is, or if the host named it.
  std::string note;
};

// Opens the checkpoint `path`; or, where `path` is a root, the one that LATEST
// names, and if that is missing, damaged or not complete, the complete one of
// the highest step. kNotFound lists the names that were looked for;
// kFailedPrecondition for a folder that is still being written.
StatusOr<OpenCheckpoint> ResolveCheckpoint(FileEnv* env,
                                           const std::string& path);

// Returns the steps of the complete checkpoints in a root, ascending.
StatusOr<std::vector<int64_t>> ListCheckpoints(const Directory& root);

// Returns whether `name` in the root is a folder with a manifest.
StatusOr<bool> IsCheckpoint(const Directory& root, const std::string& name);

// Returns the step that LATEST names; nullopt when LATEST is missing or
// damaged.
StatusOr<std::optional<int64_t>> ReadLatest(const Directory& root);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_FOLDER_DIRECTORY_H_
