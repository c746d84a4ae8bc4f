// SPDX-License-Identifier: Apache-2.0
//
// The parts of the fakes that only programs of their own use: a wait for a
// stream, kernels of theirs, and cuBLAS's older interface.

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/fake_cuda/driver_testing.h"

namespace shard::programs_test {
namespace {

using namespace testing::fake_cuda;

using ProgramsTest = DriverTest;

TEST_F(ProgramsTest, AWaitTellsTheHostOfOneStream) {
  for (const bool lazy : {false, true}) {
    TearDown();
    Options options;
    options.lazy = lazy;
    Begin(options);
    const CuStream a = MakeStream();
    const CuStream b = MakeStream();
    EXPECT_CU(StreamSynchronize(a));  // There is nothing to wait for.
    const CuPointer memory = MakeMemory();
    const CuPointer other = MakeMemory();
    Set(memory, 7, a);
    Set(other, 7, b);
    const Counters before = Count();
    EXPECT_CU(StreamSynchronize(a));
    EXPECT_EQ(CountSince(before).waits_of_host, 1u);
    // To free memory is safe for the host once it knows of the work.
    memory_.clear();
    EXPECT_CU(api_.MemFree(memory));
    EXPECT_EQ(ViolationText(), "");
    EXPECT_CU(api_.MemFree(other));
    ExpectViolation(ViolationKind::kUnordered, "cuMemFree", "cuMemsetD8Async");
  }
}

TEST_F(ProgramsTest, AWaitEndsWhenTheDeviceIsLost) {
  const CuStream stream = MakeStream();
  const CuPointer memory = MakeMemory();
  Pause();
  Set(memory, 7, stream);
  LoseAtOperation(1, CuResult::kLaunchFailed);
  Resume();
  EXPECT_EQ(StreamSynchronize(stream), CuResult::kLaunchFailed);
}

TEST_F(ProgramsTest, AStreamThatIsCapturedHasNoWait) {
  const CuStream stream = MakeStream();
  SetCaptured(stream);
  EXPECT_EQ(StreamSynchronize(stream), CuResult::kStreamCaptureUnsupported);
  SetCaptured(nullptr);
}

struct CountThreadsArgs {
  uint32_t* to;
};

TEST_F(ProgramsTest, ModulesHaveKernelsThatAreAdded) {
  CuModule module = nullptr;
  CuFunction kernel = nullptr;
  ASSERT_CU(api_.ModuleLoadData(&module, "any"));
  EXPECT_EQ(api_.ModuleGetFunction(&kernel, module, "count_threads"),
            CuResult::kNotFound);
  AddKernel("count_threads", sizeof(CountThreadsArgs),
            [](const void* args, uint32_t blocks, uint32_t threads) {
              *static_cast<const CountThreadsArgs*>(args)->to =
                  blocks * threads;
            });
  ASSERT_CU(api_.ModuleGetFunction(&kernel, module, "count_threads"));
  const CuStream stream = MakeStream();
  const CuPointer memory = MakeMemory();
  CountThreadsArgs args = {reinterpret_cast<uint32_t*>(memory)};
  void* params[] = {&args};
  EXPECT_CU(
      api_.LaunchKernel(kernel, 3, 1, 1, 32, 1, 1, 0, stream, params, nullptr));
  EXPECT_EQ(Read(memory, stream), 96);
  EXPECT_CU(api_.ModuleUnload(module));
}

// ---- cuBLAS -----------------------------------------------------------------

constexpr int kAllocFailed = 3;
constexpr int kInvalidValue = 7;

class BlasTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    ASSERT_EQ(Blas<int (*)(void**)>("cublasCreate_v2")(&handle_), 0);
    stream_ = MakeStream();
    ASSERT_EQ((Blas<int (*)(void*, CuStream)>("cublasSetStream_v2")(handle_,
                                                                    stream_)),
              0);
  }
  void TearDown() override {
    EXPECT_EQ(Blas<int (*)(void*)>("cublasDestroy_v2")(handle_), 0);
    DriverTest::TearDown();
  }
  template <typename Function>
  static Function Blas(const char* symbol) {
    return Find<Function>("libcublas.so.13", symbol);
  }

  // Returns matrices of the device with those numbers.
  float* Matrices(const std::vector<float>& values) {
    const size_t bytes = values.size() * sizeof(float);
    auto* const matrices = reinterpret_cast<float*>(MakeMemory(bytes));
    Copy(At(matrices), At(values.data()), stream_, bytes);
    Synchronize(stream_);
    return matrices;
  }
  // Computes c(2, 3) = 2 op(a) op(b) + beta c, of matrices without gaps.
  int Multiply(bool ta, bool tb, const float* a, int a_ld, const float* b,
               int b_ld, float beta, float* c, int count) {
    using Function =
        int (*)(void*, int, int, int, int, int, const float*, const float*, int,
                long long, const float*, int, long long, const float*, float*,
                int, long long, int);
    const float alpha = 2;
    return Blas<Function>("cublasSgemmStridedBatched")(
        handle_, ta ? 1 : 0, tb ? 1 : 0, 2, 3, 2, &alpha, a, a_ld, 4, b, b_ld,
        6, &beta, c, 2, 6, count);
  }
  void Expect(const float* c, const std::vector<float>& expected) {
    Synchronize(stream_);
    EXPECT_EQ(std::vector<float>(c, c + expected.size()), expected);
  }

  void* handle_ = nullptr;
  CuStream stream_ = nullptr;
};

// Matrices are column-major: a is (1 2; 3 4), then (5 6; 7 8); b is
// (1 2 3; 4 5 6), then its negative.
TEST_F(BlasTest, MultipliesABatch) {
  const std::vector<float> b_values = {1,  4,  2,  5,  3,  6,
                                       -1, -4, -2, -5, -3, -6};
  const std::vector<float> expected = {18,  38,  24,  52,   30,   66,
                                       -58, -78, -80, -108, -102, -138};
  const float* a = Matrices({1, 3, 2, 4, 5, 7, 6, 8});
  const float* b = Matrices(b_values);
  // New memory has NaNs, which are not read.
  auto* const c = reinterpret_cast<float*>(MakeMemory(12 * sizeof(float)));
  EXPECT_EQ(Multiply(false, false, a, 2, b, 2, 0, c, 2), 0);
  Expect(c, expected);
  const float* at = Matrices({1, 2, 3, 4, 5, 6, 7, 8});
  const float* bt = Matrices({1, 2, 3, 4, 5, 6, -1, -2, -3, -4, -5, -6});
  EXPECT_EQ(Multiply(true, true, at, 2, bt, 3, 1, c, 2), 0);
  std::vector<float> twice;
  for (const float x : expected) twice.push_back(2 * x);
  Expect(c, twice);
}

TEST_F(BlasTest, RefusesWhatTheLibraryDoesNotPromise) {
  float* const a = Matrices({1, 3, 2, 4});
  float* const b = Matrices({1, 4, 2, 5, 3, 6});
  auto* const c = reinterpret_cast<float*>(MakeMemory(6 * sizeof(float)));
  EXPECT_EQ(Multiply(false, false, a, 1, b, 2, 0, c, 1), kInvalidValue);
  EXPECT_EQ(Multiply(false, true, a, 2, b, 2, 0, c, 1), kInvalidValue);
  EXPECT_EQ(Multiply(false, false, a, 2, c, 2, 0, c, 1), kInvalidValue);
  EXPECT_EQ(Multiply(false, false, a, 2, nullptr, 2, 0, c, 1), kInvalidValue);
  EXPECT_EQ(Multiply(false, false, a, 2, b, 2, 0, c, 0), kInvalidValue);
}

// A captured product has the workspace that the host has set since it set the
// stream, if that is large enough.
TEST_F(BlasTest, ACapturedProductNeedsAWorkspaceOfTheHosts) {
  constexpr size_t kEnough = 1024;
  const auto set_workspace = [&](CuPointer memory, size_t bytes) {
    return Blas<int (*)(void*, void*, size_t)>("cublasSetWorkspace_v2")(
        handle_, reinterpret_cast<void*>(memory), bytes);
  };
  const float* a = Matrices({1, 3, 2, 4});
  const float* b = Matrices({1, 4, 2, 5, 3, 6});
  auto* const c = reinterpret_cast<float*>(MakeMemory(6 * sizeof(float)));
  const CuPointer workspace = MakeMemory(kEnough);
  const auto captured = [&] {
    SetCaptured(stream_);
    const int result = Multiply(false, false, a, 2, b, 2, 0, c, 1);
    SetCaptured(nullptr);
    return result;
  };
  EXPECT_EQ(captured(), kAllocFailed);
  EXPECT_EQ(set_workspace(workspace + 128, kEnough), kInvalidValue);
  EXPECT_EQ(captured(), kAllocFailed);
  EXPECT_EQ(set_workspace(workspace, kEnough - 1), 0);
  EXPECT_EQ(captured(), kAllocFailed);
  EXPECT_EQ(set_workspace(workspace, kEnough), 0);
  EXPECT_EQ(captured(), 0);
  // Products overwrite it, in the order of the stream.
  EXPECT_EQ(Multiply(false, false, a, 2, b, 2, 0, c, 1), 0);
  Set(workspace, 1, MakeStream());
  ExpectViolation(ViolationKind::kUnordered, "cuMemsetD8Async", "cublasSgemm");
  EXPECT_EQ(
      (Blas<int (*)(void*, CuStream)>("cublasSetStream_v2")(handle_, stream_)),
      0);
  EXPECT_EQ(captured(), kAllocFailed);
}

}  // namespace
}  // namespace shard::programs_test
