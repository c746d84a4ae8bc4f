// SPDX-License-Identifier: Apache-2.0
//
// Plans, models and calls that differ between ranks. Every option of a plan and
// every property of a model, changed on one rank of three, is an error on all
// ranks that names the property, both values and the ranks. Differences in
// other calls are tested where the calls are.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/device/forwarding_device.h"
#include "core/engine/engine.h"
#include "core/optim/groups.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/device/test_device.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/thread_ranks.h"

namespace shard::desync_test {
namespace {

constexpr int kRanks = 3;

struct Inputs {
  std::string block = "block";
  std::string weight = "weight";
  DType dtype = DType::kF32;
  std::vector<int64_t> shape = {4, 6};
  std::string optimizer = "adamw?lr=0.25";
  // Called after the parameters are added: 0 is block.weight, tied as
  // head.weight, 1 is block.mlp.up, 2 is block.mlp.down.
  std::function<void(Model*)> model = [](Model*) {};
  std::function<void(PlanOptions*)> options = [](PlanOptions*) {};
};

StatusOr<std::shared_ptr<const Plan>> PlanOf(const Inputs& inputs) {
  auto model = std::make_shared<Model>("Net");
  const ModuleId block = *model->AddModule(kRootModule, inputs.block, "Block");
  const ModuleId mlp = *model->AddModule(block, "mlp", "MLP");
  const ModuleId head = *model->AddModule(kRootModule, "head", "Linear");
  const ParamId weight =
      *model->AddParam(block, inputs.weight, inputs.dtype, inputs.shape);
  SHARD_RETURN_IF_ERROR(model->AddParam(mlp, "up", DType::kF32, {24}).status());
  SHARD_RETURN_IF_ERROR(
      model->AddParam(mlp, "down", DType::kF32, {24}).status());
  SHARD_RETURN_IF_ERROR(model->Tie(head, "weight", weight));
  inputs.model(model.get());
  PlanOptions options;
  options.world_size = kRanks;
  SHARD_ASSIGN_OR_RETURN(options.groups, PlanGroups(*model, inputs.optimizer));
  options.manual_owners = {0, 1, 2};
  inputs.options(&options);
  return Plan::Create(model, options);
}

struct Case {
  const char* difference;  // The message up to the ranks.
  const char* usual;
  const char* odd;
  std::function<void(Inputs*)> change;
};

Case Option(const char* difference, const char* usual, const char* odd,
            std::function<void(PlanOptions*)> change) {
  return {difference, usual, odd,
          [change](Inputs* inputs) { inputs->options = change; }};
}

Case OfModel(const char* difference, const char* usual, const char* odd,
             std::function<void(Model*)> change) {
  return {difference, usual, odd,
          [change](Inputs* inputs) { inputs->model = change; }};
}

// NOLINTNEXTLINE: a table.
const std::vector<Case>& Cases() {
  static const auto* const cases = new std::vector<Case>{
      Option("stage", "1", "2", [](PlanOptions* o) { o->stage = 2; }),
      Option("partition", "even", "greedy",
             [](PlanOptions* o) { o->partition = Partition::kGreedy; }),
      Option("bucket_bytes", "26214400", "100",
             [](PlanOptions* o) { o->bucket_bytes = 100; }),
      Option("shard_buckets", "0", "1",
             [](PlanOptions* o) { o->shard_buckets = true; }),
      Option("buffer_bytes", "26214400", "100",
             [](PlanOptions* o) { o->buffer_bytes = 100; }),
      Option("param_dtype", "f32", "bf16",
             [](PlanOptions* o) { o->param_dtype = DType::kBF16; }),
      Option("shard_group_size", "0", "1",
             [](PlanOptions* o) { o->shard_group_size = 1; }),
      Option("prefetch", "1", "4", [](PlanOptions* o) { o->prefetch = 4; }),
      Option("whole_grads", "0", "1",
             [](PlanOptions* o) { o->whole_grads = true; }),
      Option("keep_after_forward", "0", "1",
             [](PlanOptions* o) { o->keep_after_forward = true; }),
      Option("deterministic", "0", "1",
             [](PlanOptions* o) { o->deterministic = true; }),
      Option("alignment_bytes", "64", "32",
             [](PlanOptions* o) { o->alignment_bytes = 32; }),
      Option("f32_grads", "0", "1",
             [](PlanOptions* o) { o->f32_grads = true; }),
      Option("masters", "f32", "none_nearest",
             [](PlanOptions* o) { o->masters = Masters::kNoneNearest; }),
      Option("seed", "0", "18446744073709551615",
             [](PlanOptions* o) { o->seed = ~uint64_t{0}; }),
      Option("unit of its own of module 'block'", "false", "true",
             [](PlanOptions* o) {
               o->wrap = *WrapPolicy::Parse("class?names=Block");
             }),
      {"optimizer of param group 0", "adamw", "sgd",
       [](Inputs* i) { i->optimizer = "sgd?lr=0.25"; }},
      {"lr of param group 0", "0.25", "0.125",
       [](Inputs* i) { i->optimizer = "adamw?lr=0.125"; }},
      {"weight_decay of param group 0", "0.01", "0",
       [](Inputs* i) { i->optimizer = "adamw?lr=0.25&weight_decay=0"; }},
      Option("state 0 of param group 0", "exp_avg in f32", "m in f32",
             [](PlanOptions* o) { o->groups[0].states[0].name = "m"; }),
      Option(
          "state 1 of param group 0", "exp_avg_sq in f32", "exp_avg_sq in bf16",
          [](PlanOptions* o) { o->groups[0].states[1].dtype = DType::kBF16; }),
      {"entry 1 of the model", "module 'block'", "module 'blocks'",
       [](Inputs* i) { i->block = "blocks"; }},
      {"entry 2 of the model", "parameter 'block.weight'",
       "parameter 'block.kernel'", [](Inputs* i) { i->weight = "kernel"; }},
      {"dtype of parameter 'block.weight'", "f32", "bf16",
       [](Inputs* i) { i->dtype = DType::kBF16; }},
      {"shape of parameter 'block.weight'", "[4, 6]", "[6, 4]",
       [](Inputs* i) {
         i->shape = {6, 4};
       }},
      {"shape of parameter 'block.weight'", "[4, 6]", "[4, 6, 1]",
       [](Inputs* i) {
         i->shape = {4, 6, 1};
       }},
      OfModel("trainable of parameter 'block.mlp.up'", "true", "false",
              [](Model* m) { EXPECT_OK(m->SetTrainable(1, false)); }),
      OfModel("entry 4 of the model", "parameter 'block.mlp.up'",
              "parameter 'block.mlp.down'",
              [](Model* m) { EXPECT_OK(m->IgnoreParam(1)); }),
      OfModel("entry 3 of the model", "module 'block.mlp'", "module 'head'",
              [](Model* m) { EXPECT_OK(m->IgnoreModule(2)); }),
      OfModel("entry 6 of the model", "module 'head'",
              "parameter 'block.mlp.more'",
              [](Model* m) {
                EXPECT_OK(m->AddParam(2, "more", DType::kF32, {0}));
              }),
      OfModel("entry 8 of the model", "the end",
              "parameter 'head.tied', tied to parameter number 1 "
              "('block.mlp.up')",
              [](Model* m) { EXPECT_OK(m->Tie(3, "tied", 1)); }),
      OfModel(
          "optimizer of param group 1", "", "",
          [](Model* m) { EXPECT_OK(m->AddParamGroup("sgd", std::vector{1})); }),
  };
  return *cases;
}

// Expects the same message on all ranks, and returns it.
std::string DesyncOf(
    const std::function<Status(const std::shared_ptr<Communicator>&)>& call,
    int odd, const std::string& link) {
  std::mutex mutex;
  std::set<std::string> messages;
  RunThreadRanks(
      kRanks,
      [&](const auto& comm) {
        const Status status = call(comm);
        EXPECT_EQ(status.code(), StatusCode::kDesync) << status.ToString();
        EXPECT_EQ(status.rank(), odd) << status.ToString();
        const std::lock_guard<std::mutex> lock(mutex);
        messages.insert(status.message());
      },
      30, link);
  EXPECT_EQ(messages.size(), 1u);
  return messages.empty() ? "" : *messages.begin();
}

TEST(DesyncTest, EveryPropertyOfAPlanIsNamed) {
  int odd = 0;
  for (const Case& one : Cases()) {
    for (const char* link : {"", "direct=0"}) {
      if (IsAsWithoutLink(link)) continue;
      odd = (odd + 1) % kRanks;
      SCOPED_TRACE(StrCat(one.difference, " on rank ", odd, " ", link));
      const std::string message = DesyncOf(
          [&](const auto& comm) {
            Inputs inputs;
            if (comm->rank() == odd) one.change(&inputs);
            const auto plan = PlanOf(inputs);
            EXPECT_OK(plan);
            return CreateEngine(*plan, comm).status();
          },
          odd, link);
      EXPECT_NE(message.find("the ranks differ in the plan: "),
                std::string::npos)
          << message;
      // The other ranks have no counterpart of an additional group.
      const int most = odd == 0 ? 1 : 0;
      const std::string expected =
          *one.usual == '\0'
              ? std::string(one.difference)
              : StrCat(one.difference, ": rank ", most, " has ", one.usual,
                       ", rank ", odd, " has ", one.odd, "; 1 of 3 ranks ");
      EXPECT_NE(message.find(expected), std::string::npos)
          << message << "\nhas no " << expected;
    }
  }
}

TEST(DesyncTest, OwnersAreNamed) {
  const std::string message = DesyncOf(
      [&](const auto& comm) {
        Inputs inputs;
        inputs.options = [&](PlanOptions* o) {
          o->partition = Partition::kManual;
          if (comm->rank() == 1) o->manual_owners = {0, 2, 1};
        };
        const auto plan = PlanOf(inputs);
        EXPECT_OK(plan);
        return CreateEngine(*plan, comm).status();
      },
      1, "");
  EXPECT_NE(message.find("first owner of parameter 'block.mlp.up': rank 0 has "
                         "rank 1, rank 1 has rank 2"),
            std::string::npos)
      << message;
}

// Ranks whose devices reach the memory that ranks share have tensors there;
// others move their tensors.
TEST(DesyncTest, DevicesAreNamed) {
  class OfKind final : public ForwardingDevice {
   public:
    using ForwardingDevice::ForwardingDevice;
    DeviceId id() const override { return {DeviceId::Kind::kCuda, 0}; }
  };
  const auto message_with = [](const std::shared_ptr<Device>& odd) {
    return DesyncOf(
        [&](const auto& comm) {
          const auto plan = PlanOf(Inputs());
          EXPECT_OK(plan);
          EngineOptions options;
          options.opened_device = comm->rank() == 2 ? odd : *OpenDevice("cpu");
          return CreateEngine(*plan, comm, options).status();
        },
        2, "");
  };
  const auto cpu = *OpenDevice("cpu");
  const std::string reach = message_with(testing::WithoutSharedMemory(cpu));
  EXPECT_NE(reach.find("the ranks differ in the engine's options: device "
                       "reaches shared memory: rank 0 has yes, rank 2 has no"),
            std::string::npos)
      << reach;
  const std::string kind = message_with(std::make_shared<OfKind>(cpu));
  EXPECT_NE(kind.find("the ranks differ in the engine's options: kind of "
                      "device: rank 0 has cpu, rank 2 has cuda"),
            std::string::npos)
      << kind;
}

TEST(DesyncTest, EveryOptionOfAnEngineIsNamed) {
  struct EngineCase {
    const char* difference;
    void (*change)(EngineOptions*);
  };
  for (const EngineCase& one : {
           EngineCase{"kind of loss_scaling: rank 0 has '', rank 2 has "
                      "static",
                      [](EngineOptions* o) {
                        o->loss_scaler = *LossScaler::Parse("static?scale=8");
                      }},
           EngineCase{"missing_grads: rank 0 has 0, rank 2 has 1",
                      [](EngineOptions* o) {
                        o->missing_grads = MissingGrads::kZero;
                      }},
           EngineCase{"overlap: rank 0 has false, rank 2 has true",
                      [](EngineOptions* o) { o->overlap = true; }},
       }) {
    const std::string message = DesyncOf(
        [&](const auto& comm) {
          EngineOptions options;
          if (comm->rank() == 2) one.change(&options);
          const auto plan = PlanOf(Inputs());
          EXPECT_OK(plan);
          return CreateEngine(*plan, comm, options).status();
        },
        2, "");
    EXPECT_NE(message.find(
                  StrCat("differ in the engine's options: ", one.difference)),
              std::string::npos)
        << message;
  }
}

// Arguments of calls that differ between ranks; the engine works on after each
// error.
TEST(DesyncTest, ArgumentsOfCallsAreNamed) {
  const testing::TempFolder root;
  RunThreadRanks(kRanks, [&](const auto& comm) {
    const auto plan = PlanOf(Inputs());
    ASSERT_OK(plan);
    const auto made = CreateEngine(*plan, comm);
    ASSERT_OK(made);
    Engine& engine = **made;
    ASSERT_OK(engine.BroadcastParams(0));
    const bool odd = comm->rank() == 1;
    const auto expect = [&](const Status& status, std::string_view text) {
      ExpectError(status, StatusCode::kDesync, {text});
      EXPECT_EQ(status.rank(), 1);
    };
    const auto gather = [&](const StateOptions& options, int rank) {
      return engine.GatherState(
          options, rank, 0,
          [](const StateEntry&, const std::byte*) { return Status(); });
    };
    StateOptions state;
    expect(gather(state, odd ? 2 : 0),
           "the arguments of gather: rank: rank 0 has 0, rank 1 has 2");
    if (odd) state.content = StateContent::kModel;
    expect(gather(state, 0), "content: rank 0 has all, rank 1 has model");
    ASSERT_OK(engine.Summon(kRootModule, -1, 0));
    expect(engine.EndSummon(odd, 0),
           "write_back: rank 0 has false, rank 1 has true");
    ASSERT_OK(engine.EndSummon(false, 0));

    // State dicts differ.
    const auto load = [&](const std::function<void(MemoryStore*)>& add) {
      MemoryStore store;
      EXPECT_OK(engine.AddLocalState(StateOptions(), &store));
      if (odd) add(&store);
      LoadReport report;
      const LoadOptions options = {.rules = {.strict = false}};
      return engine.LoadState(&store, options, &report);
    };
    ASSERT_OK(load([](MemoryStore*) {}));
    expect(load([](MemoryStore* store) {
             EXPECT_OK(store->AddNumber("param_groups.block.weight.lr", 0.5));
           }),
           "the state dict: number 'param_groups.block.weight.lr': rank 0 has "
           "0.25, rank 1 has 0.5");
    static const float kValue = 0;
    expect(load([](MemoryStore* store) {
             const MemoryStore::Tensor tensor = {.key = "more"};
             EXPECT_OK(store->Add(tensor, &kValue, sizeof(kValue)));
           }),
           "rank 0 has the end, rank 1 has 'more'");

    SaveOptions save;
    save.keep_last = odd ? 3 : 2;
    expect(engine.Save(root.path(), save).status(),
           "keep_last: rank 0 has 2, rank 1 has 3");
    save.keep_last = 2;
    save.keep_every = odd ? 4 : 5;
    expect(engine.Save(root.path(), save).status(),
           "keep_every: rank 0 has 5, rank 1 has 4");

    // Checkpoints differ: each rank loads another one.
    save = SaveOptions();
    ASSERT_OK(engine.Save(root.path(), save));
    // The other checkpoint has the same name and other contents.
    FloatsOf(*engine.Grad(0))[0] = 1;
    StepReport step;
    ASSERT_OK(engine.Step(StepOptions(), &step));
    ASSERT_OK(engine.SetStep(0));
    const std::string other = StrCat(root.path(), "/other");
    ASSERT_OK(engine.Save(other, save));
    LoadReport report;
    const LoadOptions verified = {.verify = !odd};
    expect(engine.Load(root.path(), verified, &report),
           "skip_verify: rank 0 has false, rank 1 has true");
    expect(engine.Load(odd ? other : root.path(), LoadOptions(), &report),
           "the checkpoint: id: rank 0 has 0x");

    // Hyperparameters come last, because the engine cannot be used after that
    // error.
    if (odd) ASSERT_OK(engine.SetHyper(0, "beta1", 0.5));
    expect(engine.Step(StepOptions(), &step),
           "the hyperparameters of the step: beta1 of param group 0: rank 0 "
           "has 0.9, rank 1 has 0.5");
  });
}

}  // namespace
}  // namespace shard::desync_test
