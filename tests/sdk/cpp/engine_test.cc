// SPDX-License-Identifier: Apache-2.0
//
// Engines: training in every stage, tensors, and changes at run time.

#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/sdk/cpp/sdk_testing.h"

namespace shard_sdk_testing::engine_test {
namespace {

TEST(TrainingTest, LearnsInEveryStageWithAndWithoutSharedMemory) {
  const Net net;
  for (const std::string memory : {"", "&direct=0"}) {
    for (int stage = 0; stage <= 3; ++stage) {
      SCOPED_TRACE("stage " + std::to_string(stage) + memory);
      run_ranks(
          2,
          [&](Comm& comm) {
            Engine engine = engine_of(net, stage, comm);
            const shard::PlanInfo info = engine.plan().info();
            EXPECT_EQ(info.shards_grads, stage >= 2);
            EXPECT_EQ(info.shards_params, stage == 3);
            const double first = comm.sum(train_step(engine));
            for (int step = 0; step < 10; ++step) train_step(engine);
            EXPECT_LT(comm.sum(train_step(engine)), first / 1000);
            EXPECT_EQ(engine.completed_steps(), 12);
            for (const float x : values_of(engine, net.out_weight)) {
              EXPECT_NEAR(x, 1, 0.01);
            }
            comm.shutdown();
          },
          memory);
    }
  }
}

TEST(TrainingTest, WithoutUnitsWritesWholeGradients) {
  const Net net;
  run_ranks(2, [&](Comm& comm) {
    Engine engine = Engine::create(
        Plan::create(net.model,
                     {.stage = 1, .world_size = 2, .optimizer = "sgd?lr=0.5"}),
        comm);
    engine.set_param(net.bias, std::vector<float>(40, 3.0f));
    engine.broadcast_params();
    engine.zero_grad();
    std::ranges::fill(engine.grad<float>(net.bias), comm.rank() + 1.0f);
    const shard::StepReport report = engine.step({.max_grad_norm = 1e9});
    EXPECT_EQ(report.step, 1);
    EXPECT_NEAR(report.grad_norm, 1.5 * std::sqrt(40.0), 1e-3);
    EXPECT_THAT(engine.param<float>(net.bias), ::testing::Each(3 - 0.75f));
  });
}

TEST(TrainingTest, StepsBeginWithOptionsAndEndWithTheReport) {
  const Net net;
  run_ranks(2, [&](Comm& comm) {
    Engine engine = engine_of(net, 2, comm);
    engine.begin_step({.grad_divisor = 4});
    train_step(engine);
    EXPECT_EQ(values_of(engine, net.bias)[0], 0.25f);
  });
}

TEST(TrainingTest, TheLastReportAndTheStreamAreTheEngines) {
  const Net net;
  run_ranks(2, [&](Comm& comm) {
    Engine engine = engine_of(net, 1, comm);
    expect_error([&] { (void)engine.last_report(); }, Code::failed_precondition,
                 {"last_report"});
    EXPECT_EQ(engine.device().kind, shard::DeviceKind::cpu);
    EXPECT_EQ(engine.device().ordinal, 0);
    EXPECT_EQ(engine.json(),
              R"({"device":"cpu","transport":"direct","sum_order":"ranks"})");
    engine.set_stream(nullptr);
    int stream = 0;
    expect_error([&] { engine.set_stream(&stream); }, Code::invalid_argument,
                 {"set_stream", "'cpu'"});
    expect_error([&] { engine.capture_begin(); }, Code::unimplemented,
                 {"capture_begin"});
    expect_error([&] { engine.capture_end(); }, Code::failed_precondition,
                 {"capture_end"});
    expect_error([&] { engine.before_replay(); }, Code::failed_precondition,
                 {"before_replay"});
    train_step(engine);
    engine.synchronize();
    EXPECT_EQ(engine.last_report().step, 1);
    EXPECT_GT(engine.last_report().seconds_total, 0);
    for (const UnitId id : engine.plan().units()) {
      engine.mark_unit_grads_ready(id);
    }
    engine.step_without_report();
    EXPECT_EQ(engine.last_report().step, 2);
  });
}

TEST(TrainingTest, PassesAccumulate) {
  const Net net;
  run_ranks(2, [&](Comm& comm) {
    Engine engine = engine_of(net, 2, comm);
    const UnitId id = engine.plan().unit_of(net.bias);
    for (int pass = 0; pass < 2; ++pass) {
      engine.set_accumulate(pass == 0);
      for (const UnitId unit_id : engine.plan().units()) {
        Unit unit = engine.unit_acquire(unit_id, Pass::backward);
        if (unit_id == id) {
          std::ranges::fill(unit.grad<float>(net.bias), 1.0f);
        }
        unit.mark_grads_ready();
      }
    }
    engine.step();
    EXPECT_EQ(values_of(engine, net.bias)[0], -1.0f);
  });
}

TEST(TrainingTest, ARankWithoutInputJoins) {
  const Net net;
  run_ranks(2, [&](Comm& comm) {
    Engine engine = engine_of(net, 1, comm);
    if (comm.rank() == 0) {
      for (int step = 0; step < 3; ++step) train_step(engine);
      engine.join();
    } else {
      EXPECT_EQ(engine.join(), 3);
    }
  });
}

TEST(UnitTest, ItsViewsEndWithIt) {
  const Net net;
  run_ranks(
      2,
      [&](Comm& comm) {
        Engine engine = engine_of(net, 3, comm);
        const UnitId id = engine.plan().unit_of(net.weight);
        Unit unit = engine.unit_acquire(id, Pass::forward);
        EXPECT_EQ(unit.id(), id);
        EXPECT_EQ(unit.param<float>(net.weight).size(), 120u);
        EXPECT_EQ(unit.param<std::byte>(net.weight).size(), 480u);
        EXPECT_EQ(unit.params()[0].data.size(), 480u);
        EXPECT_TRUE(unit.params()[0].grad.empty());
        unit.release();
        expect_error([&] { (void)unit.param<float>(net.weight); },
                     Code::failed_precondition, {"released"});
        expect_error([&] { (void)unit.params(); }, Code::failed_precondition);
        expect_error([&] { unit.mark_grads_ready(); },
                     Code::failed_precondition);
        expect_error([&] { unit.release(); }, Code::failed_precondition);
        expect_error([&] { (void)engine.param<float>(net.weight); },
                     Code::failed_precondition);
      },
      "&direct=0");
}

TEST(UnitTest, AnExceptionReleasesIt) {
  const Net net;
  Comm comm = Comm::open("local:");
  Engine engine = engine_of(net, 3, comm);
  const UnitId id = engine.plan().unit_of(net.weight);
  EXPECT_THROW(
      {
        const Unit unit = engine.unit_acquire(id, Pass::forward);
        throw std::runtime_error("a kernel failed");
      },
      std::runtime_error);
  // The unit is idle again: a unit that is in use could not be acquired.
  Unit unit = engine.unit_acquire(id, Pass::forward);
  expect_error([&] { (void)engine.unit_acquire(id, Pass::forward); },
               Code::failed_precondition);
  // Assignment releases the unit that was held.
  const UnitId other = engine.plan().unit_of(net.out_weight);
  unit = engine.unit_acquire(other, Pass::forward);
  EXPECT_EQ(engine.unit_acquire(id, Pass::forward).id(), id);
}

TEST(UnitTest, HasItsOwnParametersOnly) {
  const Net net;
  Comm comm = Comm::open("local:");
  Engine engine =
      engine_of(net, 1, comm, {.missing_grads = shard::MissingGrads::zero});
  Unit unit =
      engine.unit_acquire(engine.plan().unit_of(net.weight), Pass::backward);
  for (const auto& misuse :
       {std::function<void()>([&] { (void)unit.param<float>(net.out_weight); }),
        std::function<void()>([&] { (void)unit.grad<float>(net.out_weight); }),
        std::function<void()>(
            [&] { unit.mark_param_grad_ready(net.out_weight); })}) {
    expect_error(misuse, Code::invalid_argument, {"is in unit", "not in unit"});
  }
  expect_error([&] { (void)unit.param<float>(ParamId{99}); },
               Code::invalid_argument, {"99"});
  std::ranges::fill(unit.grad<float>(net.weight), 1.0f);
  unit.mark_param_grad_ready(net.weight);
  unit.release();
  engine.mark_param_grad_ready(net.out_bias);
  engine.mark_unit_grads_ready(engine.plan().unit_of(shard::ParamId{3}));
  engine.step();
  EXPECT_EQ(engine.param<float>(net.weight)[0], -0.5f);
}

TEST(UnitTest, KeepsTheEngineAlive) {
  const Net net;
  Comm comm = Comm::open("local:");
  auto engine = std::make_unique<Engine>(engine_of(net, 3, comm));
  Unit unit =
      engine->unit_acquire(engine->plan().unit_of(net.weight), Pass::forward);
  Engine moved = std::move(*engine);
  EXPECT_EQ(unit.param<float>(net.weight)[0], 0);
  engine.reset();
  moved = engine_of(net, 3, comm);
  EXPECT_EQ(unit.param<float>(net.weight)[0], 0);
  unit.release();
}

TEST(TensorTest, SpansHaveTheTypeThatIsStored) {
  Model model = Model::create();
  const ParamId half =
      model.add_param(shard::root_module, "half", DType::bf16, {4});
  Comm comm = Comm::open("local:");
  Engine engine = Engine::create(
      Plan::create(model, {.world_size = 1, .f32_grads = true}), comm);
  expect_error([&] { engine.set_param(half, std::vector<float>(4)); },
               Code::invalid_argument, {"bf16", "not f32"});
  expect_error([&] { engine.set_param(half, std::vector<shard::BF16>(3)); },
               Code::invalid_argument, {"6", "8"});
  engine.set_param(half, std::vector<shard::BF16>(4, {0x3f80}));
  std::ranges::fill(engine.writable_param<std::byte>(half).first(2),
                    std::byte{0});
  engine.broadcast_params();
  EXPECT_EQ(engine.param<shard::BF16>(half)[1].bits, 0x3f80);
  EXPECT_EQ(engine.param<shard::BF16>(half)[0].bits, 0);
  EXPECT_EQ(engine.grad<float>(half).size(), 4u);
  expect_error([&] { (void)engine.grad<shard::BF16>(half); },
               Code::invalid_argument, {"gradient", "f32"});
  expect_error([&] { (void)engine.param<float>(half); },
               Code::invalid_argument);
  expect_error([&] { (void)engine.param<float>(ParamId{-1}); },
               Code::invalid_argument, {"-1"});
}

TEST(TensorTest, MemoryOfTheHostIsBound) {
  const Net net;
  Comm comm = Comm::open("local:");
  Engine engine = engine_of(net, 1, comm);
  std::vector<float> values(40, -1.0f), grads(40, 1.0f);
  expect_error(
      [&] {
        engine.bind_param(net.bias, std::span(values),
                          std::span(grads).first(7));
      },
      Code::invalid_argument);
  std::vector<double> wide(20);
  expect_error([&] { engine.bind_param(net.bias, std::span(wide)); },
               Code::invalid_argument, {"f64"});
  engine.bind_param(net.bias, std::span(values), std::span(grads));
  EXPECT_EQ(engine.grad<float>(net.bias).data(), grads.data());
  EXPECT_EQ(values[0], 0.0f);
  engine.step();
  EXPECT_EQ(values[0], -0.5f);
  engine.bind_param(net.bias, std::span<float>{}, std::span(grads));
  engine.step();
  EXPECT_EQ(values[0], -0.5f);
  engine.unbind_param(net.bias);
  EXPECT_NE(engine.grad<float>(net.bias).data(), grads.data());
}

TEST(TensorTest, BuffersOfTheModelAreBroadcast) {
  Net net;
  const shard::ModelBufferId mean =
      net.model.add_buffer(net.first, "mean", DType::f32, {40});
  run_ranks(2, [&](Comm& comm) {
    Engine engine = engine_of(net, 1, comm);
    std::ranges::fill(engine.buffer<float>(mean), comm.rank() + 1.0f);
    engine.broadcast_buffers(1);
    EXPECT_THAT(engine.buffer<float>(mean), ::testing::Each(2.0f));
    expect_error([&] { (void)engine.buffer<double>(mean); },
                 Code::invalid_argument, {"f32"});
  });
}

TEST(SummonTest, ChangesAreWrittenBack) {
  const Net net;
  run_ranks(
      2,
      [&](Comm& comm) {
        Engine engine = engine_of(net, 3, comm);
        shard::FullParams full = engine.summon(net.first);
        std::ranges::fill(full.writable_param<float>(net.bias), 7.0f);
        full.end(true);
        expect_error([&] { (void)full.param<float>(net.bias); },
                     Code::failed_precondition, {"given back"});
        expect_error([&] { full.end(); }, Code::failed_precondition);
        EXPECT_THAT(values_of(engine, net.bias), ::testing::Each(7.0f));
        // Without end(true) nothing is changed.
        {
          const shard::FullParams scope = engine.summon();
          std::ranges::fill(scope.writable_param<float>(net.bias), 8.0f);
        }
        EXPECT_THAT(values_of(engine, net.bias), ::testing::Each(7.0f));
      },
      "&direct=0");
}

TEST(SummonTest, OneRankAloneMayHaveTheCopies) {
  const Net net;
  run_ranks(2, [&](Comm& comm) {
    Engine engine = engine_of(net, 3, comm);
    const shard::FullParams full = engine.summon(shard::root_module, 1);
    if (comm.rank() == 1) {
      EXPECT_EQ(full.param<float>(net.bias).size(), 40u);
    } else {
      expect_error([&] { (void)full.param<float>(net.bias); },
                   Code::failed_precondition);
    }
  });
}

// One rank leaves the scope by an exception; the others write back. All of them
// get out, with an error that names the difference.
TEST(SummonTest, ARankThatLeavesEarlyDoesNotHangTheOthers) {
  const Net net;
  run_ranks(2, [&](Comm& comm) {
    Engine engine = engine_of(net, 1, comm);
    try {
      shard::FullParams full = engine.summon();
      if (comm.rank() == 1) throw std::runtime_error("this rank failed");
      full.end(true);
      ADD_FAILURE() << "rank 1 did not write back";
    } catch (const shard::Error& error) {
      EXPECT_EQ(error.code(), Code::desync) << error.what();
    } catch (const std::runtime_error&) {
      EXPECT_EQ(comm.rank(), 1);
    }
  });
}

TEST(NumbersTest, AreSetAndGot) {
  const Net net;
  Comm comm = Comm::open("local:");
  Engine engine = Engine::create(
      Plan::create(net.model, {.world_size = 1, .optimizer = "adamw"}), comm,
      {.loss_scaling = "dynamic?init_scale=1024"});
  engine.broadcast_params();
  engine.set_hyper(shard::all_groups, "lr", 0.25);
  EXPECT_EQ(engine.hyper(shard::default_group, "lr"), 0.25);
  EXPECT_THAT(engine.group_text(shard::default_group),
              ::testing::StartsWith("adamw?lr=0.25&"));
  expect_error([&] { engine.set_hyper(shard::all_groups, "speed", 1); },
               Code::not_found, {"speed"});
  EXPECT_EQ(engine.loss_scale(), 1024);
  engine.set_loss_scale(512, 3);
  EXPECT_EQ(engine.loss_scale(), 512);
  EXPECT_EQ(engine.growth_tracker(), 3);
  engine.set_completed_steps(41);
  EXPECT_EQ(engine.completed_steps(), 41);
  engine.set_state(net.bias, "exp_avg", std::vector<float>(40, 0.5f));
  expect_error(
      [&] { engine.set_state(net.bias, "exp_avg", std::vector<float>(3)); },
      Code::invalid_argument, {"40"});
  EXPECT_GT(engine.memory().state_bytes, 0u);
}

TEST(ReplanTest, GivesParametersAGroupAndFreezesThem) {
  const Net net;
  run_ranks(2, [&](Comm& comm) {
    Engine engine = engine_of(net, 2, comm);
    const GroupId group = engine.add_param_group("?lr=0.125", {net.bias});
    EXPECT_EQ(engine.plan().param_info(net.bias).group, group);
    EXPECT_EQ(engine.hyper(group, "lr"), 0.125);
    train_step(engine);
    EXPECT_EQ(values_of(engine, net.bias)[0], 0.125f);
    EXPECT_EQ(values_of(engine, net.weight)[0], 0.5f);

    engine.set_trainable({net.bias}, false);
    Unit unit =
        engine.unit_acquire(engine.plan().unit_of(net.bias), Pass::backward);
    for (const shard::UnitParam& param : unit.params()) {
      EXPECT_EQ(param.grad.empty(), param.param == net.bias);
    }
    expect_error([&] { (void)unit.grad<float>(net.bias); },
                 Code::failed_precondition, {"frozen"});
    expect_error([&] { engine.set_trainable({net.bias}, true); },
                 Code::failed_precondition);
    unit.release();
    expect_error([&] { engine.set_trainable({ParamId{77}}, true); },
                 Code::invalid_argument, {"77"});
  });
}

TEST(ScheduleTest, ComputesLearningRates) {
  const char* const cosine = "cosine?lr=0.5&warmup=10&total=100&min_lr=0.1";
  EXPECT_TRUE(shard::devices_json().starts_with("{\"cuda\":{\"driver\":"));
  EXPECT_DOUBLE_EQ(shard::schedule_lr(cosine, 5), 0.25);
  EXPECT_DOUBLE_EQ(shard::schedule_lr(cosine, 500), 0.1);
  expect_error([] { (void)shard::schedule_lr("sawtooth", 1); },
               Code::invalid_argument, {"sawtooth"});
}

}  // namespace
}  // namespace shard_sdk_testing::engine_test
