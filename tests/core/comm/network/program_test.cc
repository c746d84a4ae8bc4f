// SPDX-License-Identifier: Apache-2.0
//
// The command line of shard-network.

#include <sys/wait.h>

#include <cstdio>

#include "shard/base.h"
#include "tests/core/comm/network/local_helper.h"

namespace shard::testing::program_test {
namespace {

struct Result {
  int exit_code;
  std::string output;  // Both outputs.
};

Result RunProgram(const std::string& arguments) {
  FILE* const pipe =
      ::popen(StrCat(ProgramPath(), " ", arguments, " 2>&1").c_str(), "r");
  Result result = {-1, std::string(8192, '\0')};
  result.output.resize(
      std::fread(result.output.data(), 1, result.output.size(), pipe));
  result.exit_code = WEXITSTATUS(::pclose(pipe));
  return result;
}

TEST(ProgramTest, HelpAndVersion) {
  const Result help = RunProgram("--help");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_TRUE(Contains(help.output, "Usage: shard-network --listen-fd=N"));
  const Result version = RunProgram("--version");
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_EQ(version.output,
            StrCat("shard-network (libshard) ", SHARD_VERSION_MAJOR, ".",
                   SHARD_VERSION_MINOR, ".", SHARD_VERSION_PATCH, "\n"));
  EXPECT_EQ(RunProgram("--help >/dev/full").exit_code, 3);
}

TEST(ProgramTest, WrongUseIsNamed) {
  const auto expect = [](const std::string& arguments,
                         const std::string& part) {
    const Result result = RunProgram(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_TRUE(Contains(result.output, part)) << result.output;
    EXPECT_EQ(result.output.find("shard-network: "), 0u) << result.output;
  };
  expect("", "--listen-fd is missing");
  expect("--listen", "there is no argument '--listen'");
  expect("serve", "there is no argument 'serve'");
  for (const std::string fd : {"", "x", "-1", "2", "99999999999"}) {
    expect(StrCat("--listen-fd=", fd), "names no descriptor");
  }
  expect("--listen-fd=77", "descriptor 77 is not open");
  expect("--listen-fd=5 5</dev/null", "no listening socket");
}

}  // namespace
}  // namespace shard::testing::program_test
