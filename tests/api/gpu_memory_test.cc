// SPDX-License-Identifier: Apache-2.0
//
// Memory of a GPU, given where the host's belongs: an error instead of the end
// of the process, on the fake of the driver.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/api/api_testing.h"
#include "tests/core/base/temp_folder.h"
#include "tests/fake_cuda/driver_testing.h"

namespace shard_api_testing::gpu_memory_test {
namespace {

using shard::testing::fake_cuda::Api;
using shard::testing::fake_cuda::CuPointer;
using shard::testing::fake_cuda::CuResult;

constexpr size_t kBytes = 4096;

class GpuMemoryTest : public shard::testing::fake_cuda::DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    CuPointer memory = 0;
    ASSERT_EQ(Api().MemAlloc(&memory, kBytes), CuResult::kSuccess);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): so are a driver's pointers.
    memory_ = reinterpret_cast<std::byte*>(memory);
  }
  void TearDown() override {
    Api().MemFree(reinterpret_cast<CuPointer>(memory_));
    DriverTest::TearDown();
  }

  // Memory in the middle of an allocation.
  std::byte* of_gpu() const { return memory_ + 64; }

 private:
  std::byte* memory_ = nullptr;
};

#define EXPECT_REFUSED(call, ...)            \
  EXPECT_FAILS(call, SHARD_INVALID_ARGUMENT, \
               "is of a GPU; give memory of the host", __VA_ARGS__)

TEST_F(GpuMemoryTest, OfACommunicator) {
  const Comm comm = OpenLocal();
  EXPECT_REFUSED(shard_comm_broadcast(comm.get(), of_gpu(), 64, 0, 1), "data");
  EXPECT_REFUSED(
      shard_comm_sum(comm.get(), reinterpret_cast<double*>(of_gpu()), 1, 1),
      "values");
  std::vector<double> values(8, 1.0);
  EXPECT_OK(shard_comm_broadcast(comm.get(), values.data(), 64, 0, 1));
}

TEST_F(GpuMemoryTest, OfAnEngineOnTheCpu) {
  const Comm comm = OpenLocal();
  const Plan plan = SmallPlan(1);
  const Engine engine = MakeEngine(plan.get(), comm.get());
  ASSERT_NE(engine, nullptr);
  constexpr size_t bytes = kWeightNumel * sizeof(float);
  EXPECT_REFUSED(shard_engine_bind_param(engine.get(), kWeight, of_gpu(), bytes,
                                         nullptr, 0),
                 "bind_param");
  EXPECT_REFUSED(shard_engine_set_param(engine.get(), kWeight, of_gpu(), bytes),
                 "set_param");
  EXPECT_REFUSED(shard_engine_set_blob(engine.get(), "rng", SHARD_BLOB_PER_RANK,
                                       of_gpu(), 64),
                 "data");
}

TEST_F(GpuMemoryTest, OfACheckpointsReader) {
  const shard::testing::TempFolder folder;
  const Comm comm = OpenLocal();
  const Engine engine = TrainingEngine(comm.get());
  ASSERT_NE(engine, nullptr);
  const std::string path = folder.path() + "/checkpoint";
  ASSERT_OK(
      shard_checkpoint_save(engine.get(), path.c_str(), nullptr, nullptr));
  shard_checkpoint* opened = nullptr;
  ASSERT_OK(shard_checkpoint_open(path.c_str(), &opened));
  const Checkpoint checkpoint(opened);
  int64_t tensor = -1;
  ASSERT_OK(shard_checkpoint_find(opened, "weight", &tensor));
  EXPECT_REFUSED(shard_checkpoint_read(opened, tensor, 0, 1, of_gpu(), 4),
                 "buffer");
}

}  // namespace
}  // namespace shard_api_testing::gpu_memory_test
