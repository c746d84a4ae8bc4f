// SPDX-License-Identifier: Apache-2.0
//
// Kernels run on the fake device, and their accesses are checked.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "kernels/cuda/update_elements.h"
#include "kernels/formula/all.h"
#include "tests/fake_cuda/driver_testing.h"
#include "tests/fake_cuda/kernel_accesses.h"

namespace shard::launch_test {
namespace {

using namespace testing::fake_cuda;

class KernelTest : public DriverTest {
 protected:
  static constexpr size_t kCount = 3000;

  void SetUp() override {
    DriverTest::SetUp();
    Load();
  }
  void TearDown() override {
    if (module_ != nullptr) api_.ModuleUnload(module_);
    module_ = nullptr;
    DriverTest::TearDown();
  }

  void Load() {
    ASSERT_CU(api_.ModuleLoadData(&module_, "an image"));
    ASSERT_CU(api_.ModuleGetFunction(&function_, module_, "shard_update_Sgd"));
  }

  // Makes the argument of a step of plain gradient descent, whose results are
  // exact: param - 0.5 grad, with the values of `grad` in all elements.
  cuda::UpdateElementsArgs MakeArgs(CuStream stream, unsigned char param,
                                    unsigned char grad) {
    const CuPointer params = MakeMemory(kCount * sizeof(float));
    const CuPointer grads = MakeMemory(kCount * sizeof(float));
    Set(params, param, stream, kCount * sizeof(float));
    Set(grads, grad, stream, kCount * sizeof(float));
    gradient_ = reinterpret_cast<void*>(grads);
    const std::vector<double> hypers = Hypers();
    struct {
      StepBlock block;
      StepRow row;
    } step = {{}, {1, {Formula::kSgd, hypers.data(), 1}}};
    step.block.gradient_scale = step.block.scale = 1;
    step.block.clip_value = std::numeric_limits<double>::infinity();
    step.block.SetRows(&step.row, nullptr);

    cuda::UpdateElementsArgs args = {};
    args.range.sources = cuda::SourcesOf(&gradient_, 1, DType::kF32, nullptr);
    args.range.param_dtype = DType::kF32;
    args.range.state_dtype = DType::kF32;
    args.range.param = reinterpret_cast<void*>(params);
    args.range.count = kCount;
    args.block = reinterpret_cast<const StepBlock*>(Upload(step, stream));
    return args;
  }

  // Returns the gradient of the last argument that was made.
  const void* Gradient() const { return gradient_; }

  CuResult Launch(cuda::UpdateElementsArgs args, CuStream stream,
                  unsigned blocks = 2, unsigned threads = 256) {
    void* params[] = {&args};
    const CuResult result = api_.LaunchKernel(function_, blocks, 1, 1, threads,
                                              1, 1, 0, stream, params, nullptr);
    // The driver has copied it.
    std::memset(static_cast<void*>(&args), 0xFF, sizeof(args));
    return result;
  }

  std::vector<float> Params(const cuda::UpdateElementsArgs& args,
                            CuStream stream) {
    std::vector<float> values(kCount);
    Copy(At(values.data()), At(args.range.param), stream,
         kCount * sizeof(float));
    Synchronize(stream);
    return values;
  }

  CuModule module_ = nullptr;
  CuFunction function_ = nullptr;

 private:
  template <typename T>
  CuPointer Upload(const T& value, CuStream stream) {
    const CuPointer memory = MakeMemory(sizeof(T));
    Copy(memory, At(&value), stream, sizeof(T));
    Synchronize(stream);
    return memory;
  }

  static std::vector<double> Hypers() {
    std::vector<double> values;
    for (const Hyper& hyper : Sgd::kHypers) {
      values.push_back(std::string_view(hyper.name) == "lr" ? 0.5 : 0);
    }
    return values;
  }

  const void* gradient_ = nullptr;
};

// The bytes 0x41 are a float near 12, 0x40 one near 3.
float FloatOfBytes(unsigned char byte) {
  float value = 0;
  std::memset(&value, byte, sizeof(value));
  return value;
}

TEST_F(KernelTest, ALaunchRunsOnItsStream) {
  const CuStream stream = MakeStream();
  const auto args = MakeArgs(stream, 0x41, 0x40);
  const Counters before = Count();
  EXPECT_CU(Launch(args, stream));
  EXPECT_EQ(CountSince(before).Launches("shard_update_Sgd"), 1u);
  EXPECT_EQ(CountSince(before).Launches(), 1u);
  const float expected = FloatOfBytes(0x41) - 0.5f * FloatOfBytes(0x40);
  for (const float value : Params(args, stream)) ASSERT_EQ(value, expected);
}

TEST_F(KernelTest, RejectsWhatADeviceRejects) {
  const CuStream stream = MakeStream();
  const cuda::UpdateElementsArgs args = {};
  EXPECT_EQ(Launch(args, stream, 0, 256), CuResult::kInvalidValue);
  EXPECT_EQ(Launch(args, stream, 1, 0), CuResult::kInvalidValue);
  EXPECT_EQ(Launch(args, stream, 1, 48), CuResult::kInvalidValue);
  EXPECT_EQ(Launch(args, stream, 1, 2048), CuResult::kInvalidValue);
  CuFunction none = nullptr;
  EXPECT_EQ(api_.ModuleGetFunction(&none, module_, "no_kernel"),
            CuResult::kNotFound);
  CuModule module = nullptr;
  EXPECT_EQ(api_.ModuleLoadData(&module, nullptr), CuResult::kInvalidValue);
  int blocks = 0;
  EXPECT_CU(api_.OccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function_,
                                                           256, 0));
  EXPECT_EQ(blocks, 2);
  EXPECT_CU(api_.ModuleUnload(module_));
  module_ = nullptr;
  EXPECT_EQ(Launch(args, stream), CuResult::kInvalidHandle);
}

TEST_F(KernelTest, PointersOfTheArgumentCountAsUses) {
  const CuStream a = MakeStream();
  const CuStream b = MakeStream();
  auto args = MakeArgs(a, 0x41, 0x40);
  Synchronize(a);
  EXPECT_CU(Launch(args, b));
  // What the kernel accesses is not known.
  Set(At(args.range.param), 0, a);
  EXPECT_EQ(ViolationText(), "");
  RunAll();
  // The host does not know that the launch is over.
  const CuPointer param = memory_[0];
  memory_.erase(memory_.begin());
  ASSERT_EQ(param, At(args.range.param));
  EXPECT_CU(api_.MemFree(param));
  EXPECT_EQ(Violations().size(), 2u);  // The set, too.
  EXPECT_NE(ViolationText().find("shard_update_Sgd (no. 1 on stream"),
            std::string::npos)
      << ViolationText();
  ClearViolations();
  EXPECT_CU(Launch(args, b));
  ExpectViolation(ViolationKind::kUseAfterFree, "shard_update_Sgd",
                  "cuMemFree (by the host)");
}

TEST_F(KernelTest, ADescribedKernelIsOrderedWithCopies) {
  for (const bool guard : {false, true}) {
    SCOPED_TRACE(guard);
    TearDown();
    Options options;
    options.guard = guard;
    Begin(options);
    Load();
    testing::DescribeKernels();
    const CuStream a = MakeStream();
    const CuStream b = MakeStream();
    const auto args = MakeArgs(a, 0x41, 0x40);
    Synchronize(a);
    const Counters before = Count();
    EXPECT_CU(Launch(args, a));
    std::vector<float> values(kCount);
    EXPECT_CU(api_.StreamWaitEvent(b, Record(a), 0));
    Copy(At(values.data()), At(args.range.param), b, kCount * sizeof(float));
    EXPECT_EQ(ViolationText(), "");
    EXPECT_CU(Launch(args, a));
    ExpectViolation(ViolationKind::kUnordered, "shard_update_Sgd (no.",
                    "cuMemcpyAsync of 12000 bytes (no. 2 on stream");
    EXPECT_EQ(CountSince(before).Launches(), 2u);
    // Its gradient, which it only reads.
    Copy(At(values.data()), At(Gradient()), b, kCount * sizeof(float));
    EXPECT_EQ(ViolationText(), "");
    Set(At(Gradient()), 0, b, 1);
    EXPECT_EQ(Violations().size(), 1u) << ViolationText();
    ClearViolations();
    // Before the values go.
    Synchronize(a);
    Synchronize(b);
  }
}

TEST_F(KernelTest, AFillIsOrderedByItsParts) {
  testing::DescribeKernels();
  CuFunction fill = nullptr;
  ASSERT_CU(api_.ModuleGetFunction(&fill, module_, "shard_fill"));
  const CuStream a = MakeStream();
  const CuStream b = MakeStream();
  const CuPointer zeros = MakeMemory();
  const CuPointer copied = MakeMemory();
  const CuPointer from = MakeMemory();
  Set(zeros, 1, a);
  Set(from, 7, a);
  cuda::FillArgs args = {};
  ASSERT_TRUE(cuda::AddFillPart(
      {reinterpret_cast<void*>(zeros), nullptr, kBytes / 2}, &args));
  ASSERT_TRUE(cuda::AddFillPart(
      {reinterpret_cast<void*>(copied), reinterpret_cast<void*>(from), kBytes},
      &args));
  void* params[] = {&args};
  EXPECT_CU(api_.LaunchKernel(fill, 1, 1, 1, 256, 1, 1, 0, a, params, nullptr));
  // A read of what it reads, and a write of what it leaves alone.
  EXPECT_CU(api_.StreamWaitEvent(b, Record(a), 0));
  EXPECT_CU(api_.LaunchKernel(fill, 1, 1, 1, 256, 1, 1, 0, a, params, nullptr));
  EXPECT_EQ(Read(from, b), 7);
  Set(zeros + kBytes / 2, 2, b, kBytes / 2);
  EXPECT_EQ(ViolationText(), "");
  Set(from, 0, b);
  ExpectViolation(ViolationKind::kUnordered, "cuMemsetD8Async of 64 bytes",
                  "shard_fill (no.");
  Set(copied, 0, b, 1);
  ExpectViolation(ViolationKind::kUnordered, "cuMemsetD8Async of 1 bytes",
                  "shard_fill (no.");
  Synchronize(a);
  Synchronize(b);
  EXPECT_EQ(Read(zeros, a), 0);
}

// Returns what of `memory` is accessed: "r", "w", both or none.
std::string UseOf(const std::vector<Access>& accesses, const void* memory) {
  std::string use;
  for (const Access& it : accesses) {
    if (it.memory == memory) use += it.writes ? "w" : "r";
  }
  return use;
}

TEST(KernelAccessesTest, ANormPassReadsWhatAnEarlierOneHasKept) {
  const float sources[2] = {};
  float kept = 0;
  const void* pointers[] = {&sources[0], &sources[1]};
  cuda::AddToNormArgs norm = {};
  norm.count = 1;
  for (const size_t count : {size_t{1}, size_t{2}}) {
    SCOPED_TRACE(count);
    norm.sources = cuda::SourcesOf(pointers, count, DType::kF32, nullptr);
    norm.kept = &kept;
    norm.pass = NormPass::kFirst;
    auto accesses = testing::AccessesOf<cuda::AddToNormArgs>(&norm);
    EXPECT_EQ(UseOf(accesses, &sources[0]), "r");
    EXPECT_EQ(UseOf(accesses, &kept), count == 1 ? "" : "w");
    norm.pass = NormPass::kSecond;
    accesses = testing::AccessesOf<cuda::AddToNormArgs>(&norm);
    EXPECT_EQ(UseOf(accesses, &sources[0]), "");
    EXPECT_EQ(UseOf(accesses, &kept), "r");
    norm.kept = nullptr;
    accesses = testing::AccessesOf<cuda::AddToNormArgs>(&norm);
    EXPECT_EQ(UseOf(accesses, &sources[0]), "r");
  }
  StepBlock block = {};
  cuda::UpdateElementsArgs update = {};
  update.block = &block;
  update.range.sources = norm.sources;
  update.range.kept_sum = &kept;
  update.range.count = 1;
  // Which of the two an update reads is only known when it runs.
  const auto accesses = testing::AccessesOf<cuda::UpdateElementsArgs>(&update);
  EXPECT_EQ(UseOf(accesses, &sources[1]), "r");
  EXPECT_EQ(UseOf(accesses, &kept), "r");
}

TEST_F(KernelTest, FindsMemoryThatADeviceDoesNotReach) {
  testing::DescribeKernels();
  const CuStream stream = MakeStream();
  auto args = MakeArgs(stream, 0x41, 0x40);
  const std::vector<float> pageable(kCount);
  args.range.sources.pointers[0] = pageable.data();
  EXPECT_CU(Launch(args, stream));
  ExpectViolation(ViolationKind::kUnreachable, "shard_update_Sgd (no.",
                  "not pinned");
  Synchronize(stream);
  args.range.sources.count = 0;
  args.range.count = kCount + 1;
  EXPECT_CU(Launch(args, stream));
  ExpectViolation(ViolationKind::kOutOfBounds, "shard_update_Sgd (no.",
                  "uses 12004 bytes from byte 0 of 12000");
}

}  // namespace
}  // namespace shard::launch_test
