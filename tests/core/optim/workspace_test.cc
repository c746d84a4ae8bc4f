// SPDX-License-Identifier: Apache-2.0
//
// The size of the workspace. That it is enough, and used, is tested in
// tests/core/engine/update_test.cc.

#include "core/optim/workspace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/offload.h"
#include "core/base/rounding.h"
#include "core/base/strings.h"
#include "core/flat/plan.h"
#include "core/model/model.h"
#include "core/model/wrap.h"
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

// Returns the bytes of `count` matrices of this shape in a GPU's workspace, two
// of each and two squares of its smaller side, each a multiple of 256 bytes.
int64_t GpuBytes(int64_t rows, int64_t cols, int64_t count) {
  const int64_t small = std::min(rows, cols);
  return 2 * count *
         (RoundUp(4 * rows * cols, 256) + RoundUp(4 * small * small, 256));
}

TEST(WorkspaceTest, AGpuTakesEqualMatricesTogether) {
  constexpr int64_t kMiB = 1 << 20;
  // The matrices of GPT-2's blocks have 18, 22.5 and 9 MiB of workspace each.
  EXPECT_EQ(GpuBytes(768, 2304, 1), 18 * kMiB);
  EXPECT_EQ(GpuMuonBatch(768, 2304, 12), 12);
  EXPECT_EQ(GpuMuonBatch(768, 2304, 14), 14);
  EXPECT_EQ(GpuMuonBatch(768, 768, 28), 28);
  // As few batches as have room, of equal sizes.
  EXPECT_EQ(GpuMuonBatch(768, 2304, 15), 8);
  EXPECT_EQ(GpuMuonBatch(768, 2304, 29), 10);
  for (const bool tall : {false, true}) {
    const int64_t rows = tall ? 3072 : 768;
    const int64_t cols = tall ? 768 : 3072;
    EXPECT_EQ(GpuMuonBatch(rows, cols, 11), 11);
    EXPECT_EQ(GpuMuonBatch(rows, cols, 12), 6);
    EXPECT_EQ(GpuMuonBatch(rows, cols, 48), 10);
  }
  // A matrix that fills a GPU alone, and larger ones.
  EXPECT_EQ(GpuMuonBatch(4096, 4096, 2), 1);
  EXPECT_EQ(GpuMuonBatch(4096, 11008, 96), 1);
  EXPECT_EQ(GpuMuonBatch(1, 1, 1), 1);
}

TEST(WorkspaceTest, AGpuHasRoomForABatch) {
  const auto bytes = [](Formula formula, const std::vector<int64_t>& shape,
                        int64_t count) {
    return 4 * GpuWorkspaceNumel(formula, shape.data(),
                                 static_cast<int>(shape.size()), count);
  };
  for (int64_t count = 1; count <= 40; ++count) {
    for (const auto& [rows, cols] :
         {std::pair{8, 9}, {768, 3072}, {3072, 768}, {4096, 5000}}) {
      const int64_t needed = bytes(Formula::kMuon, {rows, cols}, count);
      EXPECT_EQ(needed, GpuBytes(rows, cols, GpuMuonBatch(rows, cols, count)));
      EXPECT_LE(needed, std::max(GpuBytes(rows, cols, 1),
                                 static_cast<int64_t>(kGpuBatchBytes)));
    }
  }
  EXPECT_EQ(bytes(Formula::kMuon, {0, 4}, 3), 0);
  // Kernels of a GPU step these where they lie.
  EXPECT_EQ(bytes(Formula::kLamb, {17, 4}, 3), 0);
  EXPECT_EQ(bytes(Formula::kAdafactor, {17, 4}, 3), 0);
  constexpr int64_t kBig = int64_t{1} << 31;
  constexpr int64_t kShape[] = {kBig - 1, kBig - 1};
  EXPECT_EQ(GpuWorkspaceNumel(Formula::kMuon, kShape, 2, 3), kSaturated);
}

// A plan's workspace on a GPU has room for the largest batch of any rank, of
// the equal matrices that the rank owns in a flat buffer.
TEST(WorkspaceTest, APlanCountsTheEqualMatricesOfARank) {
  const auto plan_of = [](int world_size, int units, DType dtype) {
    auto model = std::make_shared<Model>("Test");
    for (int u = 0; u < units; ++u) {
      const auto block =
          model->AddModule(kRootModule, StrCat("block", u), "Block");
      EXPECT_OK(block);
      for (int i = 0; i < 12 / units; ++i) {
        EXPECT_OK(model->AddParam(*block, StrCat("a", i), dtype, {768, 2304}));
        EXPECT_OK(model->AddParam(*block, StrCat("b", i), dtype, {96, 96}));
      }
    }
    PlanOptions options;
    options.world_size = world_size;
    options.masters = Masters::kNoneNearest;
    options.wrap = *WrapPolicy::Parse("class?names=Block");
    options.groups = *PlanGroups(*model, "muon");
    const auto plan = Plan::Create(std::move(model), options);
    EXPECT_OK(plan);
    return *plan;
  };
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int world_size : {1, 3, 4, 12}) {
      for (const int units : {1, 2, 12}) {
        SCOPED_TRACE(StrCat(world_size, " ranks, ", units, " units"));
        const auto plan = plan_of(world_size, units, dtype);
        const int in_buffer = 12 / units;
        const int64_t bytes =
            GpuBytes(768, 2304, (in_buffer + world_size - 1) / world_size);
        EXPECT_EQ(plan->gpu_workspace_numel() * 4, bytes);
        EXPECT_EQ(plan->Memory(false, nullptr, Processor::kGpu).workspace_bytes,
                  static_cast<uint64_t>(bytes));
        const std::string text = plan->ToText();
        const size_t at = text.find("workspace on a GPU ");
        ASSERT_NE(at, std::string::npos) << text;
        EXPECT_NE(text.substr(at, text.find('\n', at) - at)
                      .find(FormatBytes(static_cast<uint64_t>(bytes))),
                  std::string::npos)
            << text;
        // A processor steps such matrices one by one, and widens them.
        const int64_t on_cpu = Numel(Formula::kMuon, {768, 2304}) +
                               (dtype == DType::kBF16 ? 768 * 2304 : 0);
        EXPECT_EQ(plan->workspace_numel(), on_cpu);
        const Offload offload;
        for (const uint64_t counted :
             {plan->Memory(false).workspace_bytes,
              plan->Memory(false, &offload, Processor::kGpu).workspace_bytes}) {
          EXPECT_EQ(counted, RoundUpToPage(static_cast<uint64_t>(on_cpu) * 4));
        }
      }
    }
  }
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
      EXPECT_EQ((*plan)->gpu_workspace_numel(), 0);
      EXPECT_EQ((*plan)->Memory(true).HostTotal(1, true), 0u);
    }
  }
}

}  // namespace
}  // namespace shard::workspace_test
