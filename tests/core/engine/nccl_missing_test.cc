// SPDX-License-Identifier: Apache-2.0
//
// One of the ranks, which are processes, finds no libnccl.so.2. The creation of
// the engine is an error on all ranks, at once, that names this rank and says
// why. Not linked with the fake of NCCL, which each process then has from its
// start: the other ranks load it.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

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

TEST(NcclMissingTest, TheRankThatLacksItIsNamedOnAllRanks) {
  for (int lacking = 0; lacking < kRanks; ++lacking) {
    SCOPED_TRACE(StrCat("rank ", lacking, " lacks it"));
    const std::string url = StrCat("shm:", testing::UniqueName(), "?direct=0");
    testing::ExpectAllPassed(testing::RunRanks(kRanks, [&](const Rank& me) {
      if (me.rank() != lacking) {
        ASSERT_NE(::dlopen(kFake, RTLD_NOW | RTLD_LOCAL), nullptr)
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
      const Status status =
          MakeEngineOn("cuda", MakePlan(form), *comm).status();
      const std::chrono::duration<double> took =
          std::chrono::steady_clock::now() - begin;
      EXPECT_LT(took.count(), kTimeout / 2);
      ExpectError(status, StatusCode::kBackendUnavailable,
                  {StrCat("rank ", lacking, ": no usable NCCL: "),
                   "libnccl.so.2", "install NCCL"});
      // The ranks go on together without it.
      EXPECT_OK((*comm)->Barrier("told", Deadline::After(kTimeout)));
      EXPECT_OK((*comm)->Shutdown(Deadline::After(kTimeout)));
    }));
  }
}

}  // namespace
}  // namespace shard::nccl_missing_test
