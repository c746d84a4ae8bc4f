// SPDX-License-Identifier: Apache-2.0
//
// A fake of cuBLASLt over the fake of the driver: a product is one kernel of
// its stream. It multiplies as the library promises: f32 and bf16 with sums in
// fp32, and TF32. Only what libshard uses is there, and what it must not do is
// refused: matrices that are not aligned, or that overlap the result.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/device/cuda/cublas_api.h"
#include "tests/fake_cuda/fake_cuda.h"

#define SHARD_FAKE_CUBLAS_DECLARE(name, symbol, parameters) \
  namespace shard::cuda {                                   \
  extern "C" __attribute__((visibility("default")))         \
  CublasResult symbol parameters;                           \
  }
SHARD_CUBLAS(SHARD_FAKE_CUBLAS_DECLARE)
#undef SHARD_FAKE_CUBLAS_DECLARE

namespace shard::cuda {

struct CublasMatmulDescOpaque {
  CublasCompute compute;
  CublasOperation transpose_a;
  CublasOperation transpose_b;
};

// Column-major.
struct CublasLayoutOpaque {
  CublasType type;
  int64_t rows;
  int64_t cols;
  int64_t ld;
  int32_t count;
  int64_t stride;  // Elements.
};

struct CublasPreferenceOpaque {
  uint64_t most_bytes;
  uint32_t schemes;
};

namespace {

using testing::fake_cuda::Access;
using testing::fake_cuda::CountLibraryObject;
using testing::fake_cuda::EnterLibrary;
using testing::fake_cuda::FindProductAlgorithm;
using testing::fake_cuda::LaunchInLibrary;

CublasResult ResultOf(CuResult result) {
  switch (result) {
    case CuResult::kSuccess:
      return CublasResult::kSuccess;
    case CuResult::kOutOfMemory:
      return CublasResult::kAllocFailed;
    case CuResult::kNotInitialized:
    case CuResult::kInvalidContext:
      return CublasResult::kNotInitialized;
    case CuResult::kInvalidValue:
    case CuResult::kInvalidHandle:
      return CublasResult::kInvalidValue;
    case CuResult::kNotSupported:
      return CublasResult::kNotSupported;
    default:
      return CublasResult::kExecutionFailed;
  }
}

// Returns from an entry point what it is to fail with.
#define SHARD_FAKE_CUBLAS_ENTER(symbol)               \
  if (const CuResult entered = EnterLibrary(#symbol); \
      entered != CuResult::kSuccess) {                \
    return ResultOf(entered);                         \
  }

template <typename T>
CublasResult Make(T** made, T value) {
  *made = new T(value);
  CountLibraryObject(1);
  return CublasResult::kSuccess;
}

template <typename T>
CublasResult Destroy(T* object) {
  if (object == nullptr) return CublasResult::kInvalidValue;
  delete object;
  CountLibraryObject(-1);
  return CublasResult::kSuccess;
}

template <typename T>
CublasResult Set(T* to, const void* value, size_t bytes) {
  if (bytes != sizeof(T)) return CublasResult::kInvalidValue;
  std::memcpy(to, value, bytes);
  return CublasResult::kSuccess;
}

size_t SizeOf(CublasType type) { return type == CublasType::kBF16 ? 2 : 4; }

// Returns the bytes from the first element of a batch to behind its last.
size_t BytesOf(const CublasLayoutOpaque& layout) {
  return static_cast<size_t>((layout.count - 1) * layout.stride +
                             (layout.cols - 1) * layout.ld + layout.rows) *
         SizeOf(layout.type);
}

// Rounds to nearest even, with that many bits of the mantissa dropped.
float DropBits(float x, int bits) {
  if (!std::isfinite(x)) return x;
  const auto word = std::bit_cast<uint32_t>(x);
  const uint32_t odd = word >> bits & 1;
  const uint32_t rounded = word + (uint32_t{1} << (bits - 1)) - 1 + odd;
  return std::bit_cast<float>(rounded >> bits << bits);
}
constexpr int kBitsBelowBF16 = 16;
constexpr int kBitsBelowTF32 = 13;

class Matrices {
 public:
  Matrices(const CublasLayoutOpaque& layout, const void* data)
      : layout_(layout), data_(static_cast<const char*>(data)) {}

  const CublasLayoutOpaque& layout() const { return layout_; }

  float At(int32_t matrix, int64_t row, int64_t col) const {
    const char* const from = data_ + OffsetOf(matrix, row, col);
    uint32_t word = 0;
    if (layout_.type == CublasType::kBF16) {
      uint16_t half = 0;
      std::memcpy(&half, from, sizeof(half));
      word = uint32_t{half} << kBitsBelowBF16;
    } else {
      std::memcpy(&word, from, sizeof(word));
    }
    return std::bit_cast<float>(word);
  }

  void Store(float value, int32_t matrix, int64_t row, int64_t col) const {
    char* const to = const_cast<char*>(data_) + OffsetOf(matrix, row, col);
    if (layout_.type == CublasType::kBF16) {
      const auto half = static_cast<uint16_t>(
          std::bit_cast<uint32_t>(DropBits(value, kBitsBelowBF16)) >>
          kBitsBelowBF16);
      std::memcpy(to, &half, sizeof(half));
    } else {
      std::memcpy(to, &value, sizeof(value));
    }
  }

 private:
  size_t OffsetOf(int32_t matrix, int64_t row, int64_t col) const {
    return static_cast<size_t>(matrix * layout_.stride + col * layout_.ld +
                               row) *
           SizeOf(layout_.type);
  }

  const CublasLayoutOpaque layout_;
  const char* const data_;
};

// The elements of op(matrix) as they are multiplied, row by row.
std::vector<float> Operand(const Matrices& matrices, int32_t matrix,
                           CublasOperation operation, CublasCompute compute) {
  const bool transpose = operation == CublasOperation::kTranspose;
  const CublasLayoutOpaque& layout = matrices.layout();
  const int64_t rows = transpose ? layout.cols : layout.rows;
  const int64_t cols = transpose ? layout.rows : layout.cols;
  std::vector<float> made;
  made.reserve(static_cast<size_t>(rows * cols));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      const float x =
          transpose ? matrices.At(matrix, j, i) : matrices.At(matrix, i, j);
      made.push_back(
          compute == CublasCompute::kTF32 ? DropBits(x, kBitsBelowTF32) : x);
    }
  }
  return made;
}

struct Product {
  CublasMatmulDescOpaque desc;
  float alpha;
  float beta;
  Matrices a;
  Matrices b;
  Matrices c;
  Matrices d;

  int64_t inner() const {
    return desc.transpose_a == CublasOperation::kTranspose ? a.layout().rows
                                                           : a.layout().cols;
  }
  bool Fits() const {
    const bool ta = desc.transpose_a == CublasOperation::kTranspose;
    const bool tb = desc.transpose_b == CublasOperation::kTranspose;
    const CublasLayoutOpaque& x = a.layout();
    const CublasLayoutOpaque& y = b.layout();
    const CublasLayoutOpaque& z = d.layout();
    return (ta ? x.cols : x.rows) == z.rows &&
           (tb ? y.rows : y.cols) == z.cols &&
           (tb ? y.cols : y.rows) == inner() && x.count == z.count &&
           y.count == z.count && c.layout().rows == z.rows &&
           c.layout().cols == z.cols && c.layout().count == z.count;
  }

  void Run() const {
    for (int32_t m = 0; m < d.layout().count; ++m) {
      const auto left = Operand(a, m, desc.transpose_a, desc.compute);
      const auto right = Operand(b, m, desc.transpose_b, desc.compute);
      const auto k_end = static_cast<size_t>(inner());
      const auto cols = static_cast<size_t>(d.layout().cols);
      std::vector<float> row(cols);
      for (int64_t i = 0; i < d.layout().rows; ++i) {
        std::fill(row.begin(), row.end(), 0.0f);
        for (size_t k = 0; k < k_end; ++k) {
          const float x = left[static_cast<size_t>(i) * k_end + k];
          for (size_t j = 0; j < cols; ++j) row[j] += x * right[k * cols + j];
        }
        for (size_t j = 0; j < cols; ++j) {
          float value = alpha * row[j];
          // What is multiplied by 0 is not read.
          const auto col = static_cast<int64_t>(j);
          if (beta != 0) value += beta * c.At(m, i, col);
          d.Store(value, m, i, col);
        }
      }
    }
  }
};

bool IsAligned(const void* memory) {
  return reinterpret_cast<uintptr_t>(memory) % kCublasAlignment == 0;
}

bool Overlap(const void* x, size_t x_bytes, const void* y, size_t y_bytes) {
  const auto a = reinterpret_cast<uintptr_t>(x);
  const auto b = reinterpret_cast<uintptr_t>(y);
  return a < b + y_bytes && b < a + x_bytes;
}

}  // namespace

CublasResult cublasLtCreate(CublasHandle* handle) {
  SHARD_FAKE_CUBLAS_ENTER(cublasLtCreate);
  *handle = reinterpret_cast<CublasHandle>(new char);
  CountLibraryObject(1);
  return CublasResult::kSuccess;
}

CublasResult cublasLtDestroy(CublasHandle handle) {
  return Destroy(reinterpret_cast<char*>(handle));
}

CublasResult cublasLtGetProperty(CublasProperty property, int* value) {
  *value = property == CublasProperty::kMajor ? SHARD_FAKE_MAJOR : 8;
  return CublasResult::kSuccess;
}

CublasResult cublasLtMatmulDescCreate(CublasMatmulDesc* desc,
                                      CublasCompute compute, CublasType scale) {
  SHARD_FAKE_CUBLAS_ENTER(cublasLtMatmulDescCreate);
  if (scale != CublasType::kF32) return CublasResult::kNotSupported;
  return Make(desc, CublasMatmulDescOpaque{compute, CublasOperation::kNone,
                                           CublasOperation::kNone});
}

CublasResult cublasLtMatmulDescDestroy(CublasMatmulDesc desc) {
  return Destroy(desc);
}

CublasResult cublasLtMatmulDescSetAttribute(CublasMatmulDesc desc,
                                            CublasMatmulAttribute attribute,
                                            const void* value, size_t bytes) {
  SHARD_FAKE_CUBLAS_ENTER(cublasLtMatmulDescSetAttribute);
  return Set(attribute == CublasMatmulAttribute::kTransposeA
                 ? &desc->transpose_a
                 : &desc->transpose_b,
             value, bytes);
}

CublasResult cublasLtMatrixLayoutCreate(CublasLayout* layout, CublasType type,
                                        uint64_t rows, uint64_t cols,
                                        int64_t ld) {
  SHARD_FAKE_CUBLAS_ENTER(cublasLtMatrixLayoutCreate);
  if (ld < static_cast<int64_t>(rows)) return CublasResult::kInvalidValue;
  return Make(layout, CublasLayoutOpaque{type, static_cast<int64_t>(rows),
                                         static_cast<int64_t>(cols), ld, 1, 0});
}

CublasResult cublasLtMatrixLayoutDestroy(CublasLayout layout) {
  return Destroy(layout);
}

CublasResult cublasLtMatrixLayoutSetAttribute(CublasLayout layout,
                                              CublasLayoutAttribute attribute,
                                              const void* value, size_t bytes) {
  SHARD_FAKE_CUBLAS_ENTER(cublasLtMatrixLayoutSetAttribute);
  return attribute == CublasLayoutAttribute::kBatchCount
             ? Set(&layout->count, value, bytes)
             : Set(&layout->stride, value, bytes);
}

CublasResult cublasLtMatmulPreferenceCreate(CublasPreference* preference) {
  SHARD_FAKE_CUBLAS_ENTER(cublasLtMatmulPreferenceCreate);
  return Make(preference, CublasPreferenceOpaque{0, 7});
}

CublasResult cublasLtMatmulPreferenceDestroy(CublasPreference preference) {
  return Destroy(preference);
}

CublasResult cublasLtMatmulPreferenceSetAttribute(
    CublasPreference preference, CublasPreferenceAttribute attribute,
    const void* value, size_t bytes) {
  SHARD_FAKE_CUBLAS_ENTER(cublasLtMatmulPreferenceSetAttribute);
  return attribute == CublasPreferenceAttribute::kMaxWorkspaceBytes
             ? Set(&preference->most_bytes, value, bytes)
             : Set(&preference->schemes, value, bytes);
}

CublasResult cublasLtMatmulAlgoGetHeuristic(
    CublasHandle /*handle*/, CublasMatmulDesc desc, CublasLayout a,
    CublasLayout b, CublasLayout c, CublasLayout d, CublasPreference preference,
    int wanted, CublasHeuristic* found, int* num_found) {
  SHARD_FAKE_CUBLAS_ENTER(cublasLtMatmulAlgoGetHeuristic);
  const Product product = {
      *desc, 1, 0, {*a, nullptr}, {*b, nullptr}, {*c, nullptr}, {*d, nullptr}};
  if (!product.Fits()) return CublasResult::kInvalidValue;
  *num_found = 0;
  // Others may round parts of a sum to the type of the matrices.
  size_t workspace_bytes = 0;
  if (wanted < 1 || preference->schemes != kCublasReduceInComputeType ||
      !FindProductAlgorithm(preference->most_bytes, &workspace_bytes)) {
    return CublasResult::kNotSupported;
  }
  *num_found = 1;
  *found = {};
  found->algorithm.data[0] = workspace_bytes;
  found->workspace_bytes = workspace_bytes;
  return CublasResult::kSuccess;
}

CublasResult cublasLtMatmul(CublasHandle /*handle*/, CublasMatmulDesc desc,
                            const void* alpha, const void* a,
                            CublasLayout a_layout, const void* b,
                            CublasLayout b_layout, const void* beta,
                            const void* c, CublasLayout c_layout, void* d,
                            CublasLayout d_layout,
                            const CublasAlgorithm* algorithm, void* workspace,
                            size_t workspace_bytes, CuStream stream) {
  SHARD_FAKE_CUBLAS_ENTER(cublasLtMatmul);
  const Product product = {*desc,
                           *static_cast<const float*>(alpha),
                           *static_cast<const float*>(beta),
                           {*a_layout, a},
                           {*b_layout, b},
                           {*c_layout, c},
                           {*d_layout, d}};
  const size_t d_bytes = BytesOf(*d_layout);
  if (!product.Fits() || algorithm == nullptr ||
      workspace_bytes < algorithm->data[0] ||
      Overlap(a, BytesOf(*a_layout), d, d_bytes) ||
      Overlap(b, BytesOf(*b_layout), d, d_bytes)) {
    return CublasResult::kInvalidValue;
  }
  const void* const all[] = {a, b, c, d, workspace};
  for (const void* const memory : all) {
    if (!IsAligned(memory)) return CublasResult::kInvalidValue;
  }
  std::vector<Access> accesses = {{a, BytesOf(*a_layout), false},
                                  {b, BytesOf(*b_layout), false},
                                  {d, d_bytes, true}};
  if (workspace_bytes > 0) {
    accesses.push_back({workspace, workspace_bytes, true});
  }
  if (product.beta != 0) accesses.push_back({c, BytesOf(*c_layout), false});
  return ResultOf(LaunchInLibrary(
      stream, "cublasLtMatmul", accesses, [product] { product.Run(); },
      static_cast<uint64_t>(d_layout->count)));
}

}  // namespace shard::cuda
