// SPDX-License-Identifier: Apache-2.0
//
// The update of a range on a GPU has the bits of the update on the CPU: the
// kernels, compiled for the host, beside a stream of device "cpu", for every
// optimizer of elements and every combination of dtypes.

#include "kernels/cuda/update_elements.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/strings.h"
#include "core/device/cuda/element_range.h"
#include "kernels/formula/all.h"
#include "kernels/formula/narrow_states.h"
#include "tests/core/device/kernel_inputs.h"
#include "tests/kernels/cuda/run_kernel.h"
#include "tests/kernels/cuda/test_range.h"

namespace shard::update_elements_test {
namespace {

using testing::Block;
using testing::CaseOf;
using testing::FormulaCase;
using testing::kNoClip;
using testing::Layout;
using testing::Range;
using testing::Storage;
using testing::UpdateAsCpu;

std::vector<Storage> Storages(Formula formula) {
  std::vector<Storage> all;
  for (const DType grad : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const DType state : {DType::kF32, DType::kBF16, DType::kQ8}) {
      if (state != DType::kF32 && NarrowStateKinds(formula) == nullptr) {
        continue;
      }
      all.push_back({grad, DType::kF32, false, false, state});
      all.push_back({grad, DType::kBF16, true, false, state});
      all.push_back({grad, DType::kBF16, false, true, state});
      all.push_back({grad, DType::kF16, true, false, state});
      all.push_back({grad, DType::kF16, false, false, state});
    }
  }
  return all;
}

// Two whole parameters and a part of one, with padding between them; the last
// tile is partial.
Layout Aligned() {
  return {2048, {{0, 700, 0, 4}, {768, 256, 0, 0}, {1024, 1000, 512, 2}}, 0};
}

// Slices that begin in the middle of a block and of a vector.
Layout Unaligned() {
  return {1600, {{0, 100, 300, 1}, {101, 3, 0, 3}, {115, 1400, 77, 0}}, 1};
}

// Runs the kernel on a grid that is no divisor of the tiles.
void UpdateAsGpu(const FormulaCase& formula, const StepBlock& block,
                 const Range& range, const GradientSources* gradients = nullptr,
                 cuda::PeerMeetings* meetings = nullptr) {
  const UpdateList& list = range.list();
  const auto slices = cuda::ElementSlices(list, list.ranges[0]);
  cuda::UpdateElementsArgs args = {
      cuda::ElementRangeOf(list, list.ranges[0], slices, slices.data(),
                           list.sources.data()),
      nullptr, 0, &block, meetings};
  if (gradients != nullptr) {
    cuda::ReadGradients(*gradients, gradients->data, &args.range);
  }
  testing::RunKernel(StrCat("shard_update_", formula.name), args, {1, 96});
}

std::vector<FormulaCase> ElementCases() {
  return {
#define SHARD_CASE(Name) CaseOf<Name>(Formula::k##Name, #Name),
      SHARD_ELEMENT_FORMULAS(SHARD_CASE)
#undef SHARD_CASE
  };
}

class UpdateElementsTest : public ::testing::TestWithParam<FormulaCase> {
 protected:
  // Does three steps both ways.
  void Train(const Storage& storage, const Layout& layout, size_t num_sources,
             double clip_value, const uint32_t* rows = nullptr) {
    SCOPED_TRACE(storage.name());
    const Range before(GetParam(), storage, layout, num_sources, 7);
    Range expected(before);
    Range actual(before);
    for (int64_t step = 1; step <= 3; ++step) {
      Block latched(GetParam(), step);
      latched.block.clip_value = clip_value;
      latched.block.SetRows(latched.rows, rows);
      for (Range* const range : {&expected, &actual}) {
        range->ChangeGrads(static_cast<float>(step));
      }
      UpdateAsCpu(latched.block, expected);
      UpdateAsGpu(GetParam(), latched.block, actual);
      actual.ExpectEqual(expected);
      if (HasFailure()) return;
    }
  }
};

TEST_P(UpdateElementsTest, HasTheBitsOfTheCpu) {
  for (const Storage& storage : Storages(GetParam().formula)) {
    Train(storage, Aligned(), 1, kNoClip);
    Train(storage, Aligned(), 3, 0.3);
  }
}

TEST_P(UpdateElementsTest, ReadsSlicesThatAreNotAligned) {
  for (const Storage& storage : Storages(GetParam().formula)) {
    // Blocks of 8 bits are aligned.
    if (storage.state == DType::kQ8) continue;
    Train(storage, Unaligned(), 2, kNoClip);
  }
}

TEST_P(UpdateElementsTest, SlicesDoTheStepOfTheirRow) {
  const std::array<uint32_t, 5> rows = {1, 0, kNotStepped, 2, 0};
  for (const Storage& storage : Storages(GetParam().formula)) {
    Train(storage, Aligned(), 1, kNoClip, rows.data());
  }
}

TEST_P(UpdateElementsTest, KeepsInfinityAndNan) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const Storage& storage : Storages(GetParam().formula)) {
    SCOPED_TRACE(storage.name());
    Range before(GetParam(), storage, Aligned(), 1, 9);
    before.SetGrad(3, kInfinity);
    before.SetGrad(800, std::numeric_limits<float>::quiet_NaN());
    before.SetGrad(1030, -kInfinity);
    const Block latched(GetParam(), 2);
    Range expected(before);
    Range actual(before);
    UpdateAsCpu(latched.block, expected);
    UpdateAsGpu(GetParam(), latched.block, actual);
    actual.ExpectEqual(expected);
    if (HasFailure()) return;
  }
}

// A norm pass has left the sum of all sources in one of them.
TEST_P(UpdateElementsTest, ReadsTheSumThatANormPassLeft) {
  Range before(GetParam(), {}, Aligned(), 3, 5);
  before.KeepSum();
  Block latched(GetParam(), 1);
  latched.block.has_norm = true;
  Range expected(before);
  Range actual(before);
  UpdateAsCpu(latched.block, expected);
  UpdateAsGpu(GetParam(), latched.block, actual);
  actual.ExpectEqual(expected);
}

// The sources are read where no norm pass has run; and what the host gives is
// read in any case.
TEST_P(UpdateElementsTest, ReadsTheGradientsThatItIsGiven) {
  Range before(GetParam(), {}, Aligned(), 3, 5);
  before.KeepSum();
  const Range others(GetParam(), {}, Aligned(), 2, 6);
  const GradientSources gradients =
      others.list().GradientsOf(others.list().ranges[0], false);
  for (const bool has_norm : {false, true}) {
    for (const GradientSources* const given :
         {static_cast<const GradientSources*>(nullptr), &gradients}) {
      Block latched(GetParam(), 1);
      latched.block.has_norm = has_norm;
      Range expected(before);
      Range actual(before);
      UpdateAsCpu(latched.block, expected, given);
      UpdateAsGpu(GetParam(), latched.block, actual, given);
      actual.ExpectEqual(expected);
    }
  }
}

TEST_P(UpdateElementsTest, ReadsMoreSourcesThanAnArgumentHas) {
  const Range before(GetParam(), {}, Aligned(), 40, 5);
  const Block latched(GetParam(), 1);
  Range expected(before);
  Range actual(before);
  UpdateAsCpu(latched.block, expected);
  UpdateAsGpu(GetParam(), latched.block, actual);
  actual.ExpectEqual(expected);
}

// The flags of two ranks, of which rank 0 runs a kernel.
struct Meeting {
  uint64_t& Flag(uint32_t of, cuda::PeerFlag half, uint32_t by) {
    return *cuda::FlagAt(meetings, half, of, by);
  }

  std::array<std::array<uint64_t, 4>, 2> flags = {};
  std::array<uint64_t*, 2> table = {flags[0].data(), flags[1].data()};
  PeerWaits waits = {};
  cuda::PeerMeetings meetings = {2, 0, table.data(), &waits, 0, 0};
};

TEST_P(UpdateElementsTest, TellsTheRanksThatItMeetsWhenItComesAndLeaves) {
  const Range before(GetParam(), {}, Aligned(), 2, 5);
  Range expected(before);
  Range actual(before);
  Meeting meeting;
  for (int64_t step = 1; step <= 2; ++step) {
    const auto number = static_cast<uint64_t>(step);
    const Block latched(GetParam(), step);
    for (const auto half : {cuda::PeerFlag::kCome, cuda::PeerFlag::kLeft}) {
      meeting.Flag(0, half, 1) = number;
    }
    UpdateAsCpu(latched.block, expected);
    UpdateAsGpu(GetParam(), latched.block, actual, nullptr, &meeting.meetings);
    actual.ExpectEqual(expected);
    for (const auto half : {cuda::PeerFlag::kCome, cuda::PeerFlag::kLeft}) {
      EXPECT_EQ(meeting.Flag(0, half, 0), number);
      EXPECT_EQ(meeting.Flag(1, half, 0), number);
      EXPECT_EQ(meeting.Flag(1, half, 1), 0u);
    }
    EXPECT_EQ(meeting.waits.begun, number);
    EXPECT_EQ(meeting.waits.over, number);
  }
}

// The other ranks, which wait for this one, must not take it for updated.
TEST_P(UpdateElementsTest, UpdatesNothingInAMeetingThatTheHostEnds) {
  const Range before(GetParam(), {}, Aligned(), 2, 5);
  const Block latched(GetParam(), 1);
  for (const bool has_come : {false, true}) {
    Range actual(before);
    Meeting meeting;
    meeting.waits.ended = 1;
    if (has_come) meeting.Flag(0, cuda::PeerFlag::kCome, 1) = 1;
    UpdateAsGpu(GetParam(), latched.block, actual, nullptr, &meeting.meetings);
    actual.ExpectEqual(before);
    EXPECT_EQ(meeting.Flag(1, cuda::PeerFlag::kLeft, 0), 0u);
    // The host sees that the kernel is over.
    EXPECT_EQ(meeting.waits.begun, 1u);
    EXPECT_EQ(meeting.waits.over, 1u);
  }
}

// The ranges have other numbers of tiles than the grids have warps.
TEST_P(UpdateElementsTest, OneLaunchUpdatesAllRanges) {
  const Storage wide;
  Storage narrow;
  narrow.param = DType::kBF16;
  narrow.master = true;
  for (const testing::Grid& grid : testing::kGrids) {
    SCOPED_TRACE(StrCat("grid of ", grid.blocks, " times ", grid.threads));
    const Range first(GetParam(), wide, Aligned(), 1, 5);
    const Range second(GetParam(), narrow, Unaligned(), 2, 6);
    const Range third(GetParam(), wide, {100, {{0, 100, 0, 0}}, 0}, 1, 7);
    Block latched(GetParam(), 2);
    std::vector<cuda::ElementRange> ranges;
    std::vector<std::vector<cuda::ElementSlice>> slices;
    std::vector<Range> actual = {first, second, third};
    for (const Range& range : actual) {
      const UpdateList& list = range.list();
      slices.push_back(cuda::ElementSlices(list, list.ranges[0]));
      ranges.push_back(cuda::ElementRangeOf(list, list.ranges[0], slices.back(),
                                            slices.back().data(),
                                            list.sources.data()));
    }
    const cuda::UpdateElementsArgs args = {ranges[0], &ranges[1], 2,
                                           &latched.block};
    testing::RunKernel(StrCat("shard_update_", GetParam().name), args, grid);
    const std::vector<Range> before = {first, second, third};
    for (size_t r = 0; r < before.size(); ++r) {
      SCOPED_TRACE(StrCat("range ", r));
      Range expected(before[r]);
      UpdateAsCpu(latched.block, expected);
      actual[r].ExpectEqual(expected);
    }
    if (HasFailure()) return;
  }
}

TEST_P(UpdateElementsTest, AStepThatIsSkippedOrPoisonedWritesNothing) {
  Block latched(GetParam(), 1);
  latched.block.skipped = true;
  const Range before(GetParam(), {}, Aligned(), 1, 3);
  const Range actual(before);
  UpdateAsGpu(GetParam(), latched.block, actual);
  actual.ExpectEqual(before);
  latched.block.skipped = false;
  latched.block.poisoned = 1;
  UpdateAsGpu(GetParam(), latched.block, actual);
  actual.ExpectEqual(before);
}

INSTANTIATE_TEST_SUITE_P(Formulas, UpdateElementsTest,
                         ::testing::ValuesIn(ElementCases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace shard::update_elements_test
