// SPDX-License-Identifier: Apache-2.0
//
// Saves and loads that are called in the wrong state, with wrong options, or
// with options that differ between ranks.

#include "tests/core/engine/checkpoint_options.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/engine/whole_state.h"
#include "tests/core/engine/worlds.h"

namespace shard::checkpoint_options_test {
namespace {

TEST(CheckpointOptionsTest, RefusesCallsInTheWrongState) {
  const testing::TempFolder folder;
  const UnitTraining training = AwkwardTraining(2, 3);
  WholeState whole;
  Params params;
  SaveWorld(training, 1, folder.path(), &whole, &params, Quick());
  RunWorld(training, 0, [&](Engine* engine, UnitTrainer* trainer) {
    const auto load = [&](StateContent content, std::vector<ModuleId> modules,
                          bool ignore_frozen) {
      const LoadOptions options = {.state = {.content = content,
                                             .ignore_frozen = ignore_frozen,
                                             .submodules = std::move(modules)}};
      LoadReport report;
      return engine->Load(folder.path(), options, &report);
    };
    ExpectError(engine->Save(folder.path(), Quick()),
                StatusCode::kFailedPrecondition, {"FILLING"});
    ExpectError(load(StateContent::kOptimizer, {}, false),
                StatusCode::kFailedPrecondition, {"FILLING"});
    ExpectError(load(StateContent::kAll, {kBlock}, false),
                StatusCode::kFailedPrecondition, {"FILLING"});
    ExpectError(load(StateContent::kModel, {}, true),
                StatusCode::kFailedPrecondition, {"FILLING"});
    ASSERT_OK(load(StateContent::kModel, {}, false));
    ASSERT_OK(load(StateContent::kOptimizer, {}, false));

    ASSERT_OK(engine->UnitAcquire(0, Pass::kForward, 0));
    ExpectError(engine->Save(folder.path(), Quick()),
                StatusCode::kFailedPrecondition, {"save"});
    ExpectError(load(StateContent::kAll, {}, false),
                StatusCode::kFailedPrecondition, {"load"});
    ASSERT_OK(engine->UnitRelease(0));
    trainer->Forward();
    trainer->Backward(2, true);
    ExpectError(engine->Save(folder.path(), Quick()),
                StatusCode::kFailedPrecondition, {"gradients", "step first"});
    StepReport report;
    ASSERT_OK(trainer->Step(&report));
    ASSERT_OK(engine->ZeroGrad());
    ASSERT_OK(engine->Summon(kRootModule, -1, 0));
    ExpectError(engine->Save(folder.path(), Quick()),
                StatusCode::kFailedPrecondition, {});
    ASSERT_OK(engine->EndSummon(false, 0));
    ASSERT_OK(engine->Save(folder.path(), Quick()));
    TrainSteps(3, 3, engine, trainer);
  });
}

// An option that differs on one rank is an error on all ranks that names the
// option, and training goes on after it.
TEST(CheckpointOptionsTest, OptionsThatDifferAreAnErrorOnAllRanks) {
  const testing::TempFolder folder;
  RunWorld(AwkwardTraining(3, 2), 1, [&](Engine* engine, UnitTrainer* trainer) {
    const bool odd = engine->comm()->rank() == 1;
    const auto save = [&](void (*change)(SaveOptions*)) {
      SaveOptions options = Quick();
      if (odd) change(&options);
      return engine->Save(folder.path(), options);
    };
    const auto differ = [&](void (*change)(SaveOptions*),
                            std::string_view difference) {
      ExpectError(save(change), StatusCode::kDesync,
                  {StrCat("how to save: ", difference)});
    };
    differ([](SaveOptions* o) { o->overwrite = true; },
           "overwrite: rank 0 has false, rank 1 has true");
    differ([](SaveOptions* o) { o->async = true; },
           "save: rank 0 has false, rank 1 has true");
    differ([](SaveOptions* o) { o->state.content = StateContent::kModel; },
           "content: rank 0 has all, rank 1 has model");
    differ([](SaveOptions* o) { o->state.ignore_frozen = true; },
           "ignore_frozen: rank 0 has false, rank 1 has true");
    differ([](SaveOptions* o) { o->state.submodules = {kBlock}; },
           "rank 0 has number of submodules 0, rank 1 has submodule 0 '");
    differ(
        [](SaveOptions* o) {
          o->state.submodules = {kBlock};
          o->state.strip_prefix = true;
        },
        "strip_prefix: rank 0 has false, rank 1 has true");
    const auto wrong = [&](void (*change)(SaveOptions*),
                           std::string_view part) {
      ExpectInvalid(save(change), {"rank 1", part});
    };
    wrong([](SaveOptions* o) { o->threads = 0; }, "threads 0");
    wrong([](SaveOptions* o) { o->threads = 257; }, "threads 257");
    wrong([](SaveOptions* o) { o->keep_last = -1; }, "keep_last -1");
    wrong([](SaveOptions* o) { o->keep_every = 5; }, "keep_every 5");
    ExpectInvalid(
        engine->Save(
            folder.path(),
            odd ? StatusOr<SaveOptions>(InvalidArgument("unread")) : Quick()),
        {"rank 1", "unread"});
    SaveOptions unknown = Quick();
    unknown.state.content = static_cast<StateContent>(9);
    ExpectInvalid(engine->Save(folder.path(), unknown), {"content 9"});
    unknown = Quick();
    unknown.state.strip_prefix = true;
    ExpectInvalid(engine->Save(folder.path(), unknown), {"one submodule"});
    // Each rank may give the time that it has left.
    ASSERT_OK(save([](SaveOptions* o) { o->timeout = 100; }));

    const auto load = [&](void (*change)(LoadOptions*)) {
      LoadOptions options;
      if (odd) change(&options);
      LoadReport report;
      return engine->Load(folder.path(), options, &report);
    };
    ExpectError(
        load([](LoadOptions* o) { o->rules.strict = false; }),
        StatusCode::kDesync,
        {"how to load: allow_mismatch: rank 0 has false, rank 1 has true"});
    ExpectError(load([](LoadOptions* o) { o->rules.convert = true; }),
                StatusCode::kDesync,
                {"convert: rank 0 has false, rank 1 has true"});
    ExpectError(
        load([](LoadOptions* o) { o->rules.strip_leading_module = true; }),
        StatusCode::kDesync,
        {"strip_leading_module: rank 0 has false, rank 1 has true"});
    ExpectError(load([](LoadOptions* o) { o->from_rank0 = true; }),
                StatusCode::kDesync,
                {"from_rank0: rank 0 has false, rank 1 has true"});
    ExpectInvalid(load([](LoadOptions* o) { o->threads = -1; }),
                  {"rank 1", "threads -1"});
    // Rank 1's path holds no checkpoint.
    const testing::TempFolder none;
    LoadReport report;
    ExpectError(
        engine->Load(odd ? none.path() : folder.path(), LoadOptions(), &report),
        StatusCode::kNotFound, {"rank 1"});
    ASSERT_OK(load([](LoadOptions* o) { o->timeout = 100; }));
    TrainSteps(2, 2, engine, trainer);
  });
}

}  // namespace
}  // namespace shard::checkpoint_options_test
