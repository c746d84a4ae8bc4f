// SPDX-License-Identifier: Apache-2.0
//
// A checkpoint that three ranks of libshard 0.1.0 saved after 4 steps: AdamW
// with amsgrad, bf16 with master weights, a tied, a frozen and a scalar
// parameter, a param group, dynamic loss scaling, a blob of each rule. The
// hashes below were taken in the run that saved it.

#include <array>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>

#include "tests/api/api_testing.h"
#include "tests/api/sharded_plans.h"
#include "tests/core/base/temp_folder.h"

namespace shard_api_testing::version_0_1_test {
namespace {

constexpr const char* kSaved = "tests/api/version_0_1/step-000004";

// Returns the FNV-1a of the elements of each saved tensor, by key.
std::map<std::string, uint64_t> SavedTensors() {
  return {
      {"scalar", 0xe8b13bdf39927ca0},
      {"head", 0x5692dd6bab118add},
      {"h0.w", 0},  // An alias of head.
      {"h0.bias", 0x879eb04e7fac011c},
      {"h1.w", 0x76ac24930b6095e5},
      {"h1.bias", 0x84ccac49ab494920},
      {"h2.w", 0x0bafb61f5ef3b884},
      {"h2.bias", 0x265a6f2d672b5d8b},
      {"state.scalar.exp_avg", 0x7e0396b106eb0d8a},
      {"state.scalar.exp_avg_sq", 0x5bbe4f9381b16959},
      {"state.scalar.max_exp_avg_sq", 0x5bbe4f9381b16959},
      {"state.head.exp_avg", 0x5790df122316ec9a},
      {"state.head.exp_avg_sq", 0xcd01d5ddb0eb9ba9},
      {"state.head.max_exp_avg_sq", 0x9051ba66d914623f},
      {"state.h0.bias.exp_avg", 0x31097868f01f9e72},
      {"state.h0.bias.exp_avg_sq", 0x94ece06601736345},
      {"state.h0.bias.max_exp_avg_sq", 0x94ece06601736345},
      {"state.h1.w.exp_avg", 0x487b6ab59204047a},
      {"state.h1.w.exp_avg_sq", 0xf8c3a13cc41bd86c},
      {"state.h1.w.max_exp_avg_sq", 0xdfccc27cc241ce13},
      {"state.h1.w.master_param", 0xa7e2f4c60be24ab6},
      {"state.h1.bias.exp_avg", 0x82e6ecc97aaee56b},
      {"state.h1.bias.exp_avg_sq", 0x2307f07e67ef3691},
      {"state.h1.bias.max_exp_avg_sq", 0x6c457da033660054},
      {"state.h2.w.exp_avg", 0x06a4cba852508533},
      {"state.h2.w.exp_avg_sq", 0x71e4814c4b4df5fd},
      {"state.h2.w.max_exp_avg_sq", 0x2e2963d4397a59b2},
  };
}

uint64_t HashOf(const void* data, size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ at[i]) * 0x100000001b3u;
  return hash;
}

// Returns the model that was saved. With `blocks` the model also has modules
// that the checkpoint lacks, so that stages 2 and 3 have something to shard.
Model SavedModel(bool blocks) {
  Model model = EmptyModel();
  const int64_t shape[] = {6, 4};
  for (int i = 0; i < 3; ++i) {
    int32_t block = 0;
    const std::string name = "h" + std::to_string(i);
    EXPECT_OK(
        shard_model_add_module(model.get(), 0, name.c_str(), "Block", &block));
    int32_t id = 0;
    EXPECT_OK(shard_model_add_param(model.get(), block, "w",
                                    i == 1 ? SHARD_BF16 : SHARD_F32, shape, 2,
                                    &id));
    EXPECT_OK(shard_model_add_param(model.get(), block, "bias", SHARD_F32,
                                    shape, 1, &id));
  }
  int32_t id = 0;
  EXPECT_OK(shard_model_add_param(model.get(), 0, "scalar", SHARD_F32, nullptr,
                                  0, &id));
  EXPECT_OK(shard_model_tie(model.get(), 0, "head", 0));
  EXPECT_OK(shard_model_freeze(model.get(), 5));
  const int32_t members[] = {1, 3};
  EXPECT_OK(shard_model_add_param_group(model.get(), "?weight_decay=0", members,
                                        2, &id));
  if (blocks) AddBlocks(model.get());
  return model;
}

TEST(Version01Test, ItsCheckpointLoadsToTheBit) {
  const shard::testing::TempFolder folder;
  // The files are copied, because links are not followed.
  const std::string path = folder / "step-000004";
  std::filesystem::create_directory(path);
  for (const char* const name : {"manifest.shard", "data-00000.bin",
                                 "data-00001.bin", "data-00002.bin"}) {
    std::filesystem::copy_file(std::string(kSaved) + "/" + name,
                               path + "/" + name);
  }
  struct Loader {
    int32_t world_size;
    int32_t stage;
  };
  for (const auto [world_size, stage] :
       {Loader{1, 0}, Loader{2, 1}, Loader{2, 2}, Loader{3, 1}, Loader{3, 3}}) {
    SCOPED_TRACE(std::to_string(world_size) + " ranks in stage " +
                 std::to_string(stage));
    const auto ranks = static_cast<size_t>(world_size);
    const bool blocks = stage >= 2;
    const Model model = SavedModel(blocks);
    RunRanks(world_size, [&, stage = stage](int rank, shard_comm* comm) {
      shard_plan_options plan_options = SHARD_PLAN_OPTIONS_INIT;
      plan_options.stage = stage;
      plan_options.world_size = shard_comm_world_size(comm);
      plan_options.wrap = "class?names=Block";
      plan_options.optimizer = "adamw?lr=0.5&amsgrad=1";
      plan_options.prefetch = -1;
      const Plan plan = MakePlan(model.get(), plan_options);
      ExpectShardsAsItsStage(plan);
      shard_engine_options options = SHARD_ENGINE_OPTIONS_INIT;
      options.loss_scaling = "dynamic?init_scale=1024&growth_interval=3";
      shard_engine* made = nullptr;
      ASSERT_OK(shard_engine_create(plan.get(), comm, &options, &made));
      const Engine engine(made);
      shard_load_options load = SHARD_LOAD_OPTIONS_INIT;
      if (blocks) {
        ASSERT_OK(shard_engine_broadcast_params(made, 0));
        load.allow_mismatch = 1;
      }
      shard_load_report report = SHARD_LOAD_REPORT_INIT;
      ASSERT_OK(shard_checkpoint_load(made, path.c_str(), &load, &report));
      EXPECT_EQ(report.step, 4);
      EXPECT_EQ(report.saved_world_size, 3);
      EXPECT_EQ(report.unexpected, 0);

      std::map<std::string, uint64_t> tensors;
      const shard_tensor_fn take = [](const char* key,
                                      const shard_tensor_info* info,
                                      const void* data, void* into) -> int32_t {
        if (std::strstr(key, "block") != nullptr) return 0;
        (*static_cast<std::map<std::string, uint64_t>*>(into))[key] =
            data == nullptr ? 0 : HashOf(data, info->bytes);
        return 0;
      };
      ASSERT_OK(shard_state_dict_gather(made, nullptr, -1, take, &tensors));
      EXPECT_EQ(tensors, SavedTensors());

      double value = 0;
      EXPECT_OK(shard_engine_loss_scale(made, &value));
      EXPECT_EQ(value, 2048);
      int64_t count = 0;
      EXPECT_OK(shard_engine_growth_tracker(made, &count));
      EXPECT_EQ(count, 1);
      EXPECT_OK(shard_engine_hyper(made, 0, "lr", &value));
      EXPECT_EQ(value, 0.01);
      EXPECT_OK(shard_engine_hyper(made, 1, "weight_decay", &value));
      EXPECT_EQ(value, 0);

      const void* data = nullptr;
      size_t bytes = 0;
      EXPECT_OK(shard_engine_blob(made, "same", &data, &bytes));
      EXPECT_EQ(std::string(static_cast<const char*>(data), bytes), "hello");
      // The ranks saved 10, 11 and 12.
      ASSERT_OK(shard_engine_blob(made, "sum", &data, &bytes));
      ASSERT_EQ(bytes, sizeof(count));
      std::memcpy(&count, data, sizeof(count));
      const std::array<std::array<int64_t, 3>, 3> sums = {
          {{33}, {22, 11}, {10, 11, 12}}};
      EXPECT_EQ(count, sums[ranks - 1][static_cast<size_t>(rank)]);
      shard_error* const error = shard_engine_blob(made, "own", &data, &bytes);
      EXPECT_EQ(shard_error_code(error),
                ranks == 3 ? SHARD_OK : SHARD_NOT_FOUND);
      shard_error_free(error);
    });
  }
}

}  // namespace
}  // namespace shard_api_testing::version_0_1_test
