// SPDX-License-Identifier: Apache-2.0
//
// Random programs in which ranks make the same calls, while each lets the
// library reduce gradients at another time: one rank declares a unit's
// gradients and then waits in a sum, the other one does the reverse. Calls move
// between threads, most saves go on in the background, and ranks come late. No
// wait may be taken for a deadlock, although the ranks look for deadlocks as
// soon as they wait. SHARD_TEST_LONG runs 2,000 programs.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/comm/host_waits.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/core/engine/unit_calls.h"

namespace shard::valid_programs_test {
namespace {

using testing::Form;
using testing::kForms;
using Random = std::minstd_rand;

// The host of one rank.
class Host {
 public:
  // `common` has the same values on all ranks, and `own` has not.
  Host(Engine* engine, Communicator* comm, std::string folder, uint32_t common,
       uint32_t own)
      : engine_(*engine),
        comm_(*comm),
        folder_(std::move(folder)),
        common_(common),
        own_(own) {}

  void RunProgram() {
    const int32_t units = static_cast<int32_t>(engine_.plan().units().size());
    for (int32_t u = 0; u < units; ++u) {
      Acquire(u, Pass::kForward);
      UseCommunicator();
      Release(u);
    }
    for (int32_t u = units; u-- > 0;) {
      Acquire(u, Pass::kBackward);
      // The gradients are declared before, between or after the collectives.
      const uint32_t collectives = common_() % 3;
      const uint32_t ready = own_() % (collectives + 1);
      for (uint32_t i = 0; i <= collectives; ++i) {
        if (i == ready) {
          Call("ready", [&] { return engine_.MarkUnitGradsReady(u); });
        }
        if (i < collectives) UseCommunicator();
      }
      Release(u);
      if (own_() % 8 == 0) WaitForSave();
    }
    UseCommunicator();
    Call("step", [&] {
      StepReport report;
      return engine_.Step(StepOptions(), &report);
    });
    if (common_() % 16 != 0) return;
    Call("save", [&] {
      SaveOptions options;
      options.async = common_() % 4 != 0;
      options.overwrite = true;
      auto saved = engine_.Save(folder_, options);
      if (saved.ok()) saving_ = *saved;
      return saved.status();
    });
  }

 private:
  void Acquire(int32_t unit, Pass pass) {
    Call("acquire", [&] { return engine_.UnitAcquire(unit, pass, 0); });
  }
  void Release(int32_t unit) {
    Call("release", [&] { return engine_.UnitRelease(unit); });
  }

  // A save in the background ends without a call of another rank.
  void WaitForSave() {
    if (saving_ == nullptr) return;
    EXPECT_OK(saving_->Wait(saving_->deadline()));
    saving_ = nullptr;
  }

  void UseCommunicator() {
    const Deadline deadline = Deadline::After(comm_.timeout());
    double value = 1;
    switch (common_() % 4) {
      case 0:
        return Call("sum", [&] {
          return AllReduceSum(&comm_, "sum", &value, 1, deadline);
        });
      case 1:
        return Call("barrier",
                    [&] { return comm_.Barrier("barrier", deadline); });
      case 2:
        return Call("broadcast", [&] {
          return comm_.Broadcast("broadcast", 1, &value, sizeof(value),
                                 deadline);
        });
      default:
        return;
    }
  }

  // Makes a call of the C interface, sometimes late, or on another thread.
  template <typename Act>
  void Call(const char* name, Act act) {
    const uint32_t chance = own_() % 64;
    if (chance < 8) std::this_thread::yield();
    if (chance == 8) {
      std::this_thread::sleep_for(std::chrono::microseconds(own_() % 500));
    }
    const auto call = [&] {
      const HostCall::Scope scope(&comm_.host_waits()->call(), name);
      EXPECT_OK(act());
    };
    if (chance < 60) return call();
    std::thread other(call);
    other.join();
  }

  Engine& engine_;
  Communicator& comm_;
  const std::string folder_;
  std::shared_ptr<AsyncSave> saving_;  // Null: there is none to wait for.
  Random common_;
  Random own_;
};

class ValidProgramsTest : public testing::UnitCallsTest {};

TEST_P(ValidProgramsTest, NoDeadlockIsFound) {
  const bool is_long = std::getenv("SHARD_TEST_LONG") != nullptr;
  const uint32_t programs = is_long ? 250 : 10;
  constexpr uint32_t kPrograms = 5;  // Of one engine.
  const testing::TempFolder folder;
  for (uint32_t first = 0; first < programs; first += kPrograms) {
    testing::World world;
    world.world_size = 2 + static_cast<int>(first / kPrograms % 2);
    world.engine.overlap = first / kPrograms % 4 >= 2;
    const auto plan = MakePlan(GetParam(), world);
    ASSERT_OK(plan);
    ASSERT_TRUE(ShardsAsItsStage(**plan));
    CommOptions options;
    options.timeout = 60;
    options.find_deadlocks_at_once = true;
    RunThreadRanks(
        world.world_size,
        [&](const auto& comm) {
          auto made = CreateEngine(*plan, comm, world.engine);
          ASSERT_OK(made);
          ASSERT_OK((*made)->BroadcastParams(0));
          const auto rank = static_cast<uint32_t>(comm->rank());
          Host host(made->get(), comm.get(), folder.path(), first + 1,
                    1000 * rank + first + 7);
          for (uint32_t p = 0; p < kPrograms; ++p) host.RunProgram();
        },
        options, GetParam().link);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, ValidProgramsTest, ::testing::ValuesIn(kForms),
                         testing::NameOf);

}  // namespace
}  // namespace shard::valid_programs_test
