// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/helper_path.h"

#include <sys/stat.h>

#include <cstdio>

#include "tests/core/base/expect_status.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/comm/network/local_helper.h"

namespace shard::testing::helper_path_test {
namespace {

using network::HelperPath;

constexpr char kVariable[] = "SHARD_NETWORK_HELPER";

class HelperPathTest : public ::testing::Test {
 protected:
  ~HelperPathTest() override { ::unsetenv(kVariable); }

  static void MakeProgram(const std::string& path) {
    std::filesystem::create_directories(
        std::filesystem::path(path).parent_path());
    WriteText(path, "");
    ASSERT_EQ(::chmod(path.c_str(), 0755), 0);
  }

  // Returns what a program at `path` finds.
  static std::string FoundBy(const std::string& path) {
    std::filesystem::create_directories(
        std::filesystem::path(path).parent_path());
    std::filesystem::copy_file("tests/core/comm/network/print_helper_path",
                               path);
    std::string output(4096, '\0');
    FILE* const pipe = ::popen(path.c_str(), "r");
    output.resize(std::fread(output.data(), 1, output.size(), pipe));
    ::pclose(pipe);
    return output;
  }

  const TempFolder folder_;
  const std::string root_ = std::filesystem::canonical(folder_.path());
};

TEST_F(HelperPathTest, TheEnvironmentNamesIt) {
  MakeProgram(root_ + "/program");
  ::setenv(kVariable, (root_ + "/program").c_str(), 1);
  EXPECT_EQ(HelperPath().value(), root_ + "/program");
  // A relative path is one of this process: the helper has another folder.
  ::setenv(kVariable, "sdk/network/shard-network", 1);
  EXPECT_EQ(HelperPath().value(), ProgramPath());
}

TEST_F(HelperPathTest, TheEnvironmentNamesNoProgram) {
  WriteText(root_ + "/text", "");
  for (const char* name : {"/missing", "/text"}) {
    ::setenv(kVariable, (root_ + name).c_str(), 1);
    ExpectError(HelperPath(), StatusCode::kBackendUnavailable,
                {kVariable, root_ + name});
  }
}

TEST_F(HelperPathTest, ItIsInstalledInLibexec) {
  MakeProgram(root_ + "/usr/libexec/libshard/shard-network");
  MakeProgram(root_ + "/usr/lib/shard-network");
  EXPECT_EQ(FoundBy(root_ + "/usr/lib/host"),
            root_ + "/usr/libexec/libshard/shard-network");
}

TEST_F(HelperPathTest, ItLiesBesideTheLibrary) {
  MakeProgram(root_ + "/tree/shard-network");
  EXPECT_EQ(FoundBy(root_ + "/tree/host"), root_ + "/tree/shard-network");
}

TEST_F(HelperPathTest, ALinkToTheLibraryIsFollowed) {
  MakeProgram(root_ + "/usr/libexec/libshard/shard-network");
  FoundBy(root_ + "/usr/lib/host");
  std::filesystem::create_symlink(root_ + "/usr/lib/host", root_ + "/host");
  FILE* const pipe = ::popen((root_ + "/host").c_str(), "r");
  std::string output(4096, '\0');
  output.resize(std::fread(output.data(), 1, output.size(), pipe));
  ::pclose(pipe);
  EXPECT_EQ(output, root_ + "/usr/libexec/libshard/shard-network");
}

TEST_F(HelperPathTest, AllPathsThatWereTriedAreNamed) {
  const std::string output = FoundBy(root_ + "/usr/lib/host");
  EXPECT_EQ(output.find("BACKEND_UNAVAILABLE"), 0u) << output;
  for (const std::string& part :
       {root_ + "/usr/lib/../libexec/libshard/shard-network",
        root_ + "/usr/lib/shard-network", std::string(kVariable)}) {
    EXPECT_TRUE(Contains(output, part)) << part << " in " << output;
  }
}

}  // namespace
}  // namespace shard::testing::helper_path_test
