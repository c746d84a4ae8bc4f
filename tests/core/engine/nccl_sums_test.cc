// SPDX-License-Identifier: Apache-2.0
//
// The sums of engines whose ranks have a GPU each, over the fakes of the driver
// and of NCCL, beside those of engines on processors: which bits gradients and
// norms have, which calls of NCCL a step makes, and what engines count.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/engine/engine.h"
#include "core/engine/transfer/collectives_memory.h"
#include "core/observe/observer.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/norm.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/nccl_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/core/engine/unit_training.h"
#include "tests/core/flat/sharding.h"
#include "tests/fake_nccl/fake_nccl_fixture.h"

namespace shard::nccl_sums_test {
namespace {

using cuda_training::Fill;
using nccl_training::Form;
using nccl_training::MakeEngineOn;
using testing::FakeNccl;
using testing::fake_nccl::Counts;

// So many that sharding gradients and parameters of two ranks saves memory.
constexpr int kUnits = 5;
// The elements of a unit's buffer.
constexpr int kElements = 3000;
constexpr int kSteps = 2;

testing::fake_cuda::Options Gpus(int count) {
  testing::fake_cuda::Options options;
  options.devices = count;
  return options;
}

struct Sums {
  int stage;
  int group_size = 0;
  bool deterministic = false;
  int ranks = 4;
  // Steps of AdamW that clip, else of SGD that do not.
  bool clips = false;
  DType narrow = DType::kBF16;  // Half of the parameters have it.

  bool has_narrow() const { return !clips || ranks != 2; }

  std::string Name() const {
    return StrCat("stage", stage, "_of", ranks, group_size > 0 ? "_groups" : "",
                  deterministic ? "_deterministic" : "",
                  narrow == DType::kF16 ? "_f16" : "");
  }
};

std::ostream& operator<<(std::ostream& out, const Sums& sums) {
  return out << sums.Name();
}

// A unit has a buffer of each dtype. A clipped step of two ranks has f32 alone:
// the f32 sums of a half of 16-bit gradients take as much memory as the
// gradients, so such a plan would shard none.
std::shared_ptr<const Plan> PlanOf(const Sums& sums) {
  UnitTraining training;
  training.model = std::make_shared<Model>("Net");
  for (int u = 0; u < kUnits; ++u) {
    const ModuleId block =
        *training.model->AddModule(kRootModule, StrCat("block", u), "Block");
    for (const DType dtype : {DType::kF32, sums.narrow}) {
      if (dtype == sums.narrow && !sums.has_narrow()) continue;
      EXPECT_OK(training.model->AddParam(block, DTypeName(dtype), dtype,
                                         {kElements}));
    }
  }
  training.optimizer = sums.clips ? "adamw?lr=0.1" : "sgd?lr=0.5";
  training.wrap = "class?names=Block";
  training.plan.world_size = sums.ranks;
  training.plan.stage = sums.stage;
  training.plan.shard_group_size = sums.group_size;
  training.plan.deterministic = sums.deterministic;
  training.plan.prefetch = 0;
  const auto plan = ::shard::PlanOf(training);
  EXPECT_OK(plan);
  EXPECT_TRUE(sums.stage == 0 || ShardsAsItsStage(**plan));
  return *plan;
}

// Returns what an engine tells of its sums: in shard groups two levels of them,
// unless they are deterministic.
std::string SumsText(const Sums& sums) {
  const std::string orders =
      StrCat(R"(,"f32":")", sums.deterministic ? "ranks" : "library", R"(")",
             sums.has_narrow()
                 ? StrCat(R"(,")", DTypeName(sums.narrow), R"(":"ranks")")
                 : "",
             "}");
  const int group = sums.deterministic ? 0 : sums.group_size;
  return group == 0 ? StrCat(R"("sums":[{"ranks":)", sums.ranks, orders, "]")
                    : StrCat(R"("sums":[{"ranks":)", group, orders,
                             R"(,{"ranks":)", sums.ranks / group, orders, "]");
}

// Values of many exponents, whose sum depends on the order of addition.
float GradientOf(int rank, ParamId param, int64_t i) {
  const auto x = static_cast<uint32_t>(i * 31 + param * 7 + rank * 1013 + 1);
  const uint32_t hash = (x * 2654435761u) >> 8;
  return (static_cast<float>(hash % 20011) / 10007 - 1) *
         static_cast<float>(1 << (hash % 7));
}

// `report`: as for Engine::Step.
Status TrainOnce(Engine* engine, int rank, const StepOptions& options,
                 StepReport* report) {
  SHARD_RETURN_IF_ERROR(engine->Synchronize(0));
  const auto units = static_cast<int32_t>(engine->plan().units().size());
  for (int32_t unit = units; unit-- > 0;) {
    SHARD_RETURN_IF_ERROR(engine->UnitAcquire(unit, Pass::kBackward, 0));
    for (const ParamId param : cuda_training::ParamsOf(engine->plan(), unit)) {
      SHARD_ASSIGN_OR_RETURN(const Engine::Tensor grad, engine->Grad(param));
      SHARD_RETURN_IF_ERROR(engine->Synchronize(0));
      std::vector<float> values(static_cast<size_t>(grad.numel));
      for (int64_t i = 0; i < grad.numel; ++i) {
        values[static_cast<size_t>(i)] = GradientOf(rank, param, i);
      }
      Store(
          engine->plan().buffer(engine->plan().place(param).buffer).grad_dtype,
          values, grad.data);
    }
    SHARD_RETURN_IF_ERROR(engine->MarkUnitGradsReady(unit));
    SHARD_RETURN_IF_ERROR(engine->UnitRelease(unit));
  }
  return engine->Step(options, report);
}

using MovedCounts = std::map<std::string, EventCounter>;

// Returns a rank's counters of the events that move tensors.
MovedCounts CountMoved(const Communicator& comm) {
  MovedCounts counts;
  for (const char* const event :
       {"gather", "reduce", "publish", "reduce_scatter", "all_gather_blocks",
        "broadcast"}) {
    const auto counter = comm.observer()->counters().Find(event);
    EXPECT_OK(counter);
    counts[event] = *counter;
  }
  return counts;
}

// Returns what was moved since `before`, one event a line.
std::string TextSince(MovedCounts before, const MovedCounts& now) {
  std::string text;
  for (const auto& [event, counter] : now) {
    StrAppend(&text, event, ": ", counter.calls - before[event].calls,
              " calls, ", counter.bytes - before[event].bytes, " bytes\n");
  }
  return text;
}

// Returns that text of the steps of Train, for each rank, from the sizes alone.
// Each rank owns a block of a buffer, of whole 64 bytes. With r groups of g
// ranks, the g - 1 peers of its group hold r blocks each, and its r - 1
// replicas own one each: a rank sends as many, of gradients to their owners and
// of parameters to those that need them.
std::string TextOfSteps(const Sums& sums) {
  const auto ranks = static_cast<uint64_t>(sums.ranks);
  const uint64_t group =
      sums.group_size > 0 ? static_cast<uint64_t>(sums.group_size) : ranks;
  const uint64_t groups = ranks / group;
  const auto block_of = [&](uint64_t element_bytes) {
    const uint64_t bytes = (kElements + ranks - 1) / ranks * element_bytes;
    return (bytes + 63) / 64 * 64;
  };
  const uint64_t blocks = block_of(4) + (sums.has_narrow() ? block_of(2) : 0);
  const uint64_t units = kSteps * kUnits;
  const uint64_t buffers = units * (sums.has_narrow() ? 2 : 1);
  const uint64_t levels = groups > 1 && !sums.deterministic ? 2 : 1;
  const uint64_t in_group = units * blocks * (group - 1) * groups;
  const uint64_t between = units * blocks * (groups - 1);
  const bool gathers = sums.stage == 3;
  // Blocks of whole parameters go to all ranks, others to replicas.
  const uint64_t publish_bytes = between + (gathers ? 0 : in_group);
  const uint64_t publish_levels = (groups > 1 ? 1u : 0u) + (gathers ? 0u : 1u);
  const uint64_t gather_bytes = gathers ? in_group : 0;
  MovedCounts counts;
  const auto set = [&](const char* event, uint64_t calls, uint64_t bytes) {
    counts[event].calls = calls;
    counts[event].bytes = bytes;
  };
  set("gather", gathers ? units : 0, gather_bytes);
  set("reduce", units, in_group + between);
  set("publish", publish_bytes > 0 ? buffers : 0, publish_bytes);
  set("reduce_scatter", buffers * levels, in_group + between);
  // A norm is the sum of the ranks' own.
  const uint64_t norms = sums.clips ? kSteps : 0;
  set("all_gather_blocks",
      buffers * (publish_levels + (gathers ? 1 : 0)) + norms,
      gather_bytes + publish_bytes + norms * (ranks - 1) * sizeof(NormSum));
  set("broadcast", 0, 0);
  return TextSince({}, counts);
}

// The parameters of rank 0 after the steps, by dtype.
struct Result {
  std::vector<float> f32;
  std::vector<float> narrow;
  std::vector<double> norms;  // Rank 0's, by step.
  // By rank, with the first values and the reads of the result, and without.
  std::vector<std::string> moved;
  std::vector<std::string> moved_by_steps;
};

Status ReadParams(Engine* engine, Result* result) {
  SHARD_RETURN_IF_ERROR(engine->Summon(0, -1, 0));
  SHARD_RETURN_IF_ERROR(engine->Synchronize(0));
  const auto& params = engine->plan().model().params();
  for (size_t p = 0; p < params.size(); ++p) {
    SHARD_ASSIGN_OR_RETURN(const Engine::Tensor param,
                           engine->Param(static_cast<ParamId>(p)));
    std::vector<float> values(static_cast<size_t>(param.numel));
    Widen(params[p].dtype, param.data, values.data(), values.size());
    auto& all = params[p].dtype == DType::kF32 ? result->f32 : result->narrow;
    all.insert(all.end(), values.begin(), values.end());
  }
  return engine->EndSummon(false, 0);
}

// Trains kSteps steps. `counts` receives what NCCL did in the last on rank 0.
// `link`: as for RunThreadRanks.
Result Train(const std::string& device, const Sums& sums, Counts* counts,
             const testing::fake_nccl::Options& options = {},
             const std::string& link = "direct=0") {
  const FakeNccl fake(Gpus(sums.ranks), options);
  const auto plan = PlanOf(sums);
  Result result;
  result.moved.resize(static_cast<size_t>(sums.ranks));
  result.moved_by_steps.resize(static_cast<size_t>(sums.ranks));
  RunThreadRanks(
      sums.ranks,
      [&](const std::shared_ptr<Communicator>& comm) {
        const auto engine = MakeEngineOn(device, plan, comm);
        ASSERT_OK(engine);
        if (device != "cpu") {
          const CollectivesMemory used = (*engine)->collectives_memory();
          const CollectivesMemory planned =
              CollectivesMemoryOf(*plan, Transport::kNccl);
          EXPECT_EQ(used.device_bytes, planned.device_bytes);
          EXPECT_EQ(used.host_bytes, planned.host_bytes);
          EXPECT_EQ(used.host_bytes, 0u);
          const std::string json = (*engine)->ToJson();
          EXPECT_NE(json.find(SumsText(sums)), std::string::npos) << json;
        }
        // The making of an engine broadcasts NCCL's identifiers.
        const MovedCounts made = CountMoved(*comm);
        ASSERT_OK(Fill(engine->get()));
        ASSERT_OK((*engine)->Synchronize(0));
        const MovedCounts filled = CountMoved(*comm);
        const testing::fake_nccl::Target me = {.rank = comm->rank()};
        Counts before;
        for (int step = 1; step <= kSteps; ++step) {
          ASSERT_OK((*engine)->Synchronize(0));
          before = testing::fake_nccl::Count(me);
          StepReport report;
          ASSERT_OK(
              TrainOnce(engine->get(), comm->rank(),
                        sums.clips ? cuda_training::Clipped() : StepOptions(),
                        sums.clips ? &report : nullptr));
          if (comm->rank() == 0) result.norms.push_back(report.grad_norm);
        }
        ASSERT_OK((*engine)->Synchronize(0));
        Counts after = testing::fake_nccl::Count(me);
        if (comm->rank() == 0) {
          counts->launches = after.launches - before.launches;
          for (const auto& [symbol, count] : after.calls) {
            counts->calls[symbol] = count - before.Calls(symbol);
          }
        }
        result.moved_by_steps[static_cast<size_t>(comm->rank())] =
            TextSince(filled, CountMoved(*comm));
        Result read;
        ASSERT_OK(ReadParams(engine->get(), &read));
        result.moved[static_cast<size_t>(comm->rank())] =
            TextSince(made, CountMoved(*comm));
        if (comm->rank() == 0) {
          result.f32 = read.f32;
          result.narrow = read.narrow;
        }
      },
      30, link);
  return result;
}

double Difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(static_cast<double>(a[i]) - b[i]));
  }
  return most;
}

// The same operations move the same bytes, whoever moves them: in steps those
// of the sizes.
void ExpectMoved(const Sums& sums, const Result& gpus, const Result& cpus) {
  const std::string steps = TextOfSteps(sums);
  ASSERT_EQ(gpus.moved.size(), cpus.moved.size());
  for (size_t rank = 0; rank < gpus.moved.size(); ++rank) {
    EXPECT_EQ(gpus.moved_by_steps[rank], steps) << "rank " << rank;
    EXPECT_EQ(cpus.moved_by_steps[rank], steps) << "rank " << rank;
    EXPECT_EQ(gpus.moved[rank], cpus.moved[rank]) << "rank " << rank;
  }
}

class NcclSumsTest : public ::testing::TestWithParam<Sums> {};

// The sums of f32 gradients are NCCL's, all others are those of ranks on
// processors. Deterministic ones are those of ranks that share memory, too.
TEST_P(NcclSumsTest, HaveTheBitsAndTheCallsOfTheirOrder) {
  const Sums& sums = GetParam();
  Counts counts;
  const Result gpus = Train("cuda", sums, &counts);
  ASSERT_EQ(gpus.f32.size(), size_t{kElements} * kUnits);
  ASSERT_EQ(gpus.narrow.size(), size_t{kElements} * kUnits);
  Counts none;
  const Result cpus = Train("cpu", sums, &none);
  ASSERT_EQ(cpus.f32.size(), gpus.f32.size());
  ExpectMoved(sums, gpus, cpus);
  // The thread sanitizer's configuration has no fused multiply-add on the CPU.
  if (SHARD_TESTS_THREAD_SANITIZER == 0) {
    EXPECT_TRUE(gpus.narrow == cpus.narrow);
    // The sum of two ranks is the same in either order.
    const bool same =
        sums.deterministic || sums.group_size > 0 || sums.ranks == 2;
    EXPECT_EQ(gpus.f32 == cpus.f32, same);
  }
  EXPECT_LT(Difference(gpus.f32, cpus.f32), 1e-4);
  if (sums.deterministic) {
    const Result shared = Train("cpu", sums, &none, {}, "direct=1");
    ASSERT_EQ(shared.f32.size(), gpus.f32.size());
    if (SHARD_TESTS_THREAD_SANITIZER == 0) {
      EXPECT_TRUE(gpus.f32 == shared.f32);
      EXPECT_TRUE(gpus.narrow == shared.narrow);
    }
  }

  const bool two_levels = sums.group_size > 0 && !sums.deterministic;
  const uint64_t levels = two_levels ? 2 : 1;
  // The peers of one level.
  const uint64_t peers = two_levels ? 1 : static_cast<uint64_t>(sums.ranks - 1);
  const uint64_t by_nccl = sums.deterministic ? 0 : 1;
  EXPECT_EQ(counts.Calls("ncclReduceScatter"), by_nccl * kUnits * levels);
  EXPECT_EQ(counts.Calls("ncclSend"), (2 - by_nccl) * kUnits * levels * peers);
  EXPECT_EQ(counts.Calls("ncclRecv"), counts.Calls("ncclSend"));
  // The collectives of a unit are one launch for each level; those that publish
  // a buffer, to replicas and where parameters are whole to the group, come
  // with its update.
  const bool gathers = sums.stage == 3;
  const uint64_t publishes =
      (sums.group_size > 0 ? 1u : 0u) + (gathers ? 0u : 1u);
  EXPECT_EQ(counts.Calls("ncclAllGather"),
            2 * kUnits * (publishes + (gathers ? 1 : 0)));
  EXPECT_EQ(counts.launches,
            kUnits * (levels + 2 * publishes + (gathers ? 1 : 0)));
}

INSTANTIATE_TEST_SUITE_P(
    Forms, NcclSumsTest,
    ::testing::Values(Sums{0}, Sums{1}, Sums{2}, Sums{3}, Sums{1, 2},
                      Sums{2, 2}, Sums{3, 2}, Sums{1, 2, true},
                      Sums{2, 2, true}, Sums{0, 0, true}, Sums{1, 0, true},
                      Sums{2, 0, true}, Sums{3, 0, true}, Sums{3, 2, true},
                      Sums{1, 0, false, 2}, Sums{2, 0, false, 3},
                      Sums{3, 0, false, 2}, Sums{3, 0, false, 3},
                      Sums{.stage = 1, .narrow = DType::kF16},
                      Sums{.stage = 2, .narrow = DType::kF16},
                      Sums{.stage = 3, .narrow = DType::kF16},
                      Sums{3, 2, false, 4, false, DType::kF16},
                      Sums{1, 0, true, 4, false, DType::kF16},
                      Sums{3, 0, true, 4, false, DType::kF16}),
    [](const auto& info) { return info.param.Name(); });

class NcclClippingTest : public ::testing::TestWithParam<Sums> {};

// Norms pass through NCCL, and a clipped step has the bits of processors.
TEST_P(NcclClippingTest, HasTheBitsOfProcessors) {
  const Sums& sums = GetParam();
  Counts counts;
  const Result gpus = Train("cuda", sums, &counts);
  ASSERT_EQ(gpus.f32.size(), size_t{kElements} * kUnits);
  EXPECT_GT(counts.Calls("ncclSend"), 0u);
  EXPECT_EQ(counts.Calls("ncclReduceScatter"), 0u);
  Counts none;
  const Result cpus = Train("cpu", sums, &none);
  ExpectMoved(sums, gpus, cpus);
  ASSERT_EQ(gpus.norms.size(), size_t{kSteps});
  // The clipping does something.
  EXPECT_GT(gpus.norms[0], 1);
  EXPECT_EQ(gpus.norms, cpus.norms);
  // As above.
  if (SHARD_TESTS_THREAD_SANITIZER == 0) {
    EXPECT_TRUE(gpus.f32 == cpus.f32);
    EXPECT_TRUE(gpus.narrow == cpus.narrow);
  }
}

// Four ranks take the same paths as three, but for groups.
INSTANTIATE_TEST_SUITE_P(
    Forms, NcclClippingTest,
    ::testing::Values(Sums{0, 0, true, 2, true}, Sums{0, 0, true, 3, true},
                      Sums{1, 0, true, 2, true}, Sums{1, 0, true, 3, true},
                      Sums{2, 0, true, 2, true}, Sums{2, 0, true, 3, true},
                      Sums{3, 0, true, 2, true}, Sums{3, 0, true, 3, true},
                      Sums{3, 2, true, 4, true},
                      Sums{1, 0, true, 3, true, DType::kF16},
                      Sums{3, 0, true, 3, true, DType::kF16}),
    [](const auto& info) { return info.param.Name(); });

// Steps of other forms move the same bytes, too.
struct Moves {
  const char* name;
  Form form;
  bool joins = false;  // Rank 1 joins after its first step.
};

class NcclMovesTest : public ::testing::TestWithParam<Moves> {};

TEST_P(NcclMovesTest, AreThoseOfProcessors) {
  const Moves& moves = GetParam();
  const Form& form = moves.form;
  const auto plan = nccl_training::MakePlan(form);
  std::vector<std::string> moved[2];
  for (const bool on_gpus : {false, true}) {
    const FakeNccl fake(Gpus(form.world_size));
    auto& texts = moved[on_gpus];
    texts.resize(static_cast<size_t>(form.world_size));
    RunThreadRanks(
        form.world_size,
        [&](const std::shared_ptr<Communicator>& comm) {
          nccl_training::RankTraining training(form, plan, comm, 20,
                                               on_gpus ? "cuda" : "cpu");
          ASSERT_OK(training.Create());
          ASSERT_OK(training.Fill());
          ASSERT_OK(training.Synchronize());
          const MovedCounts filled = CountMoved(*comm);
          const bool joins = moves.joins && comm->rank() == 1;
          for (int step = 1; step <= (joins ? 1 : 3); ++step) {
            ASSERT_OK(training.Step(step));
          }
          int64_t steps = 0;
          if (moves.joins) ASSERT_OK(training.Join(&steps));
          EXPECT_EQ(steps, joins ? 2 : 0);
          ASSERT_OK(training.Synchronize());
          texts[static_cast<size_t>(comm->rank())] =
              TextSince(filled, CountMoved(*comm));
        },
        30, "direct=0");
  }
  EXPECT_EQ(moved[1], moved[0]);
  EXPECT_NE(moved[1][0].find("reduce: "), std::string::npos);
  EXPECT_EQ(moved[1][0].find("reduce: 0 calls"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(
    Forms, NcclMovesTest,
    ::testing::Values(
        Moves{"overlap", {.stage = 2, .overlap = true}},
        Moves{"passes", {.stage = 3, .passes = 2}},
        Moves{"prefetch", {.stage = 3, .prefetch = 2, .units = 8}},
        Moves{"whole_grads", {.stage = 3, .whole_grads = true, .passes = 2}},
        Moves{"kept", {.stage = 3, .keep_after_forward = true}},
        Moves{"f32_grads",
              {.stage = 2, .dtype = DType::kBF16, .f32_grads = true}},
        Moves{"missing", {.stage = 1, .lacks = 1}},
        Moves{"missing_of_groups",
              {.world_size = 4, .stage = 3, .shard_group_size = 2, .lacks = 1}},
        Moves{"join_of_stage1", {.stage = 1}, true},
        Moves{"join_of_stage3", {.stage = 3}, true}),
    [](const auto& info) { return info.param.name; });

// An NCCL that registers nothing moves and adds the same.
TEST(NcclMemoryTest, RegisteredMemoryHasTheSameBits) {
  for (const Sums& sums : {Sums{1}, Sums{3, 2}}) {
    SCOPED_TRACE(StrCat("stage ", sums.stage));
    Counts counts;
    const Result registered = Train("cuda", sums, &counts);
    EXPECT_GT(testing::fake_nccl::Count().Calls("ncclCommRegister"), 0u);
    const Result plain = Train("cuda", sums, &counts, {.version = 21805});
    EXPECT_EQ(testing::fake_nccl::Count().Calls("ncclMemAlloc"), 0u);
    ASSERT_EQ(registered.f32.size(), size_t{kElements} * kUnits);
    EXPECT_TRUE(registered.f32 == plain.f32);
    EXPECT_TRUE(registered.narrow == plain.narrow);
  }
}

}  // namespace
}  // namespace shard::nccl_sums_test
