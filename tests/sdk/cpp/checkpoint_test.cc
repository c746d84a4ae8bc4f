// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints and state dicts.

#include <atomic>
#include <cstddef>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/core/base/temp_folder.h"
#include "tests/sdk/cpp/sdk_testing.h"

namespace shard_sdk_testing::checkpoint_test {
namespace {

using shard::Checkpoint;
using shard::Save;
using shard::StateDict;
using shard::testing::TempFolder;

// Returns an engine of the net on one rank, which has made a step.
Engine trained(const Net& net, Comm& comm) {
  Engine engine = engine_of(net, 1, comm);
  train_step(engine);
  return engine;
}

TEST(CheckpointTest, LoadsOnAnotherNumberOfRanks) {
  const Net net;
  const TempFolder folder;
  run_ranks(2, [&](Comm& comm) {
    Engine engine = engine_of(net, 2, comm);
    train_step(engine);
    const std::int64_t samples = 100 + comm.rank();
    engine.set_blob("samples", shard::BlobRule::summed,
                    std::as_bytes(std::span(&samples, 1)));
    Checkpoint::save(engine, folder.path());
    expect_error([&] { Checkpoint::save(engine, folder.path()); },
                 Code::already_exists, {"overwrite"});
    Checkpoint::save(engine, folder.path(),
                     {.overwrite = true, .threads = 2, .keep_last = 1});
  });
  run_ranks(3, [&](Comm& comm) {
    Engine engine = engine_of(net, 3, comm);
    std::atomic<std::uint64_t> read{0};
    const shard::LoadReport report = Checkpoint::load(
        engine, folder.path(),
        {.progress = [&](std::uint64_t done, std::uint64_t) { read = done; }});
    EXPECT_EQ(report.step, 1);
    EXPECT_EQ(report.saved_world_size, 2);
    EXPECT_GT(read, 0u);
    EXPECT_EQ(engine.last_load_report_json(),
              R"({"missing":[],"unexpected":[],"mismatched":[]})");
    EXPECT_THAT(values_of(engine, net.bias), ::testing::Each(0.5f));
    const auto samples = engine.blob("samples");
    ASSERT_EQ(samples.size(), sizeof(std::int64_t));
    EXPECT_EQ(samples[0], std::byte(comm.rank() == 2 ? 0 : 100 + comm.rank()));
    expect_error([&] { (void)engine.blob("none"); }, Code::not_found);
  });
}

TEST(CheckpointTest, MissingKeysAreListed) {
  const Net net;
  const TempFolder folder;
  Comm comm = Comm::open("local:");
  {
    Engine engine = trained(net, comm);
    Checkpoint::save(engine, folder.path(),
                     {.filter = {.submodules = {net.first}}});
  }
  Engine engine = engine_of(net, 1, comm);
  try {
    Checkpoint::load(engine, folder.path());
    ADD_FAILURE() << "a part was loaded as the whole";
  } catch (const shard::Error& error) {
    EXPECT_EQ(error.code(), Code::failed_precondition) << error.what();
    EXPECT_THAT(error.detail(), ::testing::HasSubstr("second.weight"));
  }
  Checkpoint::load(engine, folder.path(), {.allow_mismatch = true});
  EXPECT_THAT(engine.last_load_report_json(),
              ::testing::HasSubstr("second.weight"));
  expect_error([&] { Checkpoint::load(engine, folder / "none"); },
               Code::not_found);
}

TEST(SaveTest, GoesOnWithoutItsHandles) {
  const Net net;
  const TempFolder folder;
  auto lives = std::make_shared<std::atomic<int>>(0);
  const std::weak_ptr<std::atomic<int>> watch = lives;
  {
    Comm comm = Comm::open("local:");
    Engine engine = trained(net, comm);
    {
      // The pending save is dropped at once.
      const Save save = Checkpoint::save_async(
          engine, folder.path(),
          {.progress = [lives](std::uint64_t, std::uint64_t) { ++*lives; }});
    }
    train_step(engine);
    Save second = Checkpoint::save_async(engine, folder.path());
    second.wait();
    EXPECT_TRUE(second.done());
    EXPECT_NE(second.get(), nullptr);
  }
  EXPECT_GT(*lives, 0);
  lives.reset();
  EXPECT_TRUE(watch.expired());
  EXPECT_EQ(Checkpoint::open(folder / "step-000001").info().step, 1);
  EXPECT_EQ(Checkpoint::open(folder.path()).info().step, 2);
}

TEST(SaveTest, OutlivesItsEngine) {
  const Net net;
  const TempFolder folder;
  std::optional<Save> save;
  {
    Comm comm = Comm::open("local:");
    Engine engine = trained(net, comm);
    save = Checkpoint::save_async(engine, folder.path());
  }
  save->wait();
  Save moved = std::move(*save);
  expect_error([&] { save->wait(); }, Code::invalid_argument);
}

TEST(CallbackTest, ProgressThatThrowsEndsTheSave) {
  const Net net;
  const TempFolder folder;
  Comm comm = Comm::open("local:");
  Engine engine = trained(net, comm);
  const shard::SaveOptions throws = {
      .progress = [](std::uint64_t, std::uint64_t) -> bool {
        throw std::domain_error("the disk is mine");
      }};
  EXPECT_THROW(Checkpoint::save(engine, folder.path(), throws),
               std::domain_error);
  Save save = Checkpoint::save_async(engine, folder.path(), throws);
  EXPECT_THROW(save.wait(), std::domain_error);
  EXPECT_THROW(save.wait(), std::domain_error);
  // An exception that was thrown already is not thrown by the next save.
  expect_error(
      [&] {
        Checkpoint::save(engine, folder.path(),
                         {.progress = [](auto, auto) { return true; }});
      },
      Code::cancelled);
  // Nobody waits for this save: the next one reports it.
  { const Save lost = Checkpoint::save_async(engine, folder.path(), throws); }
  EXPECT_THROW(Checkpoint::save(engine, folder.path()), std::domain_error);
  Checkpoint::save(engine, folder.path());
  EXPECT_THROW(
      Checkpoint::load(engine, folder.path(), {.progress = throws.progress}),
      std::domain_error);
}

TEST(CallbackTest, ProgressMayNotCallItsEngine) {
  const Net net;
  const TempFolder folder;
  Comm comm = Comm::open("local:");
  Engine engine = trained(net, comm);
  const auto call_back = [&](std::uint64_t, std::uint64_t) {
    EXPECT_EQ(comm.rank(), 0);
    train_step(engine);
  };
  expect_error(
      [&] { Checkpoint::save(engine, folder.path(), {.progress = call_back}); },
      Code::failed_precondition, {"callback"});
  Save save =
      Checkpoint::save_async(engine, folder.path(), {.progress = call_back});
  expect_error([&] { save.wait(); }, Code::failed_precondition, {"callback"});
  // Other engines may be called.
  Comm other = Comm::open("local:");
  Engine second = engine_of(net, 1, other);
  Checkpoint::save(engine, folder.path(),
                   {.progress = [&](auto, auto) { train_step(second); }});
  EXPECT_GT(second.completed_steps(), 0);
}

TEST(ReaderTest, ReadsWhatIsInACheckpoint) {
  const Net net;
  const TempFolder folder;
  Comm comm = Comm::open("local:");
  {
    Engine engine = Engine::create(
        Plan::create(net.model, {.world_size = 1, .optimizer = "adamw"}), comm,
        {.loss_scaling = "dynamic"});
    engine.set_param(net.bias, std::vector<float>(40, 2.5f));
    engine.broadcast_params();
    engine.set_blob("note", shard::BlobRule::replicated,
                    std::as_bytes(std::span("hi", 2)));
    Checkpoint::save(engine, folder.path());
  }
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  const shard::CheckpointInfo info = checkpoint.info();
  EXPECT_EQ(shard::Format{info.format}, shard::Format::checkpoint);
  EXPECT_EQ(info.world_size, 1);
  EXPECT_EQ(checkpoint.path(), folder / "step-000000");

  std::map<std::string, std::int64_t> keys;
  for (std::int64_t i = 0; i < info.num_tensors; ++i) {
    keys.emplace(checkpoint.tensor_key(i), i);
  }
  ASSERT_TRUE(keys.contains("first.bias"));
  const std::int64_t bias = checkpoint.find("first.bias");
  EXPECT_EQ(keys["first.bias"], bias);
  const shard::TensorInfo tensor = checkpoint.tensor(bias);
  EXPECT_EQ(tensor.role, shard::Role::param);
  EXPECT_EQ(tensor.shape, (shard::Shape{40}));
  EXPECT_EQ(tensor.dtype, DType::f32);
  EXPECT_EQ(checkpoint.tensor_type(bias), "f32");
  EXPECT_THAT(checkpoint.read<float>(bias), ::testing::Each(2.5f));
  EXPECT_EQ(checkpoint.read<std::byte>(bias).size(), 160u);
  std::vector<float> some(3);
  checkpoint.read(bias, 37, std::span(some));
  EXPECT_THAT(some, ::testing::Each(2.5f));
  expect_error([&] { checkpoint.read(bias, 38, std::span(some)); },
               Code::out_of_range, {"40"});
  expect_error([&] { (void)checkpoint.read<double>(bias); },
               Code::invalid_argument, {"f32", "not f64"});
  const shard::TensorSlice slice = checkpoint.slice(bias, 0);
  EXPECT_EQ(slice.numel, 40);
  EXPECT_GT(checkpoint.file(slice.file).bytes, 0u);
  EXPECT_THAT(std::string(checkpoint.group(0)), ::testing::StartsWith("adamw"));
  std::map<std::string, double> scalars;
  for (int i = 0; i < info.num_scalars; ++i) {
    const shard::Scalar scalar = checkpoint.scalar(i);
    scalars.emplace(scalar.name, scalar.value);
  }
  EXPECT_EQ(scalars["loss_scale.scale"], 65536);
  ASSERT_EQ(info.num_blobs, 1);
  EXPECT_EQ(checkpoint.blob_info(0).name, "note");
  EXPECT_EQ(checkpoint.blob_info(0).rule, shard::BlobRule::replicated);
  EXPECT_THAT(checkpoint.blob(0),
              ::testing::ElementsAre(std::byte('h'), std::byte('i')));
  expect_error([&] { (void)checkpoint.tensor_key(info.num_tensors); },
               Code::invalid_argument);
}

TEST(ReaderTest, VerifiesConvertsAndExports) {
  const Net net;
  const TempFolder folder;
  Comm comm = Comm::open("local:");
  Engine engine = trained(net, comm);
  Checkpoint::save(engine, folder / "ckpt");
  const Checkpoint checkpoint = Checkpoint::open(folder / "ckpt");
  int calls = 0;
  checkpoint.verify({.threads = 1, .progress = [&](auto, auto) { ++calls; }});
  EXPECT_GT(calls, 0);
  checkpoint.convert(folder / "half", {.dtype = DType::bf16, .world_size = 3});
  EXPECT_EQ(Checkpoint::open(folder / "half").info().num_files, 3);
  const std::string file = folder / "model.safetensors";
  checkpoint.export_to(file, {.content = shard::Content::model});
  Checkpoint exported = Checkpoint::open(file);
  EXPECT_EQ(shard::Format{exported.info().format}, shard::Format::safetensors);
  EXPECT_THAT(exported.read<float>(exported.find("first.bias")),
              ::testing::Each(0.5f));
  expect_error([&] { checkpoint.export_to(file); }, Code::already_exists);

  const shard::Progress throws = [](auto, auto) -> bool {
    throw std::domain_error("enough");
  };
  EXPECT_THROW(checkpoint.verify({.progress = throws}), std::domain_error);
  EXPECT_THROW(checkpoint.convert(folder / "no", {.progress = throws}),
               std::domain_error);
  EXPECT_THROW(
      checkpoint.export_to(file, {.overwrite = true, .progress = throws}),
      std::domain_error);
  Checkpoint moved = std::move(exported);
  expect_error([&] { (void)exported.info(); }, Code::invalid_argument);
}

// Names in files need not be UTF-8: they are an error, or are given as they
// are.
TEST(ReaderTest, ANameThatIsNoTextIsNoCrash) {
  const TempFolder folder;
  const std::string path = folder / "model.safetensors";
  const std::string header =
      "{\"a\xff\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
  std::ofstream file(path, std::ios::binary);
  const std::uint64_t length = header.size();
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file << header << 'x';
  file.close();
  expect_error([&] { (void)Checkpoint::open(path); }, Code::corrupt);
}

TEST(StateDictTest, HoldsThisRanksPartOfAnEngine) {
  const Net net;
  run_ranks(2, [&](Comm& comm) {
    Engine engine = engine_of(net, 2, comm);
    train_step(engine);
    std::optional<StateDict> state = StateDict::get(engine);
    const std::int64_t bias = state->find("first.bias");
    EXPECT_EQ(state->tensor_key(bias), "first.bias");
    EXPECT_EQ(state->tensor(bias).numel, 40);
    const auto local = state->local<float>(bias);
    EXPECT_GE(local.begin, 0);
    EXPECT_THAT(local.elements, ::testing::Each(0.5f));
    EXPECT_EQ(comm.sum(static_cast<double>(local.elements.size())), 40);
    expect_error([&] { (void)state->local<double>(bias); },
                 Code::invalid_argument, {"f32"});
    expect_error([&] { (void)state->find("none"); }, Code::not_found, {"none"});
    EXPECT_GT(state->num_tensors(), 3);
    ASSERT_GT(state->num_numbers(), 0);
    EXPECT_FALSE(state->number(0).key.empty());
    // Views of the engine keep it alive.
    { const Engine moved = std::move(engine); }
    EXPECT_THAT(local.elements, ::testing::Each(0.5f));
  });
}

TEST(StateDictTest, IsGatheredAndLoadedFromRankZero) {
  const Net net;
  run_ranks(2, [&](Comm& comm) {
    Engine engine = engine_of(net, 2, comm);
    train_step(engine);
    std::map<std::string, std::vector<std::byte>> tensors;
    std::map<std::string, shard::TensorInfo> infos;
    StateDict::gather(engine, 0,
                      [&](std::string_view key, const shard::TensorInfo& info,
                          std::span<const std::byte> bytes) {
                        tensors[std::string(key)].assign(bytes.begin(),
                                                         bytes.end());
                        infos.emplace(key, info);
                      },
                      {.filter = {.content = shard::Content::model}});
    EXPECT_EQ(tensors.size(), comm.rank() == 0 ? 12u : 0u);

    Engine second = engine_of(net, 3, comm);
    std::optional<StateDict> state;
    if (comm.rank() == 0) {
      state = StateDict::create();
      for (const auto& [key, bytes] : tensors) {
        state->add(key, infos.at(key).dtype, infos.at(key).shape, bytes);
      }
    }
    const shard::LoadReport report = StateDict::load_from_rank0(
        second, state ? &*state : nullptr,
        {.filter = {.content = shard::Content::model}});
    EXPECT_EQ(report.loaded, 12);
    EXPECT_THAT(values_of(second, net.out_bias), ::testing::Each(0.5f));
  });
}

TEST(StateDictTest, IsFilledByTheHost) {
  const Net net;
  Comm comm = Comm::open("local:");
  Engine engine = engine_of(net, 1, comm);
  StateDict state = StateDict::create();
  const std::vector<float> bias(40, 9.0f);
  state.add("first.bias", {40}, std::span(bias));
  state.add_number("param_groups.first.bias.lr", 0.125);
  expect_error([&] { state.add("first.bias", {40}, std::span(bias)); },
               Code::invalid_argument, {"first.bias"});
  expect_error([&] { state.add("x", {41}, std::span(bias)); },
               Code::invalid_argument);
  expect_error([&] { state.add("x\xff", {40}, std::span(bias)); },
               Code::invalid_argument, {"UTF-8"});
  expect_error(
      [&] { engine.set_blob("x\xff", shard::BlobRule::replicated, {}); },
      Code::invalid_argument, {"UTF-8"});
  StateDict::load(engine, state, {.allow_mismatch = true});
  EXPECT_THAT(engine.param<float>(net.bias), ::testing::Each(9.0f));
  const StateDict moved = std::move(state);
  EXPECT_EQ(state.num_tensors(), 0);
  EXPECT_EQ(state.num_numbers(), 0);
  expect_error([&] { state.add_number("x", 1); }, Code::invalid_argument);
}

TEST(CallbackTest, ATakerThatThrowsEndsTheGatheringOnAllRanks) {
  const Net net;
  run_ranks(2, [&](Comm& comm) {
    Engine engine = engine_of(net, 2, comm);
    const auto gather = [&](const shard::TakeTensor& take) {
      StateDict::gather(engine, 0, take);
    };
    const shard::TakeTensor throws = [](auto, const auto&, auto) -> bool {
      throw std::domain_error("full");
    };
    if (comm.rank() == 0) {
      EXPECT_THROW(gather(throws), std::domain_error);
    } else {
      expect_error([&] { gather(nullptr); }, Code::cancelled);
    }
  });
}

}  // namespace
}  // namespace shard_sdk_testing::checkpoint_test
