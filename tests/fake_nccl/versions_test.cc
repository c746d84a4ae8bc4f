// SPDX-License-Identifier: Apache-2.0
//
// The libraries of the fake that have other versions than the one that tests
// are linked with, and lack functions.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/core/base/in_child.h"
#include "tests/fake_nccl/abi.h"

namespace shard::versions_test {
namespace {

using namespace testing::fake_nccl;

struct Case {
  const char* folder;
  int version;
  bool has_split, has_windows, has_revoke, has_peers, has_reduce_scatter;
  bool has_deregister = has_windows;
};

void Check(const Case& it) {
  const std::string path =
      std::string("tests/fake_nccl/") + it.folder + "/libnccl.so.2";
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto get_version =
      reinterpret_cast<Result (*)(int*)>(dlsym(library, "ncclGetVersion"));
  ASSERT_NE(get_version, nullptr);
  int version = 0;
  EXPECT_EQ(get_version(&version), Result::kSuccess);
  EXPECT_EQ(version, it.version);
  const auto has = [&](const char* symbol) {
    return dlsym(library, symbol) != nullptr;
  };
  EXPECT_TRUE(has("ncclCommAbort"));
  EXPECT_EQ(has("ncclCommSplit"), it.has_split);
  EXPECT_EQ(has("ncclCommWindowRegister"), it.has_windows);
  EXPECT_EQ(has("ncclCommRevoke"), it.has_revoke);
  EXPECT_EQ(has("ncclGetPeerDevicePointer"), it.has_peers);
  EXPECT_EQ(has("ncclReduceScatter"), it.has_reduce_scatter);
  EXPECT_EQ(has("ncclCommDeregister"), it.has_deregister);
}

TEST(VersionsTest, OldVersionsLackFunctions) {
  static constexpr Case kCases[] = {
      {"v2_12", 21212, false, false, false, false, true},
      {"v2_18", 21805, true, false, false, false, true},
      {"v2_27", 22703, true, true, false, false, true},
      {"v2_31", 23102, true, true, true, true, true},
      {"v3_0", 30000, true, true, true, true, true},
      {"no_registration", 22809, true, true, true, true, true, false},
      {"no_windows", 23102, true, false, true, true, true, true},
      {"partial", 22809, true, true, true, true, false},
  };
  for (const Case& it : kCases) {
    SCOPED_TRACE(it.folder);
    // A process has one library of a name.
    testing::InChild([&] { Check(it); });
  }
}

}  // namespace
}  // namespace shard::versions_test
