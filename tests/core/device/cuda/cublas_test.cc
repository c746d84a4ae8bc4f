// SPDX-License-Identifier: Apache-2.0
//
// Products of cuBLASLt over the fake of the library, beside a plain loop.
// cublas_open_test finds, or does not find, the library; muon_batch_test has
// the batches of matrices that they are made for.

#include "core/device/cuda/cublas.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/rounding.h"
#include "core/base/strings.h"
#include "core/device/cuda/context.h"
#include "core/device/cuda/cuda_device.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/device/kernel_inputs.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace shard::cuda {
namespace {

using testing::FakeCudaTest;
using testing::Values;
using testing::fake_cuda::AliveText;
using testing::fake_cuda::ClearFailures;
using testing::fake_cuda::Count;
using testing::fake_cuda::CountAlive;
using testing::fake_cuda::Counters;
using testing::fake_cuda::CountSince;
using testing::fake_cuda::FailCall;
using testing::fake_cuda::RunAll;
using testing::fake_cuda::SetProductWorkspaces;

// Half the distance of two numbers from 1 on.
constexpr double kBF16Half = 0x1p-8;
constexpr double kTF32Half = 0x1p-11;
constexpr double kF32Half = 0x1p-24;

// Rounds to nearest even, so that `bits` of fp32 are dropped.
float DropBits(float x, int bits) {
  const auto word = std::bit_cast<uint32_t>(x);
  const uint32_t odd = word >> bits & 1;
  return std::bit_cast<float>((word + (1u << (bits - 1)) - 1 + odd) >>
                              bits << bits);
}
float RoundToBF16(float x) { return DropBits(x, 16); }
float RoundToTF32(float x) { return DropBits(x, 13); }

// A batch of matrices in the memory of the device.
class Matrices {
 public:
  Matrices(Device* device, CublasType type, const MatrixLayout& layout,
           int32_t count, uint32_t seed)
      : type_(type), layout_(layout), count_(count) {
    auto memory = device->Allocate(bytes(), "matrices");
    EXPECT_OK(memory);
    memory_ = *std::move(memory);
    for (const float x : Values(elements(), seed)) Store(num_stored_++, x);
  }

  void* data() const { return memory_.data(); }
  double At(int32_t matrix, bool transpose, int64_t i, int64_t j) const {
    if (transpose) std::swap(i, j);
    return Load(
        static_cast<size_t>(matrix * layout_.stride + i * layout_.cols + j));
  }
  std::vector<float> All() const {
    std::vector<float> all;
    for (size_t i = 0; i < elements(); ++i) all.push_back(Load(i));
    return all;
  }
  // Returns whether element i is of a matrix, not between two.
  bool IsOfMatrix(size_t i) const {
    return static_cast<int64_t>(i) % layout_.stride <
           layout_.rows * layout_.cols;
  }

 private:
  size_t elements() const {
    return static_cast<size_t>(count_ * layout_.stride);
  }
  size_t bytes() const { return elements() * sizeof(float); }
  float Load(size_t i) const {
    if (type_ == CublasType::kF32) return static_cast<float*>(data())[i];
    return std::bit_cast<float>(
        uint32_t{static_cast<const uint16_t*>(data())[i]} << 16);
  }
  void Store(size_t i, float x) {
    if (type_ == CublasType::kF32) {
      static_cast<float*>(data())[i] = x;
    } else {
      static_cast<uint16_t*>(data())[i] =
          static_cast<uint16_t>(std::bit_cast<uint32_t>(RoundToBF16(x)) >> 16);
    }
  }

  const CublasType type_;
  const MatrixLayout layout_;
  const int32_t count_;
  DeviceMemory memory_;
  size_t num_stored_ = 0;
};

class CublasTest : public FakeCudaTest {
 protected:
  void SetUp() override {
    FakeCudaTest::SetUp();
    auto device = OpenDevice("0");
    ASSERT_OK(device);
    device_ = *std::move(device);
    auto context = Context::Open(0);
    ASSERT_OK(context);
    context_ = *std::move(context);
    auto cublas = Cublas::Open(context_);
    ASSERT_OK(cublas);
    cublas_ = *std::move(cublas);
    ASSERT_OK(context_->Run([&] {
      return context_->driver()->ToStatus(
          context_->api().StreamCreate(&stream_, kStreamNonBlocking),
          "cuStreamCreate");
    }));
  }
  void TearDown() override {
    Finish();
    EXPECT_OK(context_->Run([&] {
      return context_->driver()->ToStatus(
          context_->api().StreamDestroy(stream_), "cuStreamDestroy");
    }));
    cublas_.reset();
    device_.reset();
    context_.reset();
    FakeCudaTest::TearDown();
  }

  // Waits for the stream, and tells the fake that the host knows.
  void Finish() {
    const Context::Current current(*context_);
    const DriverApi& api = context_->api();
    CuEvent event = nullptr;
    EXPECT_EQ(api.EventCreate(&event, kEventDisableTiming), CuResult::kSuccess);
    EXPECT_EQ(api.EventRecord(event, stream_), CuResult::kSuccess);
    RunAll();
    EXPECT_EQ(api.EventQuery(event), CuResult::kSuccess);
    EXPECT_EQ(api.EventDestroy(event), CuResult::kSuccess);
  }

  StatusOr<Product> Make(const ProductShape& shape) {
    const Context::Current current(*context_);
    return Product::Make(cublas_, shape);
  }

  Matrices MakeMatrices(const MatrixLayout& layout, const ProductShape& shape,
                        uint32_t seed) {
    return {device_.get(), shape.type, layout, shape.count, seed};
  }

  // Computes a product with all that its memory has, and compares.
  void Check(const ProductShape& shape, float alpha, float beta) {
    SCOPED_TRACE(StrCat(shape.d.rows, " x ", shape.d.cols,
                        shape.transpose_a ? ", transposed a" : "",
                        shape.transpose_b ? ", transposed b" : "", ", ",
                        shape.count, " of type ", static_cast<int>(shape.type),
                        ", compute ", static_cast<int>(shape.compute),
                        ", alpha ", alpha, ", beta ", beta));
    const Matrices a = MakeMatrices(shape.a, shape, 1);
    const Matrices b = MakeMatrices(shape.b, shape, 2);
    const Matrices c = MakeMatrices(shape.d, shape, 3);
    const Matrices d = MakeMatrices(shape.d, shape, 4);
    const auto before_c = c.All();
    const auto before_d = d.All();
    const auto product = Make(shape);
    ASSERT_OK(product);
    EXPECT_LE(product->workspace_bytes(), Product::kMaxWorkspace);
    auto workspace =
        device_->Allocate(product->workspace_bytes(), "the workspace");
    ASSERT_OK(workspace);
    {
      const Context::Current current(*context_);
      ASSERT_OK(product->Enqueue(alpha, a.data(), b.data(), beta, c.data(),
                                 d.data(), workspace->data(), stream_));
    }
    Finish();
    EXPECT_EQ(c.All(), before_c);
    const auto after = d.All();
    for (size_t i = 0; i < after.size(); ++i) {
      if (d.IsOfMatrix(i)) continue;
      ASSERT_EQ(after[i], before_d[i]) << "between matrices, element " << i;
    }
    ExpectProduct(shape, alpha, a, b, beta, c, d);
  }

  void ExpectProduct(const ProductShape& shape, double alpha, const Matrices& a,
                     const Matrices& b, double beta, const Matrices& c,
                     const Matrices& d) {
    const bool tf32 = shape.compute == CublasCompute::kTF32;
    const auto operand = [&](double x) -> double {
      return tf32 ? RoundToTF32(static_cast<float>(x)) : x;
    };
    const int64_t k_end = shape.transpose_a ? shape.a.rows : shape.a.cols;
    for (int32_t m = 0; m < shape.count; ++m) {
      for (int64_t i = 0; i < shape.d.rows; ++i) {
        for (int64_t j = 0; j < shape.d.cols; ++j) {
          double sum = 0;
          double magnitudes = 0;
          for (int64_t k = 0; k < k_end; ++k) {
            const double term = operand(a.At(m, shape.transpose_a, i, k)) *
                                operand(b.At(m, shape.transpose_b, k, j));
            sum += term;
            magnitudes += std::abs(term);
          }
          const double added = beta == 0 ? 0 : beta * c.At(m, false, i, j);
          const double expected = alpha * sum + added;
          double most = static_cast<double>(k_end + 3) * kF32Half *
                        (std::abs(alpha) * magnitudes + std::abs(added));
          if (shape.type == CublasType::kBF16) {
            most += kBF16Half * (std::abs(expected) + most);
          }
          ASSERT_NEAR(d.At(m, false, i, j), expected, most)
              << "matrix " << m << ", " << i << ", " << j;
        }
      }
    }
  }

  std::shared_ptr<Device> device_;
  std::shared_ptr<Context> context_;
  std::shared_ptr<const Cublas> cublas_;
  CuStream stream_ = nullptr;
};

// Matrices of m x k and k x n, or transposes of them, with `gap` elements
// between two of a batch.
ProductShape ShapeOf(int64_t m, int64_t n, int64_t k, bool transpose_a,
                     bool transpose_b, int32_t count, int64_t gap = 0) {
  const auto layout = [gap](int64_t rows, int64_t cols) {
    return MatrixLayout{rows, cols, rows * cols + gap};
  };
  ProductShape shape;
  shape.transpose_a = transpose_a;
  shape.transpose_b = transpose_b;
  shape.a = transpose_a ? layout(k, m) : layout(m, k);
  shape.b = transpose_b ? layout(n, k) : layout(k, n);
  shape.d = layout(m, n);
  shape.count = count;
  return shape;
}

TEST_F(CublasTest, ProductsAreThoseOfAPlainLoop) {
  struct Size {
    int64_t m, n, k;
  };
  for (const Size& size : {Size{1, 1, 1}, Size{7, 7, 7}, Size{33, 5, 12},
                           Size{5, 33, 12}, Size{4, 3, 70}}) {
    for (const int transposes : {0, 1, 2, 3}) {
      for (const auto& [type, compute] :
           {std::pair{CublasType::kF32, CublasCompute::kF32},
            std::pair{CublasType::kF32, CublasCompute::kTF32},
            std::pair{CublasType::kBF16, CublasCompute::kF32}}) {
        for (const int32_t count : {1, 3}) {
          ProductShape shape =
              ShapeOf(size.m, size.n, size.k, (transposes & 1) != 0,
                      (transposes & 2) != 0, count, count == 1 ? 0 : 13);
          shape.type = type;
          shape.compute = compute;
          Check(shape, 1, 0);
          Check(shape, 2.5f, -1.25f);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// A product that is TF32 only by name would have f32's bits.
TEST_F(CublasTest, TF32RoundsItsOperands) {
  ProductShape shape = ShapeOf(1, 1, 1, false, false, 1);
  shape.compute = CublasCompute::kTF32;
  const Matrices a = MakeMatrices(shape.a, shape, 1);
  const Matrices d = MakeMatrices(shape.d, shape, 2);
  const auto product = Make(shape);
  ASSERT_OK(product);
  auto workspace = device_->Allocate(product->workspace_bytes(), "workspace");
  ASSERT_OK(workspace);
  const float x = 1 + 0x1p-12f;
  static_cast<float*>(a.data())[0] = x;
  {
    const Context::Current current(*context_);
    ASSERT_OK(product->Enqueue(1, a.data(), a.data(), 0, d.data(), d.data(),
                               workspace->data(), stream_));
  }
  Finish();
  EXPECT_NEAR(d.At(0, false, 0, 0), 1, kTF32Half / 4);
  EXPECT_NE(d.At(0, false, 0, 0), x * x);
}

// What C has does not matter where it is multiplied by 0.
TEST_F(CublasTest, NaNInTheResultsMemoryIsNotRead) {
  const ProductShape shape = ShapeOf(8, 8, 8, false, true, 2, 64);
  const Matrices a = MakeMatrices(shape.a, shape, 1);
  const Matrices d = MakeMatrices(shape.d, shape, 2);
  for (size_t i = 0; i < d.All().size(); ++i) {
    static_cast<float*>(d.data())[i] = std::numeric_limits<float>::quiet_NaN();
  }
  const auto product = Make(shape);
  ASSERT_OK(product);
  auto workspace = device_->Allocate(product->workspace_bytes(), "workspace");
  ASSERT_OK(workspace);
  {
    const Context::Current current(*context_);
    ASSERT_OK(product->Enqueue(1, a.data(), a.data(), 0, d.data(), d.data(),
                               workspace->data(), stream_));
  }
  Finish();
  ExpectProduct(shape, 1, a, a, 0, d, d);
}

TEST_F(CublasTest, AProductIsOneLaunchAndChoosesNothing) {
  const ProductShape shape = ShapeOf(8, 8, 8, false, true, 5);
  const Matrices a = MakeMatrices(shape.a, shape, 1);
  const Matrices d = MakeMatrices(shape.d, shape, 2);
  const auto product = Make(shape);
  ASSERT_OK(product);
  auto workspace = device_->Allocate(product->workspace_bytes(), "workspace");
  ASSERT_OK(workspace);
  const Context::Current current(*context_);
  const Counters before = Count();
  ASSERT_OK(product->Enqueue(1, a.data(), a.data(), 0, d.data(), d.data(),
                             workspace->data(), stream_));
  const Counters made = CountSince(before);
  EXPECT_EQ(made.Calls(), 2u);
  EXPECT_EQ(made.Calls("cublasLtMatmul"), 1u);
  EXPECT_EQ(made.Calls("cuLaunchKernel"), 1u);
  EXPECT_EQ(made.launches,
            (std::map<std::string, uint64_t>{{"cublasLtMatmul", 1}}));
  Finish();
}

// ---- Errors -----------------------------------------------------------------

TEST_F(CublasTest, AnyCallOfMakingAProductMayFail) {
  const ProductShape shape = ShapeOf(8, 8, 8, false, true, 5);
  const auto alive = CountAlive();
  const Counters before = Count();
  ASSERT_OK(Make(shape));
  const Counters calls = CountSince(before);
  int failed = 0;
  for (const auto& [symbol, count] : calls.calls) {
    if (!symbol.starts_with("cublas")) continue;
    for (uint64_t call = 1; call <= count; ++call) {
      SCOPED_TRACE(StrCat(symbol, " number ", call));
      FailCall(symbol, call, CuResult::kOutOfMemory);
      ExpectError(Make(shape), StatusCode::kResourceExhausted,
                  {StrCat(symbol, ": CUBLAS_STATUS_ALLOC_FAILED (3)")});
      EXPECT_EQ(CountAlive(), alive) << AliveText();
      ++failed;
    }
  }
  // A description with its two operations, three layouts with two attributes, a
  // preference with its two, and the choice.
  EXPECT_EQ(failed, 3 + 9 + 3 + 1);
  ASSERT_OK(Make(shape));
}

// Its best algorithm needs more than the workspace has.
TEST_F(CublasTest, AnAlgorithmThatFitsTheWorkspaceIsChosen) {
  constexpr size_t kMost = Product::kMaxWorkspace;
  for (const size_t fits : {kMost, size_t{2048}, size_t{0}}) {
    SetProductWorkspaces({2 * kMost, kMost + 1, fits});
    const auto product = Make(ShapeOf(8, 8, 8, false, true, 5));
    ASSERT_OK(product);
    EXPECT_EQ(product->workspace_bytes(), fits);
    Check(ShapeOf(8, 8, 8, false, true, 5), 2.5f, -1.25f);
    if (HasFatalFailure()) return;
  }
}

TEST_F(CublasTest, AShapeWithoutAnAlgorithmThatFitsIsAnError) {
  const auto alive = CountAlive();
  SetProductWorkspaces(
      {2 * Product::kMaxWorkspace, Product::kMaxWorkspace + 1});
  ExpectError(Make(ShapeOf(8, 8, 8, false, true, 5)),
              StatusCode::kBackendUnavailable,
              {"libcublasLt.so.13 13.8 has no algorithm", "at most 32.0 MiB",
               "; try another version of cuBLAS, or another precision"});
  EXPECT_EQ(CountAlive(), alive) << AliveText();
}

TEST_F(CublasTest, AProductThatFailsNamesItsCall) {
  const ProductShape shape = ShapeOf(8, 8, 8, false, true, 1);
  const Matrices a = MakeMatrices(shape.a, shape, 1);
  const Matrices d = MakeMatrices(shape.d, shape, 2);
  const auto product = Make(shape);
  ASSERT_OK(product);
  auto workspace = device_->Allocate(product->workspace_bytes(), "workspace");
  ASSERT_OK(workspace);
  const Context::Current current(*context_);
  for (const auto& [symbol, result] :
       {std::pair{"cublasLtMatmul", CuResult::kUnknown},
        std::pair{"cuLaunchKernel", CuResult::kLaunchFailed}}) {
    FailCall(symbol, 1, result);
    ExpectError(product->Enqueue(1, a.data(), a.data(), 0, d.data(), d.data(),
                                 workspace->data(), stream_),
                StatusCode::kUnavailable,
                {"cublasLtMatmul: CUBLAS_STATUS_EXECUTION_FAILED (13)"});
  }
}

TEST_F(CublasTest, MatricesThatProductsCannotHaveAreNoCrash) {
  // The fake, as the library, knows that they do not fit.
  ProductShape shape = ShapeOf(8, 8, 8, false, true, 1);
  shape.b.cols = 9;
  ExpectError(Make(shape), StatusCode::kInternal,
              {"cublasLtMatmulAlgoGetHeuristic", "INVALID_VALUE"});
}

}  // namespace
}  // namespace shard::cuda
