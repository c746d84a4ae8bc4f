// SPDX-License-Identifier: Apache-2.0
//
// The bytes of tensors that a host sends to others in a step are those of the
// formulas in docs/scaling.md.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/dtype.h"
#include "core/base/strings.h"
#include "core/comm/direct/host_chain.h"
#include "core/flat/plan.h"
#include "core/observe/event.h"
#include "core/observe/observer.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/comm/mirrored_hosts.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/unit_training.h"

namespace shard {
namespace {

using testing::MirroredHosts;

constexpr int kBlocks = 5;
constexpr int kPrefetch = 1;

// A step's plan, and the first rank of each host and the number of ranks.
struct Case {
  int stage = 1;
  std::vector<int> begins;
  std::string optimizer = "adamw";
  DType dtype = DType::kF32;
  bool f32_grads = false;
  bool deterministic = false;
  int group_size = 0;
  int passes = 1;
  direct::HostSums sums = direct::HostSums::kFewestBytes;

  int ranks() const { return begins.back(); }
  int hosts() const { return static_cast<int>(begins.size()) - 1; }
  int ranks_of(int host) const {
    const auto h = static_cast<size_t>(host);
    return begins[h + 1] - begins[h];
  }
};

std::string Describe(const Case& test) {
  return StrCat("stage ", test.stage, ", ", test.ranks(), " ranks on ",
                test.hosts(), " hosts, ", test.optimizer, ", groups of ",
                test.group_size, ", passes ", test.passes, ", sums ",
                direct::HostSumsName(test.sums));
}

UnitTraining TrainingOf(const Case& test) {
  UnitTraining training;
  training.model = std::make_shared<Model>("Root");
  for (int b = 0; b < kBlocks; ++b) {
    const auto block =
        training.model->AddModule(kRootModule, StrCat("block", b), "Block");
    EXPECT_OK(block);
    // A rank's part is larger than what goes with a round's control data.
    EXPECT_OK(training.model->AddParam(*block, "weight", DType::kF32,
                                       {int64_t{250}, int64_t{240}}));
  }
  training.wrap = "class?names=Block";
  training.optimizer = test.optimizer;
  training.plan.world_size = test.ranks();
  training.plan.stage = test.stage;
  training.plan.param_dtype = test.dtype;
  training.plan.f32_grads = test.f32_grads;
  training.plan.deterministic = test.deterministic;
  training.plan.shard_group_size = test.group_size;
  training.plan.prefetch = kPrefetch;
  return training;
}

// Whether sums pass from host to host: by the bytes that the host sends which
// sends most, for W elements.
bool IsOnChain(const Case& test, size_t element_bytes) {
  if (test.sums != direct::HostSums::kFewestBytes) {
    return test.sums == direct::HostSums::kChain;
  }
  const auto W = static_cast<size_t>(test.ranks());
  size_t direct = 0;
  for (int host = 0; host < test.hosts(); ++host) {
    const auto k = static_cast<size_t>(test.ranks_of(host));
    direct = std::max(direct, k * (W - k) * element_bytes);
  }
  return 4 * W < direct;
}

// The formulas of docs/scaling.md, for one host.
size_t Predict(const Case& test, const Plan& plan, int host) {
  const auto k = static_cast<size_t>(test.ranks_of(host));
  const auto W = static_cast<size_t>(test.ranks());
  const auto H = static_cast<size_t>(test.hosts());
  size_t bytes = 0;
  size_t gathered = 0;
  for (const FlatBufferPlan& buffer : plan.buffers()) {
    // P / W, rounded up.
    const auto range = static_cast<size_t>(buffer.layout.shard_numel());
    const size_t grad_bytes = DTypeSize(buffer.grad_dtype);
    const size_t publish = range * DTypeSize(buffer.dtype);
    const bool in_levels = test.group_size > 0 && !test.deterministic;
    const size_t reductions =
        plan.shards_grads() ? static_cast<size_t>(test.passes) : 1;
    size_t reduce = 0;
    if (in_levels) {
      reduce = k * (H - 1) * grad_bytes;
    } else if (IsOnChain(test, grad_bytes)) {
      reduce = (host + 1 == test.hosts() ? W - k : W) * 4;
    } else {
      reduce = k * (W - k) * grad_bytes;
    }
    bytes += reductions * range * reduce;
    if (!plan.shards_params() || test.group_size > 0) {
      bytes += k * (H - 1) * publish;
    } else {
      gathered = k * (H - 1) * publish;
    }
  }
  // Units are gathered before each direction of a pass, but for those that are
  // in their slots still: the last 1 + prefetch where it turns.
  const auto turns = static_cast<size_t>(2 * test.passes - 1);
  return bytes + gathered * ((turns + 1) * kBlocks - turns * (1 + kPrefetch));
}

// Returns the bytes that each host has sent in the second step.
std::vector<size_t> Count(const Case& test,
                          const std::shared_ptr<const Plan>& plan) {
  const UnitTraining training = TrainingOf(test);
  MirroredHosts hosts(test.begins, test.sums);
  std::vector<size_t> sent(static_cast<size_t>(test.hosts()));
  // By rank, by its own counter.
  std::vector<size_t> shipped(static_cast<size_t>(test.ranks()));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < test.ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      const std::shared_ptr<Communicator> comm =
          hosts.Open({.rank = rank, .world_size = test.ranks()});
      const auto soon = [] { return Deadline::After(30); };
      const auto counter = [&] {
        return comm->observer()->counters().Get(EventId::kShip).bytes;
      };
      size_t& mine = shipped[static_cast<size_t>(rank)];
      {
        const auto engine = CreateEngine(plan, comm);
        ASSERT_OK(engine);
        UnitTrainer trainer(training, engine->get());
        trainer.Fill();
        for (int step = 1; step <= 2; ++step) {
          // All that was sent before a barrier is counted after it.
          ASSERT_OK(comm->Barrier("before the step", soon()));
          mine = counter();
          if (rank == 0) {
            for (int h = 0; h < test.hosts(); ++h) {
              sent[static_cast<size_t>(h)] = hosts.data_sent(h);
            }
          }
          ASSERT_OK(comm->Barrier("step", soon()));
          for (int pass = 1; pass <= test.passes; ++pass) {
            trainer.Forward();
            trainer.Backward(10 * step + pass, pass == test.passes);
          }
          StepReport report;
          ASSERT_OK(trainer.Step(&report));
          ASSERT_OK((*engine)->ZeroGrad());
        }
        ASSERT_OK(comm->Barrier("after the steps", soon()));
        mine = counter() - mine;
        if (rank == 0) {
          for (int h = 0; h < test.hosts(); ++h) {
            size_t& before = sent[static_cast<size_t>(h)];
            before = hosts.data_sent(h) - before;
          }
        }
        ASSERT_OK(comm->Barrier("counted", soon()));
      }
      EXPECT_OK(comm->Shutdown(soon()));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int host = 0; host < test.hosts(); ++host) {
    const auto h = static_cast<size_t>(host);
    EXPECT_EQ(std::accumulate(shipped.begin() + test.begins[h],
                              shipped.begin() + test.begins[h + 1], size_t{0}),
              sent[h])
        << "by the counters of host " << host;
  }
  return sent;
}

void ExpectPredicted(const Case& test) {
  SCOPED_TRACE(Describe(test));
  const auto plan = PlanOf(TrainingOf(test));
  ASSERT_OK(plan);
  ASSERT_EQ((*plan)->shards_params(), test.stage == 3);
  const std::vector<size_t> sent = Count(test, *plan);
  for (int h = 0; h < test.hosts(); ++h) {
    EXPECT_EQ(sent[static_cast<size_t>(h)], Predict(test, **plan, h))
        << "host " << h;
  }
}

const std::vector<int> kTwoHosts = {0, 1, 2};
const std::vector<int> kUnequal = {0, 2, 3, 5};
const std::vector<int> kPairs = {0, 2, 4, 6};

TEST(NetworkBytesTest, EachStage) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const auto& begins : {kTwoHosts, kUnequal, kPairs}) {
      ExpectPredicted({.stage = stage, .begins = begins});
    }
  }
}

TEST(NetworkBytesTest, OptimizersDifferByThePaddingOfWholeParameters) {
  for (const char* const optimizer : {"sgd?momentum=0.9", "lion", "lamb"}) {
    ExpectPredicted({.begins = kUnequal, .optimizer = optimizer});
  }
}

TEST(NetworkBytesTest, NarrowTypes) {
  for (const bool f32_grads : {false, true}) {
    ExpectPredicted(
        {.begins = kUnequal, .dtype = DType::kBF16, .f32_grads = f32_grads});
  }
}

TEST(NetworkBytesTest, ShardedGradientsAreReducedInEachPass) {
  for (const int stage : {1, 2, 3}) {
    ExpectPredicted({.stage = stage, .begins = kTwoHosts, .passes = 2});
  }
}

TEST(NetworkBytesTest, GroupsOfAHostReduceInside) {
  for (const int stage : {1, 2, 3}) {
    ExpectPredicted({.stage = stage, .begins = kPairs, .group_size = 2});
  }
}

TEST(NetworkBytesTest, GroupsReduceInRankOrderWhereDeterministic) {
  ExpectPredicted(
      {.stage = 3, .begins = kPairs, .deterministic = true, .group_size = 2});
}

// Hosts of 4 ranks: of gradients in f32 a chain sends less, and of those in 16
// bits it sends as much.
TEST(NetworkBytesTest, TheFormThatSendsLess) {
  const std::vector<int> fours = {0, 4, 8};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Case test = {.begins = fours, .dtype = dtype};
    EXPECT_EQ(IsOnChain(test, DTypeSize(dtype)), dtype == DType::kF32);
    ExpectPredicted(test);
  }
}

TEST(NetworkBytesTest, EitherFormWhereItIsAskedFor) {
  for (const auto sums :
       {direct::HostSums::kDirect, direct::HostSums::kChain}) {
    for (const int stage : {1, 3}) {
      for (const auto& begins : {kTwoHosts, kUnequal}) {
        ExpectPredicted({.stage = stage, .begins = begins, .sums = sums});
      }
    }
  }
}

}  // namespace
}  // namespace shard
