// SPDX-License-Identifier: Apache-2.0
//
// Opens the checkpoint to which a root resolves, and checks that it is whole.

#ifndef SHARD_TESTS_FAULT_WHOLE_CHECKPOINT_H_
#define SHARD_TESTS_FAULT_WHOLE_CHECKPOINT_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/base/file_env.h"
#include "core/checkpoint/data/shard_store.h"
#include "core/checkpoint/folder/directory.h"
#include "tests/core/base/temp_folder.h"

namespace shard::testing {

// Returns the checkpoint when there is one and every byte is as it was written.
// Otherwise fails the test and returns null.
inline std::shared_ptr<const ShardStore> OpenWhole(const std::string& root,
                                                   const std::string& when) {
  const auto found = ResolveCheckpoint(FileEnv::Posix(), root);
  EXPECT_TRUE(found.ok()) << when << ": " << found.status().ToString();
  if (!found.ok()) return nullptr;
  const auto store = ShardStore::Open(found->directory);
  EXPECT_TRUE(store.ok()) << when << ": " << store.status().ToString();
  if (!store.ok()) return nullptr;
  std::vector<std::string> problems;
  const Status status = (*store)->Verify({.threads = 1}, &problems);
  EXPECT_TRUE(status.ok()) << when << ": " << status.ToString();
  EXPECT_TRUE(problems.empty()) << when << ": " << problems[0];
  return status.ok() && problems.empty() ? *store : nullptr;
}

// Returns the number of temporary entries that interrupted saves and deletions
// left.
inline int CountTemporary(const std::string& root) {
  int count = 0;
  for (const std::string& name : NamesIn(root)) {
    count += ParseTemporaryName(name).has_value();
  }
  return count;
}

}  // namespace shard::testing

#endif  // SHARD_TESTS_FAULT_WHOLE_CHECKPOINT_H_
