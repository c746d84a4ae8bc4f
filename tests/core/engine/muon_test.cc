// SPDX-License-Identifier: Apache-2.0
//
// The division of Muon's work among ranks: each matrix is iterated on by one
// rank, and ranks have equal shares of the work. Ranks are processes, so that
// each counts its own calls. Also a rank without a BLAS library.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/engine/engine.h"
#include "core/optim/groups.h"
#include "kernels/formula/all.h"
#include "tests/kernels/cpu/fake_cblas.h"
#include "tests/ranks/ranks.h"

namespace shard {
namespace {

using testing::ExpectAllPassed;
using testing::Rank;
using testing::RankResult;
using testing::RunRanks;

constexpr int kIterations = 3;
constexpr int kSteps = 2;
constexpr double kTimeout = 30;

using Shapes = std::vector<std::vector<int64_t>>;

// Returns matrices that are multiplied one by one and several at a time, tall
// and wide, more of one shape than are multiplied at once, and one without
// elements.
Shapes ManyShapes() {
  Shapes shapes = {{40, 48}, {48, 40}, {64, 33}, {0, 4}, {1, 12}, {34, 34}};
  for (int i = 0; i < 18; ++i) shapes.push_back({8, 6});
  return shapes;
}

// Matrices of equal size, in an order in which ranks with equal shares of
// elements have unequal shares of the work.
const Shapes kUnequalWork = {{48, 48}, {4, 576}, {48, 48}, {4, 576},
                             {48, 48}, {4, 576}, {48, 48}, {4, 576}};

// Returns a plan of matrices for Muon and a vector in the default group.
StatusOr<std::shared_ptr<const Plan>> MakePlan(const Shapes& shapes,
                                               Partition partition,
                                               int world_size) {
  auto model = std::make_shared<Model>("Test");
  std::vector<ParamId> matrices;
  for (size_t i = 0; i < shapes.size(); ++i) {
    SHARD_ASSIGN_OR_RETURN(
        const ParamId param,
        model->AddParam(kRootModule, StrCat("p", i), DType::kF32, shapes[i]));
    matrices.push_back(param);
  }
  SHARD_RETURN_IF_ERROR(
      model->AddParam(kRootModule, "bias", DType::kF32, {100}).status());
  SHARD_RETURN_IF_ERROR(
      model->AddParamGroup(StrCat("muon?ns_steps=", kIterations), matrices)
          .status());
  PlanOptions options;
  options.world_size = world_size;
  options.partition = partition;
  SHARD_ASSIGN_OR_RETURN(options.groups, PlanGroups(*model, "adamw"));
  return Plan::Create(std::move(model), options);
}

Status Train(const std::string& url, const Rank& rank,
             const std::shared_ptr<const Plan>& plan) {
  const CommOptions options = {.rank = rank.rank(),
                               .world_size = rank.world_size(),
                               .timeout = kTimeout};
  SHARD_ASSIGN_OR_RETURN(const auto comm, OpenCommunicator(url, options));
  SHARD_ASSIGN_OR_RETURN(const auto engine, Engine::Create(plan, comm));
  SHARD_RETURN_IF_ERROR(engine->BroadcastParams(0));
  for (int step = 0; step < kSteps; ++step) {
    StepReport report;
    SHARD_RETURN_IF_ERROR(engine->Step(StepOptions(), &report));
  }
  return comm->Shutdown(Deadline::After(kTimeout));
}

// The work of one rank, counted by a fake library.
struct Work {
  int64_t sgemm = 0;
  int64_t ssyrk = 0;
  int64_t batch_matrices = 0;
  int64_t flops = 0;

  Work& operator+=(const Work& other) {
    sgemm += other.sgemm;
    ssyrk += other.ssyrk;
    batch_matrices += other.batch_matrices;
    flops += other.flops;
    return *this;
  }
  bool operator==(const Work& other) const = default;
};

std::vector<Work> WorkOfRanks(const std::string& kind, const Shapes& shapes,
                              Partition partition, int world_size) {
  const auto plan = MakePlan(shapes, partition, world_size);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  const std::string url = "shm:" + testing::UniqueName();
  const auto results = RunRanks(world_size, [&](const Rank& rank) {
    const BlasLibrary library(FakeCblasPath(kind));
    FakeCblas fake(kind);
    const Status status = Train(url, rank, *plan);
    EXPECT_TRUE(status.ok()) << status.ToString();
    rank.Report(StrCat(fake.Counter("sgemm_calls"), " ",
                       fake.Counter("ssyrk_calls"), " ",
                       fake.Counter("batch_matrices"), " ", fake.Flops()));
  });
  ExpectAllPassed(results);
  std::vector<Work> work;
  for (const RankResult& result : results) {
    Work one;
    std::istringstream(result.report) >> one.sgemm >> one.ssyrk >>
        one.batch_matrices >> one.flops;
    work.push_back(one);
  }
  return work;
}

class MuonWorkTest : public ::testing::TestWithParam<const char*> {};

TEST_P(MuonWorkTest, EachMatrixIsIteratedOnOnce) {
  const std::string kind = GetParam();
  const Shapes shapes = ManyShapes();
  Work expected;
  for (const auto& shape : shapes) {
    if (shape[0] * shape[1] == 0) continue;
    const int64_t small = std::min(shape[0], shape[1]);
    const int64_t large = std::max(shape[0], shape[1]);
    constexpr int64_t kTimes = kSteps * kIterations;
    if (kind == "batch" && small <= 32) {
      expected.batch_matrices += 3 * kTimes;
      expected.flops += kTimes * small * small * (4 * large + 2 * small);
    } else {
      expected.ssyrk += 2 * kTimes;
      expected.sgemm += kTimes;
      expected.flops += kTimes * (small * (small + 1) * (large + small) +
                                  2 * small * small * large);
    }
  }
  for (int world_size = 1; world_size <= 4; ++world_size) {
    for (const Partition partition : {Partition::kEven, Partition::kBucket}) {
      Work all;
      for (const Work& work :
           WorkOfRanks(kind, shapes, partition, world_size)) {
        all += work;
      }
      EXPECT_EQ(all, expected)
          << world_size << " ranks: " << all.sgemm << " sgemm, " << all.ssyrk
          << " ssyrk, " << all.batch_matrices << " batched, " << all.flops
          << " operations";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, MuonWorkTest,
                         ::testing::Values("plain", "batch"), CblasKindOf);

// The assignment is greedy: the busiest rank was the least busy one when it was
// given its last matrix.
TEST(MuonBalanceTest, RanksDifferByNoMoreThanAMatrix) {
  const Shapes shapes = kUnequalWork;
  const int64_t largest =
      kSteps * kIterations * (Muon::Cost(shapes[0].data(), 2) + 48 * 96);
  for (int world_size = 2; world_size <= 4; ++world_size) {
    for (const Partition partition : {Partition::kEven, Partition::kGreedy}) {
      const auto work = WorkOfRanks("plain", shapes, partition, world_size);
      const auto [least, most] = std::minmax_element(
          work.begin(), work.end(),
          [](const Work& a, const Work& b) { return a.flops < b.flops; });
      EXPECT_LE(most->flops - least->flops, largest) << world_size << " ranks";
      // There are four large matrices and as many small ones.
      EXPECT_EQ(most->flops == least->flops, world_size != 3);
    }
  }
}

// Cost, which balances the ranks, counts the work that the library does.
TEST(MuonBalanceTest, CostIsTheWork) {
  for (const auto& shape : Shapes{{48, 48}, {100, 40}, {40, 100}}) {
    const auto work = WorkOfRanks("plain", {shape}, Partition::kEven, 1);
    const auto cost =
        static_cast<double>(kSteps * kIterations * Muon::Cost(shape.data(), 2));
    // Cost and the work differ by the diagonals.
    EXPECT_NEAR(static_cast<double>(work[0].flops) / cost, 1, 0.02);
  }
}

TEST(MuonBlasTest, ARankWithoutBlasFailsAllRanksWithItsName) {
  for (int victim = 0; victim < 3; ++victim) {
    const auto plan = MakePlan({{4, 4}}, Partition::kEven, 3);
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    const std::string url = "shm:" + testing::UniqueName();
    const auto results = RunRanks(3, [&](const Rank& rank) {
      const BlasLibrary library(rank.rank() == victim ? "/nowhere/libnone.so"
                                                      : FakeCblasPath("plain"));
      const Status status = Train(url, rank, *plan);
      EXPECT_EQ(status.code(), StatusCode::kBackendUnavailable);
      EXPECT_EQ(status.rank(), victim);
      rank.Report(status.message());
    });
    ExpectAllPassed(results);
    for (const RankResult& result : results) {
      EXPECT_EQ(result.report, results[0].report);
      for (const std::string& part :
           {StrCat("rank ", victim, ":"), std::string("/nowhere/libnone.so"),
            std::string("SHARD_BLAS_LIBRARY")}) {
        EXPECT_NE(result.report.find(part), std::string::npos)
            << result.report << "\nhas no " << part;
      }
      // The error comes at once: nobody waits for a deadline.
      EXPECT_LT(result.seconds, kTimeout / 2);
    }
  }
}

// Rank 1 owns no matrix here, but another plan would give it one.
TEST(MuonBlasTest, ARankWithoutMatricesNeedsBlasToo) {
  const auto plan = MakePlan({{4, 4}}, Partition::kEven, 2);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  const std::string url = "shm:" + testing::UniqueName();
  ExpectAllPassed(RunRanks(2, [&](const Rank& rank) {
    const BlasLibrary library(
        FakeCblasPath(rank.rank() == 1 ? "ilp64" : "plain"));
    const Status status = Train(url, rank, *plan);
    EXPECT_EQ(status.code(), StatusCode::kBackendUnavailable);
    EXPECT_EQ(status.rank(), 1);
    EXPECT_NE(status.message().find("ILP64"), std::string::npos)
        << status.ToString();
  }));
}

}  // namespace
}  // namespace shard
