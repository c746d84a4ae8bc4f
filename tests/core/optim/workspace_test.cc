// SPDX-License-Identifier: Apache-2.0
//
// The size of the workspace. That it is enough, and used, is tested in
// tests/core/engine/update_test.cc.

#include "core/optim/workspace.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/optim/groups.h"
#include "kernels/cpu/newton_schulz.h"
#include "tests/core/base/expect_status.h"

namespace shard::workspace_test {
namespace {

constexpr int64_t kSaturated = std::numeric_limits<int64_t>::max() / 2;

int64_t Numel(Formula formula, const std::vector<int64_t>& shape) {
  return WorkspaceNumel(formula, shape.data(), static_cast<int>(shape.size()));
}

TEST(WorkspaceTest, AlignsToSixtyFourBytes) {
  EXPECT_EQ(AlignWorkspace(0), 0);
  EXPECT_EQ(AlignWorkspace(1), 16);
  EXPECT_EQ(AlignWorkspace(16), 16);
  EXPECT_EQ(AlignWorkspace(17), 32);
  // The memory after a gradient is aligned for the kernels.
  EXPECT_EQ(static_cast<size_t>(kWorkspaceElements) * sizeof(float),
            kWorkspaceAlignment);
}

TEST(WorkspaceTest, LambNeedsTheGradient) {
  EXPECT_EQ(Numel(Formula::kLamb, {}), 16);
  EXPECT_EQ(Numel(Formula::kLamb, {3, 5}), 16);
  EXPECT_EQ(Numel(Formula::kLamb, {17}), 32);
  EXPECT_EQ(Numel(Formula::kLamb, {2, 3, 400}), 2400);
}

// Adafactor needs a scale for each row and each column as well.
TEST(WorkspaceTest, AdafactorNeedsScalesToo) {
  EXPECT_EQ(Numel(Formula::kAdafactor, {}), 16);
  EXPECT_EQ(Numel(Formula::kAdafactor, {17}), 32);
  EXPECT_EQ(Numel(Formula::kAdafactor, {3, 5}), 16 + 3 + 5);
  EXPECT_EQ(Numel(Formula::kAdafactor, {2, 3, 4}), 32 + 2 * 3 + 2 * 4);
}

TEST(WorkspaceTest, MuonTakesSmallMatricesTogether) {
  EXPECT_EQ(MuonBatch(kBatchedSide, 5000), 16);
  EXPECT_EQ(MuonBatch(5000, kBatchedSide), 16);
  EXPECT_EQ(MuonBatch(kBatchedSide + 1, kBatchedSide + 1), 1);
  // Muon needs the gradient, two buffers of its size and two squares of the
  // smaller side.
  EXPECT_EQ(Numel(Formula::kMuon, {4, 9}), 16 * (48 + 2 * 48 + 2 * 16));
  EXPECT_EQ(Numel(Formula::kMuon, {9, 4}), 16 * (48 + 2 * 48 + 2 * 16));
  EXPECT_EQ(Numel(Formula::kMuon, {33, 70}), 2320 + 2 * 2320 + 2 * 1104);
}

TEST(WorkspaceTest, ParametersWithoutElementsNeedNone) {
  constexpr int64_t kBig = int64_t{1} << 40;
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{0, 4}, {4, 0}, {0, 0}}) {
    EXPECT_EQ(Numel(Formula::kMuon, shape), 0);
  }
  for (const Formula formula : {Formula::kLamb, Formula::kAdafactor}) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{0},
          {0, 4},
          {4, 0},
          {2, 0, 3},
          // The product of the sizes before the 0 is too large for an int64_t.
          {kBig, kBig, 0},
          {kBig, kBig, 0, 3},
          {0, kBig, kBig}}) {
      EXPECT_EQ(Numel(formula, shape), 0) << FormatList(shape);
    }
  }
}

TEST(WorkspaceTest, SaturatesWhereItCannotCount) {
  constexpr int64_t kBig = int64_t{1} << 31;
  EXPECT_EQ(Numel(Formula::kMuon, {kBig - 1, kBig - 1}), kSaturated);
  for (const Formula formula : {Formula::kLamb, Formula::kAdafactor}) {
    EXPECT_EQ(Numel(formula, {kBig, kBig}), kSaturated);
    EXPECT_EQ(Numel(formula, {kBig, kBig, kBig}), kSaturated);
    EXPECT_EQ(Numel(formula, {int64_t{1} << 61}), kSaturated);
  }
  // A smaller size is counted, and is positive.
  for (const Formula formula :
       {Formula::kLamb, Formula::kAdafactor, Formula::kMuon}) {
    const int64_t numel = Numel(formula, {32, int64_t{1} << 30});
    EXPECT_GE(numel, int64_t{1} << 35);
    EXPECT_LT(numel, kSaturated);
  }
}

StatusOr<std::shared_ptr<const Plan>> PlanOf(const std::string& optimizer,
                                             std::vector<int64_t> shape) {
  auto model = std::make_shared<Model>("Test");
  SHARD_RETURN_IF_ERROR(
      model->AddParam(kRootModule, "p", DType::kBF16, std::move(shape))
          .status());
  PlanOptions options;
  options.masters = Masters::kNoneNearest;
  SHARD_ASSIGN_OR_RETURN(options.groups, PlanGroups(*model, optimizer));
  return Plan::Create(std::move(model), options);
}

// Plans of parameters that are too large are errors; plans of empty ones are
// not.
TEST(WorkspaceTest, PlansOfAnyShapeAreSound) {
  constexpr int64_t kBig = int64_t{1} << 31;
  ExpectInvalid(PlanOf("muon", {kBig - 1, kBig - 1}), {"2^53"});
  ExpectInvalid(PlanOf("lamb", {kBig, kBig / 4}), {"2^53"});
  ExpectInvalid(PlanOf("adafactor", {kBig, kBig / 4}), {"2^53"});
  for (const char* optimizer : {"lamb", "adafactor"}) {
    // The rows and columns of an empty parameter count as none, too.
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{0, kBig, kBig, kBig},
          std::vector<int64_t>{kBig, kBig, kBig, 0}}) {
      const auto plan = PlanOf(optimizer, shape);
      ASSERT_OK(plan);
      EXPECT_EQ((*plan)->workspace_numel(), 0);
      EXPECT_EQ((*plan)->Memory(true).HostTotal(1, true), 0u);
    }
  }
}

}  // namespace
}  // namespace shard::workspace_test
