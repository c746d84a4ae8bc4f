// SPDX-License-Identifier: Apache-2.0
//
// The CBLAS of gpu_check: the products that Muon and samples/gpt take on the
// CPU, so that a machine without a BLAS can compare with the CPU. One step of
// GPT-2's matrices takes it seconds. Sums are in fp32, in the order of k.

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <thread>
#include <vector>

namespace {

// The values of CBLAS's enumerations.
constexpr int kTranspose = 112;

// Products of fewer multiplications are made by the calling thread: threads
// need as long to start.
constexpr double kFew = 1 << 23;

// Columns that are summed together, in named vectors of 16 bytes: compilers
// keep these in registers.
constexpr int kPanel = 16;
using Vector = float __attribute__((vector_size(16)));
struct Row {
  Vector a, b, c, d;
};
static_assert(sizeof(Row) == kPanel * sizeof(float));

// op(matrix), row-major: element (i, j) is data[i * row + j * col].
struct Operand {
  Operand(int transpose, const float* data, int ld)
      : data(data),
        row(transpose == kTranspose ? 1 : ld),
        col(transpose == kTranspose ? ld : 1) {}
  float At(int i, int j) const { return data[i * row + j * col]; }

  const float* data;
  std::ptrdiff_t row;
  std::ptrdiff_t col;
};

// Calls body(begin, end) for parts of [0, count), each in a thread.
template <class Body>
void InThreads(int count, const Body& body) {
  const int parts =
      std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 32);
  const auto begin = [&](int part) {
    return static_cast<int>(std::ptrdiff_t{count} * part / parts);
  };
  std::vector<std::thread> threads;
  for (int part = 0; part < parts; ++part) {
    if (begin(part) == begin(part + 1)) continue;
    threads.emplace_back([&, part] { body(begin(part), begin(part + 1)); });
  }
  for (std::thread& thread : threads) thread.join();
}

// Computes the panels [begin, end) of c = alpha a b + beta c; of a square c, if
// `lower`, the elements on and below the diagonal alone.
void Multiply(int begin, int end, int m, int n, int k, float alpha,
              const std::vector<float>& a, const Operand& b, float beta,
              float* c, int ldc, bool lower) {
  std::vector<Row> panel(static_cast<std::size_t>(k));
  for (int p = begin; p < end; ++p) {
    const int first = p * kPanel;
    const int width = std::min(kPanel, n - first);
    for (int l = 0; l < k; ++l) {
      float row[kPanel] = {};
      for (int j = 0; j < width; ++j) row[j] = b.At(l, first + j);
      std::memcpy(&panel[static_cast<std::size_t>(l)], row, sizeof(row));
    }
    for (int i = lower ? first : 0; i < m; ++i) {
      const float* factor =
          a.data() + static_cast<std::size_t>(i) * static_cast<std::size_t>(k);
      Row sum = {};
      for (const Row& row : panel) {
        sum.a += *factor * row.a;
        sum.b += *factor * row.b;
        sum.c += *factor * row.c;
        sum.d += *factor * row.d;
        ++factor;
      }
      float sums[kPanel];
      std::memcpy(sums, &sum, sizeof(sums));
      float* const to = c + std::ptrdiff_t{i} * ldc + first;
      for (int j = 0; j < width && (!lower || first + j <= i); ++j) {
        // What is multiplied by 0 is not read.
        to[j] = alpha * sums[j] + (beta == 0 ? 0 : beta * to[j]);
      }
    }
  }
}

void MultiplyInThreads(int m, int n, int k, float alpha, const Operand& a,
                       const Operand& b, float beta, float* c, int ldc,
                       bool lower) {
  std::vector<float> rows;
  rows.reserve(static_cast<std::size_t>(m) * static_cast<std::size_t>(k));
  for (int i = 0; i < m; ++i) {
    for (int l = 0; l < k; ++l) rows.push_back(a.At(i, l));
  }
  const auto multiply = [&](int begin, int end) {
    Multiply(begin, end, m, n, k, alpha, rows, b, beta, c, ldc, lower);
  };
  const int panels = (n + kPanel - 1) / kPanel;
  if (double{1} * m * n * k < kFew) {
    multiply(0, panels);
  } else {
    InThreads(panels, multiply);
  }
}

}  // namespace

#define SHARD_CBLAS extern "C" __attribute__((visibility("default")))

// REQUIRES, as below: row-major matrices.
SHARD_CBLAS void cblas_sgemm(int /*layout*/, int transpose_a, int transpose_b,
                             int m, int n, int k, float alpha, const float* a,
                             int lda, const float* b, int ldb, float beta,
                             float* c, int ldc) {
  MultiplyInThreads(m, n, k, alpha, {transpose_a, a, lda},
                    {transpose_b, b, ldb}, beta, c, ldc, false);
}

// REQUIRES: the lower triangle.
SHARD_CBLAS void cblas_ssyrk(int /*layout*/, int /*triangle*/, int transpose,
                             int n, int k, float alpha, const float* a, int lda,
                             float beta, float* c, int ldc) {
  const bool transposed = transpose == kTranspose;
  MultiplyInThreads(n, n, k, alpha, {transpose, a, lda},
                    {transposed ? 0 : kTranspose, a, lda}, beta, c, ldc, true);
}
