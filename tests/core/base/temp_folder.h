// SPDX-License-Identifier: Apache-2.0
//
// TempFolder: a folder of one test, deleted with the object; and helpers that
// read and write files without the code under test.

#ifndef SHARD_TESTS_CORE_BASE_TEMP_FOLDER_H_
#define SHARD_TESTS_CORE_BASE_TEMP_FOLDER_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <string_view>

namespace shard::testing {

// A folder in memory, for thousands of small files that need no disk.
inline constexpr const char* kMemoryFolder = "/dev/shm";

class TempFolder {
 public:
  explicit TempFolder(const std::string& in = ::testing::TempDir())
      : path_(in + "/shard.XXXXXX") {
    EXPECT_NE(::mkdtemp(path_.data()), nullptr) << path_;
  }
  TempFolder(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const {
    return path_ + "/" + std::string(name);
  }

 private:
  std::string path_;
};

inline void WriteText(const std::string& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  EXPECT_TRUE(out.good()) << path;
}

// Returns the contents of a file. Empty when there is no such file.
inline std::string ReadText(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

inline std::set<std::string> NamesIn(const std::string& path) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_BASE_TEMP_FOLDER_H_
