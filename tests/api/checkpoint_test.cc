// SPDX-License-Identifier: Apache-2.0
//
// Saves and loads through the C interface. tests/core/engine tests them in all
// their variety.

#include <stdlib.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/api/api_testing.h"

namespace shard_api_testing::checkpoint_test {
namespace {

std::string NewFolder() {
  std::string name = ::testing::TempDir() + "/api-checkpoint-XXXXXX";
  EXPECT_NE(::mkdtemp(name.data()), nullptr);
  return name;
}

void StepOnce(shard_engine* engine) {
  FillGrad(engine, 1.0f);
  EXPECT_OK(shard_engine_step(engine, nullptr, nullptr));
  EXPECT_OK(shard_engine_zero_grad(engine));
}

std::vector<float> Weights(shard_engine* engine) {
  const float* const weight = WeightOf(engine);
  return std::vector<float>(weight, weight + kWeightNumel);
}

std::string LoadJson(const shard_engine* engine) {
  char text[4096];
  size_t length = 0;
  EXPECT_OK(
      shard_engine_last_load_report_json(engine, text, sizeof(text), &length));
  return std::string(text, length);
}

TEST(CheckpointApiTest, SavedByTwoLoadedByThreeAndOne) {
  const std::string root = NewFolder();
  std::vector<float> saved;
  RunRanks(2, [&](int rank, shard_comm* comm) {
    const Engine engine = TrainingEngine(comm);
    StepOnce(engine.get());
    const int64_t seen = 10 + rank;
    EXPECT_OK(shard_engine_set_blob(engine.get(), "seen", SHARD_BLOB_SUMMED,
                                    &seen, sizeof(seen)));
    shard_save* save = nullptr;
    ASSERT_OK(shard_checkpoint_save(engine.get(), root.c_str(), nullptr,
                                    rank >= 0 ? &save : nullptr));
    const Save owned(save);
    EXPECT_OK(shard_save_wait(save, 0));
    EXPECT_EQ(shard_save_done(save), 1);
    EXPECT_OK(shard_save_wait(save, 1));
    if (rank == 0) saved = Weights(engine.get());
  });
  EXPECT_TRUE(std::filesystem::exists(root + "/step-000001/manifest.shard"));
  for (const int world_size : {3, 1}) {
    RunRanks(world_size, [&](int rank, shard_comm* comm) {
      const Engine engine =
          MakeEngine(SmallPlan(shard_comm_world_size(comm)).get(), comm);
      shard_load_report report = SHARD_LOAD_REPORT_INIT;
      ASSERT_OK(
          shard_checkpoint_load(engine.get(), root.c_str(), nullptr, &report));
      EXPECT_EQ(report.step, 1);
      EXPECT_EQ(report.saved_world_size, 2);
      EXPECT_EQ(report.missing, 0);
      EXPECT_EQ(report.unexpected, 0);
      EXPECT_GT(report.loaded, 0);
      EXPECT_EQ(Weights(engine.get()), saved);
      const void* data = nullptr;
      size_t bytes = 0;
      ASSERT_OK(shard_engine_blob(engine.get(), "seen", &data, &bytes));
      ASSERT_EQ(bytes, sizeof(int64_t));
      int64_t seen = 0;
      std::memcpy(&seen, data, bytes);
      EXPECT_EQ(seen, world_size == 1 ? 21 : (rank < 2 ? 10 + rank : 0));
      EXPECT_EQ(LoadJson(engine.get()),
                R"({"missing":[],"unexpected":[],"mismatched":[]})");
      StepOnce(engine.get());
    });
  }
}

TEST(CheckpointApiTest, WrongArgumentsAreTheErrorOfAllRanks) {
  const std::string root = NewFolder();
  RunRanks(2, [&](int rank, shard_comm* comm) {
    const Engine engine = TrainingEngine(comm);
    const auto fails = [&](shard_save_options options, const char* text) {
      shard_save_options none = SHARD_SAVE_OPTIONS_INIT;
      // Only rank 1 has the wrong options.
      EXPECT_FAILS(shard_checkpoint_save(engine.get(), root.c_str(),
                                         rank == 1 ? &options : &none, nullptr),
                   SHARD_INVALID_ARGUMENT, text);
    };
    shard_save_options options = SHARD_SAVE_OPTIONS_INIT;
    options.threads = 257;
    fails(options, "257");
    options = SHARD_SAVE_OPTIONS_INIT;
    options.filter.content = 3;
    fails(options, "content 3");
    options = SHARD_SAVE_OPTIONS_INIT;
    options.overwrite = 2;
    fails(options, "overwrite is 2");
    options = SHARD_SAVE_OPTIONS_INIT;
    options.filter.num_submodules = 1;
    fails(options, "submodules is NULL");
    const int32_t root_module = 0;
    options.filter.submodules = &root_module;
    for (const size_t count : {size_t{2}, SIZE_MAX}) {
      options.filter.num_submodules = count;
      fails(options, ("submodules is " + std::to_string(count)).c_str());
      shard_load_options load = SHARD_LOAD_OPTIONS_INIT;
      if (rank == 1) load.filter = options.filter;
      EXPECT_FAILS(
          shard_checkpoint_load(engine.get(), root.c_str(), &load, nullptr),
          SHARD_INVALID_ARGUMENT, "submodules is", "1 modules");
    }
    options = SHARD_SAVE_OPTIONS_INIT;
    options.filter.strip_prefix = 1;
    fails(options, "exactly one submodule");
    options = SHARD_SAVE_OPTIONS_INIT;
    options.filter.reserved = 1;
    fails(options, "shard_state_filter.reserved is 1");
    options = SHARD_SAVE_OPTIONS_INIT;
    options.keep_every = 5;
    fails(options, "keep_every 5");
    options = SHARD_SAVE_OPTIONS_INIT;
    options.struct_size = 1;
    fails(options, "struct_size");
    EXPECT_FAILS(
        shard_checkpoint_save(engine.get(), rank == 1 ? nullptr : root.c_str(),
                              nullptr, nullptr),
        SHARD_INVALID_ARGUMENT, "root is NULL");
    shard_load_options load = SHARD_LOAD_OPTIONS_INIT;
    load.convert = 7;
    shard_load_options none = SHARD_LOAD_OPTIONS_INIT;
    EXPECT_FAILS(shard_checkpoint_load(engine.get(), root.c_str(),
                                       rank == 1 ? &load : &none, nullptr),
                 SHARD_INVALID_ARGUMENT, "convert is 7");
    EXPECT_FAILS(
        shard_checkpoint_load(engine.get(), root.c_str(), nullptr, nullptr),
        SHARD_NOT_FOUND, root);
    // Training goes on after the errors.
    StepOnce(engine.get());
    ASSERT_OK(
        shard_checkpoint_save(engine.get(), root.c_str(), nullptr, nullptr));
    EXPECT_FAILS(
        shard_checkpoint_save(engine.get(), root.c_str(), nullptr, nullptr),
        SHARD_ALREADY_EXISTS, "step-000001");
  });
}

TEST(CheckpointApiTest, NullAndBlobs) {
  EXPECT_FAILS(shard_checkpoint_save(nullptr, "x", nullptr, nullptr),
               SHARD_INVALID_ARGUMENT, "engine is NULL");
  EXPECT_FAILS(shard_checkpoint_load(nullptr, "x", nullptr, nullptr),
               SHARD_INVALID_ARGUMENT, "engine is NULL");
  EXPECT_FAILS(shard_save_wait(nullptr, 0), SHARD_INVALID_ARGUMENT,
               "save is NULL");
  EXPECT_EQ(shard_save_done(nullptr), 1);
  shard_save_free(nullptr);
  size_t length = 1;
  EXPECT_FAILS(shard_engine_last_load_report_json(nullptr, nullptr, 0, &length),
               SHARD_INVALID_ARGUMENT, "engine is NULL");
  EXPECT_EQ(length, 0u);
  EXPECT_FAILS(shard_engine_set_blob(nullptr, "x", 1, nullptr, 0),
               SHARD_INVALID_ARGUMENT, "engine is NULL");

  const Comm comm = OpenLocal();
  const Engine engine = TrainingEngine(comm.get());
  EXPECT_FAILS(shard_engine_set_blob(engine.get(), nullptr, 1, nullptr, 0),
               SHARD_INVALID_ARGUMENT, "name is NULL");
  EXPECT_FAILS(shard_engine_set_blob(engine.get(), "", 1, nullptr, 0),
               SHARD_INVALID_ARGUMENT, "empty");
  EXPECT_FAILS(shard_engine_set_blob(engine.get(), "x", 1, nullptr, 3),
               SHARD_INVALID_ARGUMENT, "data is NULL");
  EXPECT_FAILS(shard_engine_set_blob(engine.get(), "x", 4, "abc", 3),
               SHARD_INVALID_ARGUMENT, "rule 4");
  EXPECT_FAILS(
      shard_engine_set_blob(engine.get(), "x", SHARD_BLOB_SUMMED, "abc", 3),
      SHARD_INVALID_ARGUMENT, "3 bytes");
  EXPECT_FAILS(shard_engine_set_blob(engine.get(), "x", SHARD_BLOB_PER_RANK,
                                     "abc", (size_t{1} << 30) + 1),
               SHARD_INVALID_ARGUMENT, "1073741825 bytes; at most 1073741824");
  const void* data = Garbage<void>();
  size_t bytes = 1;
  EXPECT_FAILS(shard_engine_blob(engine.get(), "x", &data, &bytes),
               SHARD_NOT_FOUND, "'x'");
  EXPECT_EQ(data, nullptr);
  EXPECT_EQ(bytes, 0u);
  EXPECT_OK(
      shard_engine_set_blob(engine.get(), "x", SHARD_BLOB_PER_RANK, "abc", 3));
  ASSERT_OK(shard_engine_blob(engine.get(), "x", &data, &bytes));
  EXPECT_EQ(std::string(static_cast<const char*>(data), bytes), "abc");
  bytes = 0;
  EXPECT_OK(shard_engine_blob(engine.get(), "x", nullptr, &bytes));
  EXPECT_EQ(bytes, 3u);
  EXPECT_OK(shard_engine_blob(engine.get(), "x", nullptr, nullptr));
}

TEST(CheckpointApiTest, ProgressIsHeardAndCancels) {
  const std::string root = NewFolder();
  RunRanks(2, [&](int rank, shard_comm* comm) {
    const Engine engine = TrainingEngine(comm);
    shard_save_options options = SHARD_SAVE_OPTIONS_INIT;
    struct Heard {
      uint64_t done = 0;
      uint64_t total = 0;
      int32_t answer = 0;
    } heard;
    options.progress = [](uint64_t done, uint64_t total, void* data) {
      auto* const to = static_cast<Heard*>(data);
      EXPECT_GE(done, to->done);
      to->done = done;
      to->total = total;
      return to->answer;
    };
    options.progress_user_data = &heard;
    heard.answer = rank;  // Rank 1 cancels.
    EXPECT_FAILS(
        shard_checkpoint_save(engine.get(), root.c_str(), &options, nullptr),
        SHARD_CANCELLED, "rank 1");
    heard = {};
    ASSERT_OK(
        shard_checkpoint_save(engine.get(), root.c_str(), &options, nullptr));
    // Rank 1 owns nothing of this model, and is told that all of it is done.
    EXPECT_EQ(heard.total > 0, rank == 0);
    EXPECT_EQ(heard.done, heard.total);
  });
  // The save that was cancelled has left nothing.
  int entries = 0;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    (void)entry;
    ++entries;
  }
  EXPECT_EQ(entries, 2);  // These are the checkpoint and LATEST.
}

}  // namespace
}  // namespace shard_api_testing::checkpoint_test
