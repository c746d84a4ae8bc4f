// SPDX-License-Identifier: Apache-2.0

#include "kernels/cpu/blas.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "tests/core/base/expect_status.h"
#include "tests/kernels/cpu/fake_cblas.h"

namespace shard {
namespace {

// tools/setup installs OpenBLAS, which is the first library that is tried.
TEST(BlasTest, FindsOpenBlas) {
  for (const bool empty : {false, true}) {
    if (empty) setenv("SHARD_BLAS_LIBRARY", "", 1);
    const auto blas = Blas::Load();
    unsetenv("SHARD_BLAS_LIBRARY");
    ASSERT_OK(blas);
    EXPECT_EQ(blas->name(), "libopenblas.so.0");
  }
}

TEST(BlasTest, TheVariableDecides) {
  const BlasLibrary library(FakeCblasPath("plain"));
  const auto blas = Blas::Load();
  ASSERT_OK(blas);
  EXPECT_EQ(blas->name(), FakeCblasPath("plain"));
}

// The library that the variable names is missing. OpenBLAS is installed, and is
// not tried.
TEST(BlasTest, OnlyWhatTheVariableNamesIsTried) {
  const BlasLibrary library("/nowhere/libnone.so");
  ExpectError(Blas::Load(), StatusCode::kBackendUnavailable,
              {"/nowhere/libnone.so: ", "No such file", "SHARD_BLAS_LIBRARY"});
}

TEST(BlasTest, TheErrorSaysOfEachNameWhyAndWhatToDo) {
  ExpectError(Blas::LoadOneOf({"libnone.so.1", "libc.so.6",
                               FakeCblasPath("without_ssyrk")}),
              StatusCode::kBackendUnavailable,
              {"libnone.so.1: ", "cannot open shared object file",
               "libc.so.6: it has no cblas_sgemm",
               "libfake_cblas_without_ssyrk.so: it has no cblas_ssyrk",
               "install one", "SHARD_BLAS_LIBRARY"});
}

TEST(BlasTest, ALibraryWithoutGemmIsNamed) {
  const BlasLibrary library(FakeCblasPath("without_sgemm"));
  ExpectError(Blas::Load(), StatusCode::kBackendUnavailable,
              {"libfake_cblas_without_sgemm.so: it has no cblas_sgemm"});
}

TEST(BlasTest, LongIntegersAreRefused) {
  ExpectError(Blas::LoadOneOf({FakeCblasPath("ilp64")}),
              StatusCode::kBackendUnavailable,
              {"libfake_cblas_ilp64.so: it has 64-bit integers (ILP64)",
               "32-bit integers (LP64)"});
}

TEST(BlasTest, LibrariesThatCannotBeUsedAreSkipped) {
  const auto blas =
      Blas::LoadOneOf({"libnone.so.1", FakeCblasPath("without_sgemm"),
                       FakeCblasPath("ilp64"), FakeCblasPath("plain")});
  ASSERT_OK(blas);
  EXPECT_EQ(blas->name(), FakeCblasPath("plain"));
}

class BlasOperationsTest : public CblasTest {};

TEST_P(BlasOperationsTest, Gemm) {
  const float a[] = {1, 2, 3, 4, 5, 6};  // 2 x 3
  const float b[] = {1, 0, 2, 1, 0, 3};  // 3 x 2
  float c[] = {1, 1, -1, 1, 1, -1};      // 2 x 2, rows 3 apart
  GemmArgs args;
  args.m = args.n = 2;
  args.k = args.lda = args.ldc = 3;
  args.ldb = 2;
  args.alpha = 2;
  args.beta = 10;
  blas().Gemm(args, a, b, c);
  EXPECT_EQ(std::vector<float>(c, c + 6),
            (std::vector<float>{20, 32, -1, 38, 56, -1}));

  // The same product, of the transposes and onto values that are not numbers.
  const float at[] = {1, 4, 2, 5, 3, 6};
  const float bt[] = {1, 2, 0, 0, 1, 3};
  float d[4];
  for (float& x : d) x = std::numeric_limits<float>::quiet_NaN();
  args.transpose_a = args.transpose_b = true;
  args.lda = args.ldc = 2;
  args.ldb = 3;
  args.alpha = 1;
  args.beta = 0;
  blas().Gemm(args, at, bt, d);
  EXPECT_EQ(std::vector<float>(d, d + 4), (std::vector<float>{5, 11, 14, 23}));
}

TEST_P(BlasOperationsTest, SyrkComputesTheLowerTriangle) {
  const float a[] = {1, 2, 3, 4, 5, 6};  // 2 x 3
  float c[] = {1, 7, 1, 1};
  blas().Syrk(false, 2, 3, 1, a, 3, 10, c, 2);
  EXPECT_EQ(c[0], 14 + 10);
  EXPECT_EQ(c[2], 32 + 10);
  EXPECT_EQ(c[3], 77 + 10);
  float d[9] = {};
  blas().Syrk(true, 3, 2, 2, a, 3, 0, d, 3);
  EXPECT_EQ(d[0], 2 * 17);
  EXPECT_EQ(d[3], 2 * 22);
  EXPECT_EQ(d[6], 2 * 27);
  EXPECT_EQ(d[8], 2 * 45);
}

TEST_P(BlasOperationsTest, GemmBatch) {
  // OpenBLAS has batches or not, by its version.
  if (kind() != "openblas") {
    ASSERT_EQ(blas().has_batch(), kind() == "batch");
  }
  if (!blas().has_batch()) {
    GTEST_SKIP() << blas().name() << " has no cblas_sgemm_batch";
  }
  const float values[] = {1, 2, 3, 4, 5};
  const float* a[] = {values, values + 1};      // 1 x 1
  const float* b[] = {values + 2, values + 3};  // 1 x 2
  float results[] = {1, 1, 1, 1};
  float* c[] = {results + 2, results};
  GemmArgs args;
  args.m = args.k = args.lda = 1;
  args.n = args.ldb = args.ldc = 2;
  args.alpha = 10;
  args.beta = 2;
  blas().GemmBatch(args, 2, a, b, c);
  EXPECT_EQ(std::vector<float>(results, results + 4),
            (std::vector<float>{82, 102, 32, 42}));
}

INSTANTIATE_TEST_SUITE_P(Libraries, BlasOperationsTest,
                         testing::ValuesIn(kCblasKinds), CblasKindOf);

}  // namespace
}  // namespace shard
