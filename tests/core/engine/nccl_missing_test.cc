// SPDX-License-Identifier: Apache-2.0
//
// One of the ranks, which are processes, finds no libnccl.so.2, or has loaded
// another one. The creation of the engine is an error on all ranks, at once,
// that names this rank and says why. Not linked with the fake of NCCL, which
// each process then has from its start: the other ranks load it.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/nccl_training.h"
#include "tests/ranks/ranks.h"

namespace shard::nccl_missing_test {
namespace {

using nccl_training::Form;
using nccl_training::MakeEngineOn;
using nccl_training::MakePlan;
using testing::Rank;

constexpr int kRanks = 3;
constexpr double kTimeout = 30;
constexpr char kFake[] = "tests/fake_nccl/libnccl.so.2";

// Makes an engine on ranks that are processes, one of which has loaded another
// file before, or none for "". All ranks get an error with the texts, in time.
void ExpectNoNccl(int odd, const std::string& file,
                  const std::vector<std::string>& texts) {
  SCOPED_TRACE(StrCat("rank ", odd, " has '", file, "'"));
  const std::string url = StrCat("shm:", testing::UniqueName(), "?direct=0");
  testing::ExpectAllPassed(testing::RunRanks(kRanks, [&](const Rank& me) {
    const std::string loaded = me.rank() == odd ? file : kFake;
    if (!loaded.empty()) {
      ASSERT_NE(::dlopen(loaded.c_str(), RTLD_NOW | RTLD_LOCAL), nullptr)
          << ::dlerror();
    }
    CommOptions options;
    options.rank = me.rank();
    options.world_size = kRanks;
    options.timeout = kTimeout;
    const auto comm = OpenCommunicator(url, options);
    ASSERT_OK(comm);
    const Form form = {.world_size = kRanks};
    const auto begin = std::chrono::steady_clock::now();
    const Status status = MakeEngineOn("cuda", MakePlan(form), *comm).status();
    const std::chrono::duration<double> took =
        std::chrono::steady_clock::now() - begin;
    EXPECT_LT(took.count(), kTimeout / 2);
    for (const std::string& text : texts) {
      ExpectError(status, StatusCode::kBackendUnavailable, {text});
    }
    // The ranks go on together without it.
    EXPECT_OK((*comm)->Barrier("told", Deadline::After(kTimeout)));
    EXPECT_OK((*comm)->Shutdown(Deadline::After(kTimeout)));
  }));
}

TEST(NcclMissingTest, TheRankThatLacksItIsNamedOnAllRanks) {
  for (int lacking = 0; lacking < kRanks; ++lacking) {
    ExpectNoNccl(lacking, "",
                 {StrCat("rank ", lacking, ": no usable NCCL: "),
                  "libnccl.so.2", "install NCCL"});
  }
}

// A library that the host of one rank has loaded before is used there.
TEST(NcclMissingTest, TheRankThatHasLoadedAnotherIsNamedOnAllRanks) {
  for (int odd = 0; odd < kRanks; ++odd) {
    ExpectNoNccl(odd, "tests/fake_nccl/v3_0/libnccl.so.2",
                 {StrCat("rank ", odd, ": no usable NCCL"), "3.0.0",
                  "libshard needs 2.18.0"});
  }
  ExpectNoNccl(
      2, "tests/fake_nccl/v2_27/libnccl.so.2",
      {"rank 0 has NCCL 2.28.9, rank 2 has 2.27.3", "install one version"});
}

}  // namespace
}  // namespace shard::nccl_missing_test
