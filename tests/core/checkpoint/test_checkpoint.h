// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints of made-up bytes, for tests of how checkpoints are committed,
// found and deleted. Each has two files of one generation; a checkpoint that
// does not consist wholly of one generation is broken.

#ifndef SHARD_TESTS_CORE_CHECKPOINT_TEST_CHECKPOINT_H_
#define SHARD_TESTS_CORE_CHECKPOINT_TEST_CHECKPOINT_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/base/file.h"
#include "core/base/strings.h"
#include "core/checkpoint/folder/directory.h"
#include "core/checkpoint/folder/pending.h"
#include "tests/core/base/temp_folder.h"

namespace shard::testing {

// Returns the contents for a generation: more than a page, so that half of it
// can be lost.
inline std::string DataOf(int64_t generation) {
  std::string text;
  while (text.size() < 6000) StrAppend(&text, "generation ", generation, ";");
  return text;
}

inline std::string ManifestOf(int64_t generation) {
  return StrCat("manifest of generation ", generation);
}

inline Status WriteSynced(const Directory& in, const std::string& name,
                          const std::string& text) {
  SHARD_ASSIGN_OR_RETURN(File file, File::Open(in, name, File::Mode::kCreate));
  SHARD_RETURN_IF_ERROR(file.WriteExactly(0, std::as_bytes(std::span(text))));
  SHARD_RETURN_IF_ERROR(file.Sync());
  return file.Close();
}

inline Status WriteFiles(const Directory& in, int64_t generation) {
  SHARD_RETURN_IF_ERROR(WriteSynced(in, "data-00000.bin", DataOf(generation)));
  return WriteSynced(in, "manifest.shard", ManifestOf(generation));
}

inline Status SaveGeneration(FileEnv* env, const std::string& root,
                             int64_t step, int64_t generation,
                             bool overwrite = false) {
  SHARD_ASSIGN_OR_RETURN(PendingCheckpoint pending,
                         PendingCheckpoint::Begin(env, root, step, overwrite));
  SHARD_RETURN_IF_ERROR(WriteFiles(pending.directory(), generation));
  return pending.Commit();
}

// Returns the generation of the checkpoint in this folder; fails the test and
// returns -1 when the checkpoint is broken.
inline int64_t GenerationIn(const std::string& folder) {
  const std::string manifest = ReadText(folder + "/manifest.shard");
  const std::string prefix = "manifest of generation ";
  EXPECT_TRUE(manifest.starts_with(prefix)) << folder << ": " << manifest;
  if (!manifest.starts_with(prefix)) return -1;
  const int64_t generation =
      ParseInt(manifest.substr(prefix.size())).value_or(-1);
  const bool whole = ReadText(folder + "/data-00000.bin") == DataOf(generation);
  EXPECT_TRUE(whole) << folder << " is broken";
  return whole ? generation : -1;
}

// Returns the generation to which the root resolves; -2 when to none.
inline int64_t ResolvedGeneration(const std::string& root) {
  const auto opened = ResolveCheckpoint(FileEnv::Posix(), root);
  if (!opened.ok()) {
    EXPECT_EQ(opened.status().code(), StatusCode::kNotFound)
        << opened.status().ToString();
    return -2;
  }
  return GenerationIn(opened->directory.path());
}

// Fails the test unless every complete checkpoint in the root is whole.
inline void ExpectAllWhole(const std::string& root) {
  const auto directory = Directory::Open(FileEnv::Posix(), root);
  ASSERT_TRUE(directory.ok()) << directory.status().ToString();
  const auto steps = ListCheckpoints(*directory);
  ASSERT_TRUE(steps.ok()) << steps.status().ToString();
  for (const int64_t step : *steps) {
    EXPECT_GE(GenerationIn(root + "/" + CheckpointName(step)), 0);
  }
}

// Writes a checkpoint without the commit protocol.
inline void PutCheckpoint(const std::string& folder, int64_t generation) {
  std::filesystem::create_directories(folder);
  WriteText(folder + "/data-00000.bin", DataOf(generation));
  WriteText(folder + "/manifest.shard", ManifestOf(generation));
}

inline bool Exists(const std::string& path) {
  return std::filesystem::exists(std::filesystem::symlink_status(path));
}

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_CHECKPOINT_TEST_CHECKPOINT_H_
