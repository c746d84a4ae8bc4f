// SPDX-License-Identifier: Apache-2.0
//
// A rank is killed, at every phase of a run and at random moments, with
// optimizers that look at elements, at blocks and at matrices. The others get
// kRankLost that names it, no later than the deadline and a second.

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/engine/engine.h"
#include "core/optim/groups.h"
#include "tests/core/comm/tcp_hosts.h"
#include "tests/core/flat/sharding.h"
#include "tests/ranks/ranks.h"

namespace shard {
namespace {

using testing::Rank;
using testing::RankResult;
using testing::RunRanks;

constexpr int kWorldSize = 3;
constexpr double kDeadline = 5;

// The ranks are on several hosts.
constexpr char kHosts[] = "hosts";

// A way to train. Every other step is clipped by norm.
struct Kind {
  const char* name;
  const char* optimizer;
  double grad_norm_type = 2;
  int stage = 1;
  const char* link = "";  // The parameters of the URL, or kHosts.
  const char* device = "cpu";
};

constexpr Kind kKinds[] = {
    {"adamw", "adamw"},
    // This norm takes another pass, for the largest magnitude.
    {"p_norm", "adamw", 3},
    {"q8", "adamw?states=q8"},
    {"muon", "muon"},
    // Communication has a thread of its own.
    {"stage3", "adamw", 2, 3},
    {"stage2_apart", "adamw", 2, 2, "?direct=0"},
    {"stage3_apart", "adamw", 2, 3, "?direct=0"},
    // All work has threads of its own.
    {"async", "adamw", 2, 1, "", "cpu-async"},
    {"stage3_async", "adamw", 2, 3, "", "cpu-async"},
    {"stage2_apart_async", "adamw", 2, 2, "?direct=0", "cpu-async"},
    {"stage3_apart_async", "adamw", 2, 3, "?direct=0", "cpu-async"},
    {"stage2_hosts", "adamw", 2, 2, kHosts},
    {"stage3_hosts", "adamw", 2, 3, kHosts},
};

// The URLs of a group. The ranks open them while this exists.
class Meeting {
 public:
  explicit Meeting(const Kind& kind)
      : url_(StrCat("shm:", testing::UniqueName(), kind.link)) {
    if (kind.link == kHosts) hosts_.emplace(kWorldSize);
  }
  std::string Url(int rank) const { return hosts_ ? hosts_->Url(rank) : url_; }

 private:
  const std::string url_;
  std::optional<testing::TcpHosts> hosts_;
};

// There are so many units that sharding saves memory in stages 2 and 3.
constexpr ParamId kParams = 6;

StatusOr<std::shared_ptr<const Plan>> MakePlan(const Kind& kind,
                                               int64_t width) {
  auto model = std::make_shared<Model>("Test");
  for (ParamId i = 0; i < kParams; ++i) {
    SHARD_ASSIGN_OR_RETURN(
        const ModuleId unit,
        model->AddModule(kRootModule, StrCat("unit", i), "Unit"));
    SHARD_RETURN_IF_ERROR(
        model->AddParam(unit, "weight", DType::kF32, {width, 100}).status());
  }
  PlanOptions options;
  options.world_size = kWorldSize;
  options.stage = kind.stage;
  SHARD_ASSIGN_OR_RETURN(options.wrap, WrapPolicy::Parse("class?names=Unit"));
  SHARD_ASSIGN_OR_RETURN(options.groups, PlanGroups(*model, kind.optimizer));
  SHARD_ASSIGN_OR_RETURN(auto plan, Plan::Create(std::move(model), options));
  const auto shards = ShardsAsItsStage(*plan);
  if (!shards) return Internal(shards.message());
  return plan;
}

// Runs the passes, with a gradient of 1 for the first element of each
// parameter.
Status RunPasses(Engine* engine) {
  for (ParamId param = 0; param < kParams; ++param) {
    const int32_t unit = engine->plan().UnitOf(param);
    SHARD_RETURN_IF_ERROR(engine->UnitAcquire(unit, Pass::kForward, 0));
    SHARD_RETURN_IF_ERROR(engine->UnitRelease(unit));
  }
  for (ParamId param = kParams; param-- > 0;) {
    const int32_t unit = engine->plan().UnitOf(param);
    SHARD_RETURN_IF_ERROR(engine->UnitAcquire(unit, Pass::kBackward, 0));
    SHARD_ASSIGN_OR_RETURN(const auto grad, engine->Grad(param));
    *static_cast<float*>(grad.data) = 1;
    SHARD_RETURN_IF_ERROR(engine->MarkUnitGradsReady(unit));
    SHARD_RETURN_IF_ERROR(engine->UnitRelease(unit));
  }
  return Status();
}

// Makes a whole run: meet, create, broadcast, `steps` steps of both forms, shut
// down.
Status Train(const std::string& url, const CommOptions& options,
             const Kind& kind, int64_t width, int steps) {
  SHARD_ASSIGN_OR_RETURN(const auto plan, MakePlan(kind, width));
  SHARD_ASSIGN_OR_RETURN(const auto comm, OpenCommunicator(url, options));
  EngineOptions engine_options;
  engine_options.device = kind.device;
  SHARD_ASSIGN_OR_RETURN(const auto engine,
                         Engine::Create(plan, comm, engine_options));
  SHARD_RETURN_IF_ERROR(engine->BroadcastParams(0));
  for (int step = 0; step < steps; ++step) {
    StepOptions step_options;
    step_options.max_grad_norm = step % 2 == 0 ? 0 : 1;
    step_options.grad_norm_type = kind.grad_norm_type;
    // A norm of type p has its second gather only where it is above 0.
    SHARD_RETURN_IF_ERROR(RunPasses(engine.get()));
    StepReport report;
    SHARD_RETURN_IF_ERROR(engine->Step(step_options, &report));
  }
  return comm->Shutdown(Deadline::After(kDeadline));
}

CommOptions OptionsOf(int rank) {
  CommOptions options;
  options.rank = rank;
  options.world_size = kWorldSize;
  options.timeout = kDeadline;
  return options;
}

// Returns the report of a survivor: "RANK_LOST 1 <message>".
std::string Outcome(const Status& status) {
  return StrCat(StatusCodeName(status.code()), " ", status.rank(), " ",
                status.message());
}

void ExpectNamedTheVictim(const std::vector<RankResult>& results, int victim,
                          const std::string& when) {
  const double died = results[static_cast<size_t>(victim)].seconds;
  for (const RankResult& result : results) {
    if (result.rank == victim) {
      EXPECT_EQ(result.signal, SIGKILL) << when << ": " << result.ToString();
      continue;
    }
    EXPECT_TRUE(result.passed()) << when << ": " << result.ToString();
    EXPECT_EQ(result.report.rfind(StrCat("RANK_LOST ", victim, " "), 0), 0u)
        << when << ": " << result.ToString();
    EXPECT_LE(result.seconds - died, kDeadline + 1) << when;
  }
}

// Kills `victim` when it calls the collective `phase` for the nth time, of
// whichever unit.
void ExpectOthersNameTheLostRank(const Kind& kind, const std::string& phase,
                                 int victim, int nth) {
  const Meeting meeting(kind);
  const auto results = RunRanks(kWorldSize, [&](const Rank& rank) {
    CommOptions options = OptionsOf(rank.rank());
    // The engine's thread calls the hook, too.
    std::atomic<int> calls{0};
    if (rank.rank() == victim) {
      options.phase_hook = [&](std::string_view what) {
        const std::string_view name = what.substr(0, what.find(" of unit "));
        if (name == phase && ++calls == nth) kill(getpid(), SIGKILL);
      };
    }
    const Status status = Train(meeting.Url(rank.rank()), options, kind, 50, 4);
    rank.Report(Outcome(status));
    EXPECT_NE(rank.rank(), victim)
        << "collective '" << phase << "' was called " << calls.load()
        << " times: " << status.ToString();
  });
  ExpectNamedTheVictim(results, victim, StrCat(kind.name, ", ", phase));
}

std::string NameOf(const std::string& phase, int victim) {
  std::string name = StrCat(phase, " rank ", victim);
  for (char& c : name) {
    if (c == ' ' || c == ':') c = '_';
  }
  return name;
}

class KillAtPhaseTest
    : public ::testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(KillAtPhaseTest, OthersNameTheLostRank) {
  const auto [phase, victim] = GetParam();
  ExpectOthersNameTheLostRank(kKinds[0], phase, victim, 1);
}

// Rank 0 makes the memory and hosts the meeting; the last rank owns the end of
// each tensor's shards.
INSTANTIATE_TEST_SUITE_P(
    AllPhases, KillAtPhaseTest,
    ::testing::Combine(
        ::testing::Values("create engine", "the plan", "allocate parameters",
                          "allocate parameters: memory created",
                          "allocate parameters: memory mapped",
                          "allocate gradients", "allocate private memory",
                          "start streams", "find a BLAS", "agree on operation",
                          "step: global norm", "step: parameters published",
                          "shutdown"),
        ::testing::Values(0, 1, 2)),
    [](const auto& info) {
      return NameOf(std::get<0>(info.param), std::get<1>(info.param));
    });

// The rank dies in one of the first two steps, of which one is clipped, while
// ranks hold matrices, blocks or sums of norms.
class KillInStepTest
    : public ::testing::TestWithParam<std::tuple<Kind, const char*, int>> {};

TEST_P(KillInStepTest, OthersNameTheLostRank) {
  const auto [kind, phase, victim] = GetParam();
  // The first operation on which the ranks agree is the broadcast.
  const int before = phase == std::string("agree on operation") ? 1 : 0;
  for (const int nth : {1, 2}) {
    ExpectOthersNameTheLostRank(kind, phase, victim, before + nth);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, KillInStepTest,
    ::testing::Combine(::testing::ValuesIn(kKinds, kKinds + 4),
                       ::testing::Values("agree on operation",
                                         "step: global norm",
                                         "step: parameters published"),
                       ::testing::Values(0, 1, 2)),
    [](const auto& info) {
      return StrCat(std::get<0>(info.param).name, "_",
                    NameOf(std::get<1>(info.param), std::get<2>(info.param)));
    });

// The rank dies in work of the engine's threads.
class KillInPassTest : public ::testing::TestWithParam<
                           std::tuple<std::pair<int, const char*>, int>> {};

TEST_P(KillInPassTest, OthersNameTheLostRank) {
  const auto [where, victim] = GetParam();
  for (const int nth : {1, 4}) {
    ExpectOthersNameTheLostRank(kKinds[where.first], where.second, victim, nth);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Phases, KillInPassTest,
    ::testing::Combine(
        ::testing::Values(std::pair(4, "agree on operation"),
                          std::pair(4, "gradients of a unit reduced"),
                          std::pair(5, "reduce gradients"),
                          std::pair(5, "publish parameters"),
                          std::pair(6, "gather parameters"),
                          std::pair(6, "reduce gradients"),
                          std::pair(7, "step: gradients complete"),
                          std::pair(7, "step: parameters published"),
                          std::pair(8, "gradients of a unit reduced"),
                          std::pair(9, "reduce gradients"),
                          std::pair(9, "publish parameters"),
                          std::pair(10, "gather parameters"),
                          std::pair(10, "reduce gradients"),
                          std::pair(11, "agree on operation"),
                          std::pair(11, "reduce gradients"),
                          std::pair(11, "publish parameters"),
                          std::pair(12, "gather parameters"),
                          std::pair(12, "reduce gradients")),
        ::testing::Values(0, 1, 2)),
    [](const auto& info) {
      const auto& where = std::get<0>(info.param);
      return StrCat(kKinds[where.first].name, "_",
                    NameOf(where.second, std::get<1>(info.param)));
    });

// The rank dies at any time: between collectives, inside a kernel, while others
// wait.
TEST(KillTest, AtRandomMoments) {
  const int rounds = std::getenv("SHARD_TEST_LONG") != nullptr ? 1000 : 40;
  std::mt19937 generator(20240607);
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    const Kind& kind = kKinds[static_cast<size_t>(round) % std::size(kKinds)];
    const auto delay = std::chrono::microseconds(generator() % 30000);
    const int victim = static_cast<int>(generator() % kWorldSize);
    const Meeting meeting(kind);
    const auto results = RunRanks(kWorldSize, [&](const Rank& rank) {
      const auto comm_options = OptionsOf(rank.rank());
      std::once_flag once;
      std::thread killer;
      CommOptions options = comm_options;
      if (rank.rank() == victim) {
        // The delay begins after the ranks have met: until then none knows the
        // victim.
        options.phase_hook = [&](std::string_view what) {
          if (what != "open: trace") return;
          std::call_once(once, [&] {
            killer = std::thread([delay] {
              std::this_thread::sleep_for(delay);
              kill(getpid(), SIGKILL);
            });
          });
        };
      }
      // The longest delay ends before this many steps.
      const Status status =
          Train(meeting.Url(rank.rank()), options, kind, 20000, 1000000);
      rank.Report(Outcome(status));
      if (killer.joinable()) killer.join();
    });
    ExpectNamedTheVictim(results, victim,
                         StrCat("round ", round, ", ", kind.name, ", rank ",
                                victim, ", ", delay.count(), " us"));
  }
}

}  // namespace
}  // namespace shard
