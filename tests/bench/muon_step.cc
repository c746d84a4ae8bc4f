// SPDX-License-Identifier: Apache-2.0
//
// Muon's step of 24 fp32 matrices of 768 x 3072 (momentum, Newton-Schulz,
// apply), beside its products alone: the same BLAS calls on the same matrices.
// The two are interleaved matrix by matrix; times are medians over the rounds.
// The passes over memory have one thread, the products as many as the BLAS
// uses.

#include "kernels/cpu/muon_step.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "core/base/mapping.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/newton_schulz.h"
#include "kernels/formula/muon.h"
#include "tests/bench/bench.h"

namespace shard::bench {
namespace {

constexpr int kRows = 768;
constexpr int kCols = 3072;
constexpr size_t kMatrices = 24;
constexpr size_t kNumel = size_t{kRows} * kCols;
constexpr int kSteps = 5;
constexpr int kRounds = 3;

template <typename T>
T Require(StatusOr<T> value) {
  if (!value.ok()) {
    std::fprintf(stderr, "muon_step: %s\n", value.status().ToString().c_str());
    std::exit(1);
  }
  return *std::move(value);
}

// Makes every BLAS call of Newton-Schulz, without the work between the calls.
void Products(const Blas& blas, const float* x, float* workspace) {
  float* const product = workspace;
  float* const gram = product + kNumel;
  float* const poly = gram + kRows * kRows;
  GemmArgs args;
  args.m = args.k = args.lda = kRows;
  args.n = args.ldb = args.ldc = kCols;
  for (int step = 0; step < kSteps; ++step) {
    blas.Syrk(false, kRows, kCols, 1, x, kCols, 0, gram, kRows);
    blas.Syrk(false, kRows, kRows, 1, gram, kRows, 0, poly, kRows);
    blas.Gemm(args, poly, x, product);
  }
}

int Main() {
  const Blas blas = Require(Blas::Load());
  std::vector<double> hypers;
  for (const Hyper& hyper : Muon::kHypers) hypers.push_back(hyper.fallback);
  const Muon::Scalars scalars = Muon::Prepare(hypers.data(), 1);
  std::vector<float> gradients(kMatrices * kNumel);
  std::vector<float> momentum_buffers(gradients.size());
  std::vector<float> params(gradients.size());
  const Mapping workspace_pages = Require(Mapping::Anonymous(
      OrthogonalizeWorkspace(1, kRows, kCols) * sizeof(float)));
  auto* const workspace = reinterpret_cast<float*>(workspace_pages.data());

  std::vector<double> times;
  std::vector<double> ratios;
  uint32_t random = 1;
  for (int round = -1; round < kRounds; ++round) {
    // A step leaves its direction in the gradients.
    for (float& g : gradients) {
      random = random * 1664525 + 1013904223;
      g = static_cast<float>(static_cast<int32_t>(random)) * 1e-12f;
    }
    double products_seconds = 0;
    double step_seconds = 0;
    for (size_t i = 0; i < kMatrices; ++i) {
      float* const x = gradients.data() + i * kNumel;
      const double begin = Seconds();
      Products(blas, x, workspace);
      const double middle = Seconds();
      MuonMomentum(&scalars, x, momentum_buffers.data() + i * kNumel, kNumel);
      Orthogonalize(blas, {x, 1, kRows, kCols, kNumel}, kSteps,
                    hypers[Muon::kEps], workspace);
      MuonApply(&scalars, kRows, kCols, x, params.data() + i * kNumel, kNumel);
      products_seconds += middle - begin;
      step_seconds += Seconds() - middle;
    }
    if (round < 0) continue;
    times.push_back(step_seconds);
    ratios.push_back(step_seconds / products_seconds);
  }

  constexpr int64_t kShape[] = {kRows, kCols};
  const double flops =
      static_cast<double>(Muon::Cost(kShape, 2)) * kSteps * kMatrices;
  Bench("muon_step", "time", Median(times) * 1e3, "ms");
  Bench("muon_step", "products", flops / Median(times) / 1e9, "GFLOP/s");
  Bench("muon_step", "over_gemm", Median(ratios), "x");
  return 0;
}

}  // namespace
}  // namespace shard::bench

int main() { return shard::bench::Main(); }
