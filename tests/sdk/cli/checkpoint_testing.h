// SPDX-License-Identifier: Apache-2.0
//
// Files for the tests of shardctl's commands: checkpoints that engines have
// saved, and safetensors with any keys.

#ifndef SHARD_TESTS_SDK_CLI_CHECKPOINT_TESTING_H_
#define SHARD_TESTS_SDK_CLI_CHECKPOINT_TESTING_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "shard/shard.h"
#include "tests/api/api_testing.h"
#include "tests/sdk/cli/shardctl_testing.h"

namespace shardctl_testing {

// A folder that is deleted with the object.
class Folder {
 public:
  Folder() {
    std::string name = ::testing::TempDir() + "shardctl-XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string operator/(const std::string& name) const {
    return path_ + "/" + name;
  }

 private:
  std::string path_;
};

inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void WriteFile(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// The number of elements of the model: embed.weight [32, 8], tied to
// head.weight; block.0 and block.1, each with weight [16, 8] and bias [8],
// which has a group of its own; scale [8], frozen.
inline constexpr int kElements = 32 * 8 + 2 * (16 * 8 + 8) + 8;

// Trains the model on `ranks` threads for `steps` steps, with all gradients
// `grad`, and saves it in `root` after the last step.
inline void SaveCheckpoint(const std::string& root, int ranks, int steps,
                           float grad = 0.5f) {
  using namespace shard_api_testing;  // NOLINT: a test.
  shard_model* model = nullptr;
  ASSERT_OK(shard_model_create("Net", &model));
  const Model owned_model(model);
  std::vector<int32_t> params;
  std::vector<int32_t> biases;
  const auto module = [&](int32_t parent, const char* name) {
    int32_t id = -1;
    EXPECT_OK(shard_model_add_module(model, parent, name, "M", &id));
    return id;
  };
  const auto param = [&](int32_t parent, const char* name,
                         const std::vector<int64_t>& shape) {
    int32_t id = -1;
    EXPECT_OK(shard_model_add_param(model, parent, name, SHARD_F32,
                                    shape.data(), shape.size(), &id));
    params.push_back(id);
    return id;
  };
  const int32_t embed = param(module(0, "embed"), "weight", {32, 8});
  const int32_t blocks = module(0, "block");
  for (const char* const name : {"0", "1"}) {
    const int32_t block = module(blocks, name);
    param(block, "weight", {16, 8});
    biases.push_back(param(block, "bias", {8}));
  }
  const int32_t scale = param(0, "scale", {8});
  EXPECT_OK(shard_model_freeze(model, scale));
  EXPECT_OK(shard_model_tie(model, module(0, "head"), "weight", embed));
  int32_t group = 0;
  EXPECT_OK(shard_model_add_param_group(model, "?weight_decay=0", biases.data(),
                                        biases.size(), &group));
  shard_plan_options options = PlanOptions(ranks);
  options.optimizer = "adamw?lr=0.01";
  const Plan plan = MakePlan(model, options);
  RunRanks(ranks, [&](int rank, shard_comm* comm) {
    const Engine engine = MakeEngine(plan.get(), comm);
    for (const int32_t id : params) {
      shard_param_info info = SHARD_PARAM_INFO_INIT;
      ASSERT_OK(shard_plan_param_info(plan.get(), id, &info));
      std::vector<float> values(static_cast<size_t>(info.numel));
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>(i + static_cast<size_t>(id) * 7) / 64;
      }
      ASSERT_OK(shard_engine_set_param(engine.get(), id, values.data(),
                                       values.size() * sizeof(float)));
    }
    ASSERT_OK(shard_engine_broadcast_params(engine.get(), 0));
    for (int step = 0; step < steps; ++step) {
      for (const int32_t id : params) {
        if (id == scale) continue;
        void* data = nullptr;
        int64_t numel = 0;
        ASSERT_OK(shard_engine_grad(engine.get(), id, &data, &numel));
        std::fill_n(static_cast<float*>(data), numel, grad);
      }
      ASSERT_OK(shard_engine_step(engine.get(), nullptr, nullptr));
    }
    const std::string position = "rank " + std::to_string(rank);
    ASSERT_OK(shard_engine_set_blob(engine.get(), "loader", SHARD_BLOB_PER_RANK,
                                    position.data(), position.size()));
    ASSERT_OK(
        shard_checkpoint_save(engine.get(), root.c_str(), nullptr, nullptr));
  });
}

// Writes a safetensors file with a header like {"key": {"dtype": "F32",
// "shape": [2], "data_offsets": [0, 8]}} and the bytes after it.
inline void WriteSafetensors(
    const std::string& path,
    const std::vector<std::pair<std::string, std::vector<float>>>& tensors) {
  nlohmann::ordered_json header;
  std::string data;
  for (const auto& [key, values] : tensors) {
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(values.data()),
                values.size() * sizeof(float));
    header[key] = {{"dtype", "F32"},
                   {"shape", {values.size()}},
                   {"data_offsets", {begin, data.size()}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string size(8, '\0');
  for (size_t i = 0; i < 8; ++i) {
    size[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  }
  WriteFile(path, size + text + data);
}

// Returns the document that a command with --json printed.
inline nlohmann::json ParseJson(const Result& result) {
  const nlohmann::json json = nlohmann::json::parse(result.out, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << result.out << result.error;
  return json;
}

// A test of commands on the checkpoint of two ranks after two steps.
class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override { SaveCheckpoint(root_, 2, 2); }

  static nlohmann::json RunJson(std::vector<std::string> arguments,
                                int code = 0) {
    arguments.push_back("--json");
    const Result result = RunShardctl(arguments);
    EXPECT_EQ(result.code, code) << result.error;
    EXPECT_EQ(result.error, "");
    return ParseJson(result);
  }

  Folder folder_;
  const std::string root_ = folder_ / "ckpt";
};

}  // namespace shardctl_testing

#endif  // SHARD_TESTS_SDK_CLI_CHECKPOINT_TESTING_H_
