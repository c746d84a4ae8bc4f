// SPDX-License-Identifier: Apache-2.0
//
// Runs `shardctl doctor` with fakes of NVIDIA's driver and libraries in the
// search path.

#ifndef SHARD_TESTS_SDK_CLI_DOCTOR_TESTING_H_
#define SHARD_TESTS_SDK_CLI_DOCTOR_TESTING_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/sdk/cli/checkpoint_testing.h"

namespace shardctl_testing {

// The fake of cuBLAS lies beside that of the driver, which it uses.
inline constexpr char kFakeDriver[] = "tests/fake_cuda";
inline constexpr char kFakeNccl[] = "tests/fake_nccl";

// Writes a file that the loader finds before libraries of its name, and
// refuses.
inline void WriteNoLibrary(const std::string& path) {
  WriteFile(path, std::string(4096, 'x'));
}

class DoctorTest : public ::testing::Test {
 protected:
  // `arguments`: of doctor, beside --json. `section`: of the findings.
  explicit DoctorTest(std::string section,
                      std::vector<std::string> arguments = {})
      : section_(std::move(section)), arguments_(std::move(arguments)) {}

  // Runs doctor with these folders in the search path, while calls of the
  // driver fail as SHARD_FAKE_CUDA_FAIL has it.
  void Examine(const std::vector<std::string>& folders,
               const std::string& failures = "") {
    // There libshard_cuda.so lies beside libshard.so.
    std::string path = std::filesystem::absolute("api");
    for (const std::string& folder : folders) {
      path += ":" + std::filesystem::absolute(folder).string();
    }
    ASSERT_EQ(::setenv("LD_LIBRARY_PATH", path.c_str(), 1), 0);
    ASSERT_EQ(::setenv("SHARD_FAKE_CUDA_FAIL", failures.c_str(), 1), 0);
    if (is_strict_) {
      ASSERT_EQ(::setenv("SHARD_FAKE_CUDA_STRICT", "1", 1), 0);
    } else {
      ASSERT_EQ(::unsetenv("SHARD_FAKE_CUDA_STRICT"), 0);
    }
    std::vector<std::string> arguments = {"doctor", "--json"};
    arguments.insert(arguments.end(), arguments_.begin(), arguments_.end());
    const Result result = RunShardctl(arguments);
    EXPECT_EQ(result.code, 0) << result.error;
    EXPECT_EQ(result.error, "");
    json_ = ParseJson(result);
  }

  // Lets doctor end with objects of the driver, as those of a thread that is
  // left behind.
  void LeaveObjects() { is_strict_ = false; }

  // Returns "LEVEL FOUND" of the finding, or "" where there is none.
  std::string Found(const std::string& name) const {
    const std::string level = Value(name, "level");
    return level.empty() ? "" : level + " " + Value(name, "found");
  }
  std::string Remedy(const std::string& name) const {
    return Value(name, "remedy");
  }

 private:
  std::string Value(const std::string& name, const char* key) const {
    for (const nlohmann::json& finding : json_["findings"]) {
      if (finding["section"] == section_ && finding["name"] == name) {
        return finding[key];
      }
    }
    return "";
  }

  const std::string section_;
  const std::vector<std::string> arguments_;
  bool is_strict_ = true;
  nlohmann::json json_;
};

}  // namespace shardctl_testing

#endif  // SHARD_TESTS_SDK_CLI_DOCTOR_TESTING_H_
