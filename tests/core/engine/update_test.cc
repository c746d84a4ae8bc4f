// SPDX-License-Identifier: Apache-2.0
//
// Updates of whole parameters in a workspace of exactly the planned size. They
// stay within the workspace, need all of it, and do not depend on its contents.

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "core/collectives/collectives.h"
#include "core/device/device.h"
#include "core/engine/step/make_update_list.h"
#include "core/engine/step/step_latch.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/engine/training.h"
#include "tests/kernels/cpu/fake_cblas.h"

namespace shard {
namespace {

using Shapes = std::vector<std::vector<int64_t>>;

// A workspace of exactly `size` elements, so that the address sanitizer sees
// accesses outside; with guards in builds without the sanitizer.
class Workspace {
 public:
  explicit Workspace(int64_t size)
      : size_(static_cast<size_t>(size)),
        data_(static_cast<float*>(
            ::operator new((size_ + kGuards) * sizeof(float), kAlignment))) {
    for (size_t i = 0; i < size_; ++i) data_[i] = kUntouched;
    for (size_t i = size_; i < size_ + kGuards; ++i) data_[i] = kGuard;
  }
  ~Workspace() { ::operator delete(data_, kAlignment); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  float* data() { return data_; }

  bool guarded() const {
    for (size_t i = size_; i < size_ + kGuards; ++i) {
      if (data_[i] != kGuard) return false;
    }
    return true;
  }

  // Returns the number of elements up to the last that was written.
  size_t used() const {
    size_t used = size_;
    while (used > 0 && data_[used - 1] == kUntouched) --used;
    return used;
  }

 private:
  static constexpr std::align_val_t kAlignment{4096};
  static constexpr size_t kGuards = kAddressSanitized ? 0 : 4096;
  static constexpr float kGuard = 17;
  // A function that reads the workspace before it writes there gets an
  // infinity.
  static constexpr float kUntouched = std::numeric_limits<float>::infinity();

  size_t size_;
  float* data_;
};

// Makes a step in a workspace of the planned size.
void ExpectFits(const std::string& optimizer, const Shapes& shapes, DType dtype,
                Masters masters, const std::string& library) {
  const auto model = ModelOf(shapes, dtype);
  PlanOptions options;
  options.masters = masters;
  const auto groups = PlanGroups(*model, optimizer);
  ASSERT_OK(groups);
  options.groups = *groups;
  const auto made = Plan::Create(model, options);
  ASSERT_OK(made);
  const Plan& plan = **made;
  const auto parsed = Optimizer::Parse(optimizer);
  ASSERT_OK(parsed);

  RunThreadRanks(1, [&](const auto& comm) {
    const auto device = OpenDevice("cpu");
    ASSERT_OK(device);
    if (!library.empty()) {
      ASSERT_EQ(setenv("SHARD_BLAS_LIBRARY", library.c_str(), 1), 0);
      ASSERT_OK((*device)->LoadBlas());
      ASSERT_EQ(unsetenv("SHARD_BLAS_LIBRARY"), 0);
    }
    const auto stream = (*device)->CreateStream(StreamKind::kCompute);
    ASSERT_OK(stream);
    const auto collectives =
        OpenCollectives(comm.get(), device->get(), {}, {}, Deadline::After(30));
    ASSERT_OK(collectives);
    const auto memory = EngineMemory::Allocate(plan, comm.get(), device->get(),
                                               collectives->get(), nullptr,
                                               Deadline::After(30));
    ASSERT_OK(memory);
    const EngineBuffer& buffer = memory->buffers()[0];
    const auto numel = static_cast<size_t>(buffer.plan->layout.padded_numel());
    const std::vector<float> ones(numel, 1);
    Store(dtype, ones, buffer.ParamAt(0));
    Store(buffer.plan->grad_dtype, ones, buffer.GradAt(0, 0));
    if (buffer.plan->has_masters) {
      Store(DType::kF32, ones, buffer.states.back());
    }

    Workspace workspace(plan.workspace_numel());
    const auto list = MakeUpdateList(plan, *memory, 0, workspace.data());
    ASSERT_OK(list);
    auto latch = StepLatch::Create(plan, device->get());
    ASSERT_OK(latch);
    const std::vector<Optimizer> optimizers = {*parsed};
    StepInput input = {};
    input.optimizers = &optimizers;
    input.step = 1;
    input.gradient_scale = 1;
    latch->Latch(input);
    (*stream)->Update(*list, 0, latch->blocks(), nullptr);
    EXPECT_TRUE(workspace.guarded());
    // The last elements up to a cache line may be unused.
    EXPECT_GT(workspace.used() + 16,
              static_cast<size_t>(plan.workspace_numel()));
    for (const auto& slot : buffer.plan->layout.slots()) {
      for (const float value :
           Load(dtype, buffer.ParamAt(slot.offset), slot.numel)) {
        ASSERT_TRUE(std::isfinite(value));
        ASSERT_NE(value, 1);
      }
    }
  });
}

void ExpectAllFit(const std::string& optimizer,
                  const std::vector<Shapes>& models,
                  const std::string& library) {
  for (const Shapes& shapes : models) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const Masters masters :
           {Masters::kF32, Masters::kNoneNearest, Masters::kNoneStochastic}) {
        SCOPED_TRACE(StrCat(optimizer, " ", shapes.size(), " of ",
                            FormatList(shapes[0]), " ", DTypeName(dtype),
                            " masters ", masters));
        ExpectFits(optimizer, shapes, dtype, masters, library);
      }
    }
  }
}

class UpdateTest : public CblasTest {};

// Tries as many matrices of a shape as are updated at once, and more, and
// matrices that are updated one by one.
TEST_P(UpdateTest, MatricesStayInTheirWorkspace) {
  const std::vector<Shapes> models = {Shapes(16, {4, 9}), Shapes(17, {9, 4}),
                                      Shapes(35, {1, 1}), Shapes(16, {32, 7}),
                                      {{33, 70}},         Shapes(3, {70, 33}),
                                      {{34, 34}}};
  ExpectAllFit("muon?lr=0.5", models, blas().name());
}

INSTANTIATE_TEST_SUITE_P(Libraries, UpdateTest,
                         ::testing::ValuesIn(kCblasKinds), CblasKindOf);

TEST(UpdateTensorsTest, TensorsStayInTheirWorkspace) {
  const std::vector<Shapes> models = {{{}},
                                      {{5}},
                                      {{16}},
                                      {{17}},
                                      {{1, 1}},
                                      {{33, 70}},
                                      {{1, 90}},
                                      {{90, 1}},
                                      {{2, 3, 4}},
                                      {{7, 1, 1}},
                                      {{5, 2, 9}},
                                      {{4, 4}},
                                      {{3}, {40, 30}, {0, 4}}};
  for (const char* optimizer : {"lamb?lr=0.5", "adafactor?lr=0.5"}) {
    ExpectAllFit(optimizer, models, "");
  }
}

}  // namespace
}  // namespace shard
