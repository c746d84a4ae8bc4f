// SPDX-License-Identifier: Apache-2.0
//
// Random programs on the fake driver: it finds a violation exactly where a
// model has two accesses without an order, and a program without one has the
// same results in every order.

#include <gtest/gtest.h>

#include <array>
#include <bitset>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/fake_cuda/driver_testing.h"

namespace shard::random_programs_test {
namespace {

using namespace testing::fake_cuda;

constexpr size_t kStreams = 5;  // The first is the legacy stream.
constexpr size_t kEvents = 4;
constexpr size_t kCells = 6;
constexpr size_t kCellBytes = 8;
constexpr size_t kSteps = 60;

// Sets of steps that happen before something.
using Before = std::bitset<4 * kSteps>;

class RandomProgramsTest : public DriverTest {
 protected:
  struct Past {
    size_t step;
    size_t cell;
    bool writes;
  };

  void Start(uint64_t seed, bool lazy) {
    TearDown();
    Options options;
    options.seed = seed;
    options.lazy = lazy;
    Begin(options);
    native_ = {cuda::LegacyStream(), MakeStream(0), MakeStream(0), MakeStream(),
               MakeStream()};
    for (CuEvent& event : native_events_) event = MakeEvent();
    memory_of_cells_ = MakeMemory(kCells * kCellBytes);
    streams_before_ = {};
    events_before_ = {};
    recorded_ = {};
    host_before_ = {};
    past_.clear();
    num_steps_ = 0;
  }

  static bool IsBlocking(size_t stream) { return stream == 1 || stream == 2; }

  // Returns what happens before a step that is enqueued now.
  Before BeforeStep(size_t stream) const {
    Before before = streams_before_[stream] | host_before_;
    if (stream == 0) before |= streams_before_[1] | streams_before_[2];
    if (IsBlocking(stream)) before |= streams_before_[0];
    return before;
  }
  size_t AddStep(size_t stream, const Before& also = {}) {
    streams_before_[stream] = BeforeStep(stream) | also;
    streams_before_[stream].set(num_steps_);
    return num_steps_++;
  }
  bool IsOrdered(size_t stream, size_t cell, bool writes) const {
    const Before before = BeforeStep(stream);
    for (const Past& it : past_) {
      if (it.cell == cell && (it.writes || writes) && !before[it.step]) {
        return false;
      }
    }
    return true;
  }

  void Record(size_t event, size_t stream) {
    EXPECT_CU(api_.EventRecord(native_events_[event], native_[stream]));
    AddStep(stream);
    events_before_[event] = streams_before_[stream];
    recorded_[event] = true;
  }
  void Wait(size_t stream, size_t event) {
    EXPECT_CU(api_.StreamWaitEvent(native_[stream], native_events_[event], 0));
    AddStep(stream, events_before_[event]);
  }
  void AwaitOnHost(size_t event) {
    EXPECT_CU(Await(native_events_[event]));
    host_before_ |= events_before_[event];
  }
  CuPointer Cell(size_t cell) const {
    return memory_of_cells_ + cell * kCellBytes;
  }

  // Writes a cell with `value`, or with the cell `from`. Returns whether the
  // model finds it ordered.
  bool Write(size_t stream, size_t cell, unsigned char value) {
    const bool ordered = IsOrdered(stream, cell, true);
    Set(Cell(cell), value, native_[stream], kCellBytes);
    past_.push_back({AddStep(stream), cell, true});
    return ordered;
  }
  bool CopyCell(size_t stream, size_t cell, size_t from) {
    const bool ordered =
        IsOrdered(stream, cell, true) && IsOrdered(stream, from, false);
    Copy(Cell(cell), Cell(from), native_[stream], kCellBytes);
    const size_t step = AddStep(stream);
    past_.push_back({step, cell, true});
    past_.push_back({step, from, false});
    return ordered;
  }

  std::array<CuStream, kStreams> native_ = {};
  std::array<CuEvent, kEvents> native_events_ = {};
  CuPointer memory_of_cells_ = 0;
  std::array<Before, kStreams> streams_before_;
  std::array<Before, kEvents> events_before_;
  std::array<bool, kEvents> recorded_ = {};
  Before host_before_;
  std::vector<Past> past_;
  size_t num_steps_ = 0;
};

TEST_F(RandomProgramsTest, FindsExactlyWhatHasNoOrder) {
  size_t ordered_accesses = 0;
  size_t violations = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto pick = [&](size_t count) { return random() % count; };
    Start(seed, seed % 2 == 0);
    for (size_t i = 0; i < kSteps; ++i) {
      const size_t stream = pick(kStreams);
      const size_t event = pick(kEvents);
      bool ordered = true;
      switch (pick(6)) {
        case 0:
        case 1:
          Record(event, stream);
          break;
        case 2:
          Wait(stream, event);
          break;
        case 3:
          if (pick(3) == 0) AwaitOnHost(event);
          break;
        case 4:
          ordered = Write(stream, pick(kCells), static_cast<unsigned char>(i));
          ordered_accesses += ordered ? 1 : 0;
          break;
        case 5: {
          const size_t cell = pick(kCells);
          const size_t from = (cell + 1 + pick(kCells - 1)) % kCells;
          ordered = CopyCell(stream, cell, from);
          ordered_accesses += ordered ? 1 : 0;
          break;
        }
      }
      ASSERT_EQ(Violations().empty(), ordered) << "step " << i << "\n"
                                               << ViolationText();
      if (!ordered) ++violations;
      ClearViolations();
    }
  }
  // It was no test of one side only.
  EXPECT_GT(ordered_accesses, 100u);
  EXPECT_GT(violations, 100u);
}

TEST_F(RandomProgramsTest, OrderedProgramsHaveTheSameResults) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto pick = [&](size_t count) { return random() % count; };
    Start(seed, seed % 2 == 0);
    // What the cells would have if all was done at once.
    std::array<unsigned char, kCells> expected = {};
    for (size_t cell = 0; cell < kCells; ++cell) Write(3, cell, 0);
    // Waits for whatever could have written or read the cell.
    const auto order = [&](size_t stream, size_t cell, bool writes) {
      for (size_t other = 0; other < kStreams; ++other) {
        if (IsOrdered(stream, cell, writes)) return;
        const size_t event = pick(kEvents);
        Record(event, other);
        Wait(stream, event);
      }
    };
    for (size_t i = 0; i < kSteps / 2; ++i) {
      const size_t stream = pick(kStreams);
      const size_t cell = pick(kCells);
      order(stream, cell, true);
      if (pick(2) == 0) {
        const auto value = static_cast<unsigned char>(1 + i);
        EXPECT_TRUE(Write(stream, cell, value));
        expected[cell] = value;
      } else {
        const size_t from = (cell + 1 + pick(kCells - 1)) % kCells;
        order(stream, from, false);
        EXPECT_TRUE(CopyCell(stream, cell, from));
        expected[cell] = expected[from];
      }
      if (num_steps_ > 3 * kSteps) break;
    }
    EXPECT_EQ(ViolationText(), "");
    for (size_t cell = 0; cell < kCells; ++cell) {
      order(4, cell, false);
      EXPECT_EQ(Read(Cell(cell), native_[4]), expected[cell]) << cell;
    }
    EXPECT_EQ(ViolationText(), "");
  }
}

}  // namespace
}  // namespace shard::random_programs_test
