// SPDX-License-Identifier: Apache-2.0
//
// Hostile and colliding names. A model that the library accepts can be saved,
// loaded by another number of ranks, and read and loaded as a state dict:
// nothing is refused later. SHARD_TEST_LONG tries a hundred times as many
// models; SHARD_TEST_SEED=N tries one alone, the number that a failure prints.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/checkpoint/open_store.h"
#include "core/engine/engine.h"
#include "core/model/names.h"
#include "core/state/manifest_bound.h"
#include "core/state/memory_store.h"
#include "core/state/state_entries.h"
#include "tests/core/base/dice.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/engine/worlds.h"

namespace shard::hostile_names_test {
namespace {

using testing::Dice;

// Picks one of a few names, so that names collide.
std::string ModuleName(Dice* dice) {
  return dice->Pick<std::string>({"state", "state", "param_groups", "_orig_mod",
                                  "_orig_mod", "_fsdp_wrapped_module", "module",
                                  "w", "v"});
}

std::string ParamName(Dice* dice) {
  return dice->Pick<std::string>({"w", "w", "v", "exp_avg", "exp_avg_sq",
                                  "step", "lr", "master_param", "_orig_mod",
                                  "state"});
}

std::string HostileName(Dice* dice) {
  switch (dice->Roll(4)) {
    case 0:
      return dice->Pick<std::string>({"", ".", "a.b", "..", "/", " ", "\"",
                                      "\\", "__metadata__", "{}", "'", "%s"});
    case 1:
      return dice->Pick<std::string>({"\n", "\x7F", "\x1B[0m", "\xC2\x85",
                                      "\xFF", "\xC3", std::string(1, '\0')});
    case 2:
      return std::string(
          static_cast<size_t>(dice->Pick<int>({1, 200, 64980, 65000, 65536})),
          dice->Chance(50) ? 'n' : '\xE9');
    default: {
      std::string bytes;
      for (int i = dice->Roll(6); i >= 0; --i) {
        bytes.push_back(static_cast<char>(dice->Roll(256)));
      }
      return bytes;
    }
  }
}

struct Tally {
  int refused_names = 0;
  int refused_plans = 0;
  int saved = 0;
  // Models that were saved, and that were loaded, in a stage that shards
  // gradients.
  int saved_sharded = 0;
  int loaded_sharded = 0;
};

// Expects that a name is accepted, or refused with an error about the name.
template <typename Add>
void Try(const Add& add, Tally* tally) {
  const Status status = add();
  if (status.ok()) return;
  ++tally->refused_names;
  EXPECT_TRUE(status.code() == StatusCode::kInvalidArgument ||
              status.code() == StatusCode::kAlreadyExists)
      << status.ToString();
  EXPECT_TRUE(IsPlainText(status.message()));
}

// Returns a random model. With `blocks` it has enough units that stages 2 and 3
// have something to shard.
std::shared_ptr<Model> RandomModel(bool blocks, Dice* dice, Tally* tally) {
  auto model = std::make_shared<Model>("Root");
  for (int b = 0; blocks && b < 8; ++b) {
    const ModuleId block =
        *model->AddModule(kRootModule, StrCat("block", b), "Block");
    EXPECT_OK(model->AddParam(block, "w", DType::kF32, {2200}));
  }
  EXPECT_OK(model->AddParam(kRootModule, "w", DType::kF32, {40}));
  std::vector<ModuleId> modules = {kRootModule};
  const auto name = [&](std::string usual) {
    return dice->Chance(15) ? HostileName(dice) : usual;
  };
  for (int m = 2 + dice->Roll(5); m > 0; --m) {
    const auto added =
        model->AddModule(dice->Pick(modules), name(ModuleName(dice)), "Class");
    Try([&] { return added.status(); }, tally);
    if (added.ok()) modules.push_back(*added);
  }
  for (int p = 2 + dice->Roll(6); p > 0; --p) {
    const auto added = model->AddParam(
        dice->Pick(modules), name(ParamName(dice)),
        dice->Pick<DType>({DType::kF32, DType::kBF16}),
        dice->Pick<std::vector<int64_t>>({{}, {0}, {7}, {300}, {3, 5}}));
    Try([&] { return added.status(); }, tally);
    if (!added.ok()) continue;
    if (dice->Chance(15)) EXPECT_OK(model->SetTrainable(*added, false));
    if (dice->Chance(10)) EXPECT_OK(model->IgnoreParam(*added));
  }
  while (dice->Chance(30)) {
    const ParamId param = dice->Roll(static_cast<int>(model->params().size()));
    Try(
        [&] {
          return model->Tie(dice->Pick(modules), name(ParamName(dice)), param);
        },
        tally);
  }
  return model;
}

std::vector<std::string> RandomBlobs(Dice* dice) {
  std::vector<std::string> names;
  for (int b = dice->Roll(3); b > 0; --b) names.push_back(HostileName(dice));
  return names;
}

// Saves on two ranks, and reads the state as a state dict and loads it again.
void Save(const UnitTraining& training, const std::vector<std::string>& blobs,
          const std::string& root, WholeState* whole, Params* params,
          Tally* tally) {
  RunWorld(training, 1, [&](Engine* engine, UnitTrainer* trainer) {
    const int rank = engine->comm()->rank();
    Tally own;
    for (const std::string& blob : blobs) {
      Try(
          [&] {
            return engine->checkpoints().SetBlob(blob, BlobRule::kPerRank,
                                                 "12345678", 8);
          },
          rank == 0 ? tally : &own);
    }
    const auto saved = engine->Save(root, SaveOptions());
    ASSERT_OK(saved);
    MemoryStore dict;
    ASSERT_OK(engine->AddLocalState({}, &dict));
    LoadReport report;
    ASSERT_OK(engine->LoadState(&dict, LoadOptions(), &report));
    whole->Add(*engine);
    auto read = trainer->Read();
    if (rank == 0) *params = std::move(read);
  });
}

// Returns `stage`, or the next one below it in which a plan shards what it is
// to shard: some models are too small for stages 2 and 3.
int StageThatShards(UnitTraining training, int stage) {
  for (; stage > 1; --stage) {
    training.plan.stage = stage;
    const auto plan = PlanOf(training);
    if (!plan.ok() || ShardsAsItsStage(**plan)) break;
  }
  return stage;
}

void TryModel(uint64_t seed, Tally* tally) {
  Dice dice(seed);
  UnitTraining training;
  const bool blocks = dice.Chance(50);
  training.model = RandomModel(blocks, &dice, tally);
  training.optimizer =
      dice.Pick<std::string>({"adamw", "adamw?states=q8", "sgd?momentum=0.9"});
  training.wrap = blocks ? "class?names=Block" : "";
  training.plan.prefetch = 0;
  training.plan.world_size = 2;
  training.plan.stage = StageThatShards(training, dice.Roll(blocks ? 4 : 2));
  const auto plan = PlanOf(training);
  if (!plan.ok()) {
    ++tally->refused_plans;
    ExpectInvalid(plan, {"key", "rename"});
    EXPECT_TRUE(IsPlainText(plan.status().message()));
    return;
  }
  const testing::TempFolder folder;
  const std::string root = folder / "ckpt";
  WholeState saved;
  Params params;
  Save(training, RandomBlobs(&dice), root, &saved, &params, tally);

  // The checkpoint holds all entries of the plan, under printable keys.
  auto opened = OpenTensorStore(FileEnv::Posix(), root);
  ASSERT_OK(opened);
  const auto entries = ListStateEntries(**plan, {});
  ASSERT_OK(entries);
  EXPECT_EQ(opened->store->num_tensors(), entries->size());
  for (const StateEntry& entry : *entries) {
    EXPECT_GE(opened->store->Find(entry.key), 0) << entry.key;
    EXPECT_TRUE(IsPlainText(entry.key));
  }

  // The manifest is within the bound that the engine checked when it was made.
  const Manifest& manifest = *opened->store->manifest();
  const ManifestBound bound = BoundManifest(**plan);
  uint64_t bytes = bound.bytes;
  for (size_t b = 0; b < manifest.num_blobs(); ++b) {
    bytes += BlobManifestBytes(manifest.blob(b).name, 1);
  }
  EXPECT_LE(opened->store->index_bytes(), bytes);
  size_t slices = 0;
  for (size_t t = 0; t < manifest.num_tensors(); ++t) {
    if (manifest.tensor(t).alias_of < 0) slices += manifest.num_slices(t);
  }
  EXPECT_LE(slices, bound.slices);
  EXPECT_LE(manifest.num_tensors(), bound.tensors);

  WholeState loaded;
  training.plan.world_size = 3;
  training.plan.stage = StageThatShards(training, dice.Roll(blocks ? 4 : 2));
  LoadWorld(training, root, &loaded, params);
  EXPECT_EQ(saved, loaded) << saved.Differences(loaded);
  ++tally->saved;
  if ((*plan)->shards_grads()) ++tally->saved_sharded;
  const auto reloaded = PlanOf(training);
  ASSERT_OK(reloaded);
  if ((*reloaded)->shards_grads()) ++tally->loaded_sharded;
}

TEST(HostileNames, AcceptedModelsCanBeSaved) {
  constexpr uint64_t kModels = kSanitized ? 30 : 60;
  uint64_t first = 1;
  uint64_t last = std::getenv("SHARD_TEST_LONG") ? 100 * kModels : kModels;
  if (const char* const one = std::getenv("SHARD_TEST_SEED")) {
    first = last = std::strtoull(one, nullptr, 10);
  }
  Tally tally;
  for (uint64_t seed = first; seed <= last; ++seed) {
    TryModel(seed, &tally);
    ASSERT_FALSE(HasFailure()) << "SHARD_TEST_SEED=" << seed;
  }
  std::cout << tally.saved << " models saved (" << tally.saved_sharded
            << " sharded, and " << tally.loaded_sharded << " loaded so), "
            << tally.refused_plans << " plans and " << tally.refused_names
            << " names refused\n";
  if (first == last) return;
  constexpr auto kSome = static_cast<int>(kModels / 12);
  EXPECT_GT(tally.saved, 4 * kSome);
  EXPECT_GT(tally.saved_sharded, kSome);
  EXPECT_GT(tally.loaded_sharded, kSome);
  EXPECT_GT(tally.refused_plans, kSome);
  EXPECT_GT(tally.refused_names, 4 * kSome);
}

}  // namespace
}  // namespace shard::hostile_names_test
