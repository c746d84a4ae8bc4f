// SPDX-License-Identifier: Apache-2.0

#ifndef SHARD_TESTS_CORE_ENGINE_TEMPORARY_FOLDER_H_
#define SHARD_TESTS_CORE_ENGINE_TEMPORARY_FOLDER_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

namespace shard {

// A folder of a test's own, deleted with it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = ::testing::TempDir() + "/checkpoint-XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace shard

#endif  // SHARD_TESTS_CORE_ENGINE_TEMPORARY_FOLDER_H_
