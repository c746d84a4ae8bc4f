// SPDX-License-Identifier: Apache-2.0
//
// A folder of a test's own, deleted with what is in it.

#ifndef SHARD_TESTS_CORE_CHECKPOINT_TEMP_FOLDER_H_
#define SHARD_TESTS_CORE_CHECKPOINT_TEMP_FOLDER_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace shard {

class TempFolder {
 public:
  TempFolder() : path_(::testing::TempDir() + "/folder-XXXXXX") {
    EXPECT_NE(::mkdtemp(path_.data()), nullptr) << path_;
  }
  TempFolder(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string PathOf(std::string_view name) const {
    return path_ + "/" + std::string(name);
  }
  std::string Write(std::string_view name, std::string_view bytes) const {
    std::ofstream file(PathOf(name), std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    EXPECT_TRUE(file.good()) << PathOf(name);
    return PathOf(name);
  }
  std::string Read(std::string_view name) const {
    std::ifstream file(PathOf(name), std::ios::binary);
    EXPECT_TRUE(file.good()) << PathOf(name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // The names in it, sorted.
  std::vector<std::string> List() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::string path_;
};

}  // namespace shard

#endif  // SHARD_TESTS_CORE_CHECKPOINT_TEMP_FOLDER_H_
