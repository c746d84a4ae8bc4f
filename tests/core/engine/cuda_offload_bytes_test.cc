// SPDX-License-Identifier: Apache-2.0
//
// The bytes of steps whose states are offloaded, on the fake of the driver, are
// those with which docs/benchmarks.md predicts times.

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "core/base/dtype.h"
#include "core/base/strings.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/cuda_offload_training.h"
#include "tests/docs/benchmark_rows.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace shard::cuda_offload_bytes_test {
namespace {

using cuda_offload::Case;
using cuda_offload::FillWith;
using cuda_offload::kBf16;
using cuda_offload::kElements;
using cuda_offload::kPlain;
using cuda_offload::kUnits;
using cuda_offload::MakePlan;
using cuda_offload::MakeUnscaled;
using cuda_offload::Train;
using testing::BenchmarkRow;
using testing::fake_cuda::Count;
using testing::fake_cuda::CountSince;

using CudaOffloadBytesTest = testing::FakeCudaTest;

// Returns bytes per element. The values of a step, less than 1000 bytes, are
// rounded off.
int64_t PerElement(uint64_t bytes) {
  constexpr auto kAll = static_cast<double>(kUnits * kElements);
  return std::lround(static_cast<double>(bytes) / kAll);
}

// Expects the bytes per element of a step in a row's cell: "40 and 12", or "40
// of the host's memory, 12 of the bus".
void ExpectBytes(const Case& of, const BenchmarkRow& row) {
  SCOPED_TRACE(row.name);
  const auto engine = MakeUnscaled(MakePlan(of));
  ASSERT_OK(engine);
  FillWith(engine->get(), of.dtype);
  const auto before = Count();
  StepReport report;
  Train(engine->get(), 1, StepOptions(), true, &report);
  const auto moved = CountSince(before);
  const int64_t bus = PerElement(moved.to_host.bytes + moved.to_device.bytes);
  // Copies read and write the host's memory, too.
  const int64_t host = PerElement(report.bytes_moved) + bus;
  const std::string first =
      StrCat(host, " of the host's memory, ", bus, " of the bus");
  if (row.bytes.find(" of the bus") != std::string::npos) {
    EXPECT_EQ(row.bytes, first);
  } else {
    EXPECT_EQ(row.bytes, StrCat(host, " and ", bus));
  }
}

TEST_F(CudaOffloadBytesTest, AreThoseOfTheBenchmarks) {
  for (const auto& [begin, of] :
       {std::pair("offload, adamw f32, ", kPlain),
        std::pair("offload, adamw bf16 with masters, ", kBf16)}) {
    const auto rows = testing::BenchmarkRows(begin);
    EXPECT_EQ(rows.size(), 2u) << begin;
    for (const BenchmarkRow& row : rows) ExpectBytes(of, row);
  }
}

}  // namespace
}  // namespace shard::cuda_offload_bytes_test
