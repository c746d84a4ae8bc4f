// SPDX-License-Identifier: Apache-2.0

#include "core/device/offload/windows.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/device/update_list.h"

namespace shard::windows_test {
namespace {

// Pairs are compared and printed.
std::vector<std::vector<size_t>> PairsOf(const std::vector<Window>& windows) {
  std::vector<std::vector<size_t>> pairs;
  for (const Window& window : windows) {
    pairs.push_back({window.begin, window.count});
  }
  return pairs;
}

using Pairs = std::vector<std::vector<size_t>>;

class WindowsTest : public ::testing::Test {
 protected:
  WindowsTest() { list_.ranges.emplace_back(); }

  UpdateRange& range() { return list_.ranges[0]; }

  void AddSlice(size_t begin, size_t count, int64_t param_begin,
                uint32_t position) {
    list_.slices.push_back({begin, count, param_begin, position});
    range().num_slices = list_.slices.size();
  }

  // Adds a whole parameter, with states at `state_begin`.
  void AddTensor(size_t begin, std::vector<int64_t> shape, size_t state_begin) {
    size_t count = 1;
    for (const int64_t size : shape) count *= static_cast<size_t>(size);
    AddSlice(begin, count, 0, static_cast<uint32_t>(list_.slices.size()));
    TensorSlice tensor = {};
    tensor.shape = list_.sizes.size();
    tensor.ndim = static_cast<int>(shape.size());
    tensor.state_begins = {state_begin};
    list_.sizes.insert(list_.sizes.end(), shape.begin(), shape.end());
    list_.tensors.push_back(tensor);
    range().is_tensor = true;
  }

  UpdateList list_;
};

TEST_F(WindowsTest, ElementsAreCutIntoEqualWindows) {
  range().count = 600;
  EXPECT_EQ(PairsOf(WindowsOf(list_, range(), 256)),
            (Pairs{{0, 256}, {256, 256}, {512, 88}}));
  EXPECT_EQ(PairsOf(WindowsOf(list_, range(), 1024)), (Pairs{{0, 600}}));
  range().count = 512;
  EXPECT_EQ(PairsOf(WindowsOf(list_, range(), 256)),
            (Pairs{{0, 256}, {256, 256}}));
  range().count = 0;
  EXPECT_EQ(PairsOf(WindowsOf(list_, range(), 256)), (Pairs{}));
}

TEST_F(WindowsTest, TensorsStayWhole) {
  range().count = 1200;
  // By shape, as lists have them.
  AddTensor(600, {10}, 0);
  AddTensor(0, {100}, 0);
  AddTensor(128, {100}, 0);
  AddTensor(256, {300}, 0);
  AddTensor(700, {300}, 0);
  EXPECT_EQ(PairsOf(WindowsOf(list_, range(), 256)),
            (Pairs{{0, 228}, {256, 300}, {600, 10}, {700, 300}}));
  EXPECT_EQ(PairsOf(WindowsOf(list_, range(), 400)),
            (Pairs{{0, 228}, {256, 354}, {700, 300}}));
}

TEST_F(WindowsTest, AWindowOfElementsHasItsPartsOfSlicesAndStates) {
  std::vector<float> master(600);
  std::vector<unsigned char> codes(600);
  std::vector<float> scales(3);
  range().count = 600;
  range().master = master.data();
  range().state_dtype = DType::kQ8;
  range().num_states = 1;
  range().states = {codes.data()};
  range().scales = {scales.data()};
  range().keeps_sum = true;
  AddSlice(0, 200, 512, 5);
  AddSlice(256, 300, 0, 6);
  float grads[256];
  float param[256];
  UpdateList to;
  for (const Window& window : WindowsOf(list_, range(), 256)) {
    AddWindow(list_, range(), window, grads, param, &to);
  }
  ASSERT_EQ(to.ranges.size(), 3u);
  const UpdateRange& second = to.ranges[1];
  EXPECT_EQ(second.count, 256u);
  EXPECT_EQ(second.master, master.data() + 256);
  EXPECT_EQ(second.states[0], codes.data() + 256);
  EXPECT_EQ(second.scales[0], scales.data() + 1);
  EXPECT_EQ(second.param, param);
  for (const bool summed : {false, true}) {
    const GradientSources sources = to.GradientsOf(second, summed);
    EXPECT_EQ(sources.count, 1u);
    EXPECT_EQ(sources.data[0], grads);
  }
  const auto expect_slice = [&](size_t r, size_t begin, size_t count,
                                int64_t param_begin, uint32_t position) {
    SCOPED_TRACE(r);
    ASSERT_EQ(to.SlicesOf(to.ranges[r]).size(), 1u);
    const UpdateSlice& slice = to.SlicesOf(to.ranges[r])[0];
    EXPECT_EQ(slice.begin, begin);
    EXPECT_EQ(slice.count, count);
    EXPECT_EQ(slice.param_begin, param_begin);
    EXPECT_EQ(slice.position, position);
  };
  expect_slice(0, 0, 200, 512, 5);
  expect_slice(1, 0, 256, 0, 6);
  expect_slice(2, 0, 44, 256, 6);
}

TEST_F(WindowsTest, AWindowOfTensorsKeepsTheirShapesAndStates) {
  float states[100] = {};
  range().count = 400;
  range().state_dtype = DType::kF32;
  range().num_states = 1;
  range().states = {states};
  AddTensor(0, {10, 20}, 3);
  AddTensor(256, {7, 9}, 50);
  UpdateList to;
  float grads[256];
  float param[256];
  for (const Window& window : WindowsOf(list_, range(), 256)) {
    AddWindow(list_, range(), window, grads, param, &to);
  }
  ASSERT_EQ(to.ranges.size(), 2u);
  const UpdateRange& second = to.ranges[1];
  ASSERT_EQ(to.SlicesOf(second).size(), 1u);
  EXPECT_EQ(to.SlicesOf(second)[0].begin, 0u);
  EXPECT_EQ(to.SlicesOf(second)[0].count, 63u);
  EXPECT_EQ(second.states[0], states);
  const TensorSlice& tensor = to.tensors[second.first_tensor];
  EXPECT_EQ(tensor.state_begins[0], 50u);
  ASSERT_EQ(to.ShapeOf(tensor).size(), 2u);
  EXPECT_EQ(to.ShapeOf(tensor)[0], 7);
  EXPECT_EQ(to.ShapeOf(tensor)[1], 9);
}

}  // namespace
}  // namespace shard::windows_test
