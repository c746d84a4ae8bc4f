// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/newton_schulz.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cpu/norm.h"
#include "kernels/formula/muon.h"

namespace shard {

namespace {

// The matrices that are computed together.
struct Group {
  int count;
  int rows;
  int cols;
  float* x[kBatchedAtOnce];
  float* other[kBatchedAtOnce];  // x before the last product, or after it
  float* gram[kBatchedAtOnce];
  float* poly[kBatchedAtOnce];

  bool tall() const { return rows > cols; }
  int small() const { return std::min(rows, cols); }
  int large() const { return std::max(rows, cols); }
};

bool IsSmall(int64_t rows, int64_t cols) {
  return std::min(rows, cols) <= kBatchedSide;
}

int64_t AtOnce(int64_t count, int64_t rows, int64_t cols) {
  return IsSmall(rows, cols) ? std::min<int64_t>(count, kBatchedAtOnce) : 1;
}

// Returns the elements of a matrix in the workspace, where every matrix is
// aligned.
size_t Padded(int64_t rows, int64_t cols) {
  constexpr size_t kLine = kWorkspaceAlignment / sizeof(float);
  return (static_cast<size_t>(rows * cols) + kLine - 1) / kLine * kLine;
}

size_t WorkspaceOfOne(int64_t rows, int64_t cols) {
  const int64_t small = std::min(rows, cols);
  return 2 * Padded(rows, cols) + 2 * Padded(small, small);
}

// Sets to = from / max(|from|, eps); all NaN when an element is not finite.
void Normalize(const float* from, size_t numel, double eps, float* to) {
  NormSum squares = {};
  AddToNorm(NormType::kTwo, 0, 0, from, numel, &squares);
  const float factor =
      Muon::FactorOf(FinishNorm(NormType::kTwo, 0, 0, squares), eps);
  for (size_t i = 0; i < numel; ++i) to[i] = from[i] * factor;
}

// Copies the elements below the diagonal to above it, in blocks that stay with
// their images in the L1 cache.
void Mirror(float* matrix, int size) {
  constexpr int kBlock = 32;
  const auto n = static_cast<size_t>(size);
  for (size_t top = 0; top < n; top += kBlock) {
    for (size_t left = 0; left <= top; left += kBlock) {
      for (size_t i = top; i < std::min(top + kBlock, n); ++i) {
        for (size_t j = left; j < std::min(left + kBlock, i); ++j) {
          matrix[j * n + i] = matrix[i * n + j];
        }
      }
    }
  }
}

// For a tall matrix, x^T is the matrix that muon.h calls x.
void Gram(const Blas& blas, bool batched, Group& group) {
  const int small = group.small();
  if (batched) {
    GemmArgs args;
    args.transpose_a = group.tall();
    args.transpose_b = !group.tall();
    args.m = args.n = args.ldc = small;
    args.k = group.large();
    args.lda = args.ldb = group.cols;
    auto* const x = const_cast<const float**>(group.x);
    blas.GemmBatch(args, group.count, x, x, group.gram);
    return;
  }
  for (int i = 0; i < group.count; ++i) {
    blas.Syrk(group.tall(), small, group.large(), 1, group.x[i], group.cols, 0,
              group.gram[i], small);
    Mirror(group.gram[i], small);
  }
}

void Polynomial(const Blas& blas, bool batched, Group& group) {
  constexpr auto kLinear = static_cast<float>(Muon::kLinear);
  constexpr auto kCubic = static_cast<float>(Muon::kCubic);
  constexpr auto kQuintic = static_cast<float>(Muon::kQuintic);
  const int small = group.small();
  const auto n = static_cast<size_t>(small);
  for (int i = 0; i < group.count; ++i) {
    std::memcpy(group.poly[i], group.gram[i], n * n * sizeof(float));
  }
  if (batched) {
    GemmArgs args;
    args.m = args.n = args.k = args.lda = args.ldb = args.ldc = small;
    args.alpha = kQuintic;
    args.beta = kCubic;
    auto* const gram = const_cast<const float**>(group.gram);
    blas.GemmBatch(args, group.count, gram, gram, group.poly);
  }
  for (int i = 0; i < group.count; ++i) {
    float* const poly = group.poly[i];
    if (!batched) {
      blas.Syrk(false, small, small, kQuintic, group.gram[i], small, kCubic,
                poly, small);
      Mirror(poly, small);
    }
    for (size_t d = 0; d < n; ++d) poly[d * n + d] += kLinear;
  }
}

// Leaves the new x in group.x and the old one in group.other.
void Multiply(const Blas& blas, bool batched, Group& group) {
  GemmArgs args;
  args.m = group.rows;
  args.n = group.cols;
  args.k = group.small();
  args.lda = group.tall() ? group.cols : group.small();
  args.ldb = args.ldc = group.cols;
  std::swap(group.x, group.other);
  float** const left = group.tall() ? group.other : group.poly;
  float** const right = group.tall() ? group.poly : group.other;
  if (batched) {
    blas.GemmBatch(args, group.count, const_cast<const float**>(left),
                   const_cast<const float**>(right), group.x);
    return;
  }
  for (int i = 0; i < group.count; ++i) {
    blas.Gemm(args, left[i], right[i], group.x[i]);
  }
}

}  // namespace

size_t OrthogonalizeWorkspace(int64_t count, int64_t rows, int64_t cols) {
  return static_cast<size_t>(AtOnce(count, rows, cols)) *
         WorkspaceOfOne(rows, cols);
}

void Orthogonalize(const Blas& blas, const MatrixBatch& batch, int steps,
                   double eps, float* workspace) {
  if (batch.rows == 0 || batch.cols == 0) return;
  const bool batched = IsSmall(batch.rows, batch.cols) && blas.has_batch();
  const int64_t at_once = AtOnce(batch.count, batch.rows, batch.cols);
  const auto numel = static_cast<size_t>(batch.rows * batch.cols);
  const int64_t small = std::min(batch.rows, batch.cols);
  Group group;
  group.rows = static_cast<int>(batch.rows);
  group.cols = static_cast<int>(batch.cols);
  for (int64_t begin = 0; begin < batch.count; begin += at_once) {
    float* const first = batch.first + begin * batch.stride;
    group.count = static_cast<int>(std::min(at_once, batch.count - begin));
    float* next = workspace;
    for (int i = 0; i < group.count; ++i) {
      group.x[i] = next;
      group.other[i] = group.x[i] + Padded(batch.rows, batch.cols);
      group.gram[i] = group.other[i] + Padded(batch.rows, batch.cols);
      group.poly[i] = group.gram[i] + Padded(small, small);
      next = group.poly[i] + Padded(small, small);
      Normalize(first + i * batch.stride, numel, eps, group.x[i]);
    }
    for (int step = 0; step < steps; ++step) {
      Gram(blas, batched, group);
      Polynomial(blas, batched, group);
      Multiply(blas, batched, group);
    }
    for (int i = 0; i < group.count; ++i) {
      std::memcpy(first + i * batch.stride, group.x[i], numel * sizeof(float));
    }
  }
}

}  // namespace shard
