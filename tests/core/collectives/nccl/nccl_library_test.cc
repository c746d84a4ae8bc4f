// SPDX-License-Identifier: Apache-2.0
//
// Files that are called libnccl.so.2: those of the loader's path, and those
// that the host has loaded before.

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>

#include "core/collectives/nccl/library.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/in_child.h"

namespace shard::nccl {
namespace {

using testing::InChild;

// The loader finds the version 2.18.5: see BUILD.bazel.
constexpr int kFound = 21805;

std::string PathOf(const std::string& folder) {
  return "tests/fake_nccl/" + folder + "/libnccl.so.2";
}

void Load(const std::string& path, int flags) {
  ASSERT_NE(dlopen(path.c_str(), RTLD_NOW | flags), nullptr) << dlerror();
}

TEST(NcclLibraryTest, IsTheOneOfTheLoader) {
  InChild([] {
    const auto opened = OpenNccl();
    ASSERT_OK(opened);
    EXPECT_EQ(opened->version, kFound);
    EXPECT_EQ(opened->library.origin(), cuda::Library::Origin::kAnywhere);
  });
}

TEST(NcclLibraryTest, TheProcesssOwnComesFirst) {
  for (const int flags : {RTLD_LOCAL, RTLD_GLOBAL}) {
    InChild([flags] {
      Load(PathOf("v2_27"), flags);
      const auto opened = OpenNccl();
      ASSERT_OK(opened);
      EXPECT_EQ(opened->version, 22703);
      EXPECT_EQ(opened->library.origin(), cuda::Library::Origin::kProcess);
    });
  }
}

// No second copy is loaded beside it.
TEST(NcclLibraryTest, AnUnusableOneOfTheProcessIsNamed) {
  for (const int flags : {RTLD_LOCAL, RTLD_GLOBAL}) {
    for (const auto& [folder, text] :
         {std::pair("v2_12", "is of version 2.12.12; libshard needs 2.18.0"),
          std::pair("v3_0", "is of version 3.0.0; libshard needs 2.18.0"),
          std::pair("partial", "lacks nccl")}) {
      InChild([&, folder = folder, text = text] {
        Load(PathOf(folder), flags);
        ExpectError(OpenNccl(), StatusCode::kBackendUnavailable,
                    {"no usable NCCL: libnccl.so.2 (", PathOf(folder),
                     "which the process had before", text,
                     "let the process load NCCL 2.18.0 or later"});
      });
    }
  }
}

struct Features {
  const char* folder;
  const char* no_registration = "";
  const char* no_windows = "";
};

// A build may lack what its version has: nothing of it is called then, and the
// reason names what is missing.
TEST(NcclLibraryTest, WhatIsMissingIsNotUsed) {
  static constexpr Features kCases[] = {
      {"v2_18", "NCCL 2.18.5 does not register memory; use 2.19.0 or later",
       "NCCL 2.18.5 makes no windows that collectives can use; use 2.31.2 or "
       "later"},
      {"v2_31"},
      {"no_registration",
       "NCCL 2.28.9 lacks ncclCommDeregister, which 2.19.0 has, and so does "
       "not register memory; install another build of it on all hosts",
       "NCCL 2.28.9 makes no windows that collectives can use; use 2.31.2 or "
       "later"},
      {"no_windows", "",
       "NCCL 2.31.2 lacks ncclCommWindowRegister, which 2.31.2 has, and so "
       "makes no windows that collectives can use; install another build of "
       "it on all hosts"},
  };
  for (const Features& it : kCases) {
    SCOPED_TRACE(it.folder);
    InChild([&it] {
      Load(PathOf(it.folder), RTLD_LOCAL);
      const auto opened = OpenNccl();
      ASSERT_OK(opened);
      EXPECT_EQ(opened->WhyNoRegistration(), it.no_registration);
      EXPECT_EQ(opened->WhyNoWindows(), it.no_windows);
      EXPECT_EQ(opened->api.HasRegistration(), *it.no_registration == '\0');
      EXPECT_EQ(opened->api.HasWindows(), *it.no_windows == '\0');
    });
  }
}

TEST(NcclLibraryTest, ACallThatMayBlockIsRefused) {
  InChild([] {
    for (const char* const value : {"1", "2", "yes"}) {
      ASSERT_EQ(::setenv("NCCL_COMM_BLOCKING", value, 1), 0);
      const auto opened = OpenNccl();
      ExpectError(opened, StatusCode::kBackendUnavailable,
                  {"NCCL_COMM_BLOCKING=", value, "unset it"});
      EXPECT_EQ(opened.status().message().find("install"), std::string::npos);
    }
    for (const char* const value : {"", "0"}) {
      ASSERT_EQ(::setenv("NCCL_COMM_BLOCKING", value, 1), 0);
      EXPECT_OK(OpenNccl());
    }
  });
}

}  // namespace
}  // namespace shard::nccl
