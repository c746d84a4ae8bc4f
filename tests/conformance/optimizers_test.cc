// SPDX-License-Identifier: Apache-2.0
//
// Compares the engine with PyTorch's own optimizer runs, number for number: at
// 1 to 4 ranks, with parameters cut evenly or owned whole, on every instruction
// set of this machine. Parameters are compared at the recorded steps, states at
// the end.

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/engine/engine.h"
#include "core/flat/plan.h"
#include "core/model/model.h"
#include "core/optim/groups.h"
#include "kernels/cpu/target.h"
#include "tests/conformance/golden.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/device/guard_memory.h"
#include "tests/core/engine/create_engine.h"
#include "tests/core/engine/thread_ranks.h"

namespace shard::optimizers_test {
namespace {

using nlohmann::json;
using testing::KernelView;

// Returns the optimizer of a group in our text form.
std::string TextOf(const std::string& name, const json& group) {
  // Pairs in torch that are two hyperparameters each here.
  static const std::map<std::string, std::array<const char*, 2>> kPairs = {
      {"betas", {"beta1", "beta2"}},
      {"etas", {"etaminus", "etaplus"}},
      {"step_sizes", {"step_size_min", "step_size_max"}},
  };
  std::string text;
  for (const char c : name) text += static_cast<char>(std::tolower(c));
  text += '?';
  const auto add = [&text](std::string_view key, double value) {
    StrAppend(&text, text.back() == '?' ? "" : "&", key, "=", value);
  };
  for (const auto& [key, value] : group.items()) {
    if (key == "foreach") continue;
    // torch fills the sums from the argument of Adagrad's constructor, which
    // these runs left at 0, and does not look at the group's value.
    if (key == "initial_accumulator_value") continue;
    const auto pair = kPairs.find(key);
    if (pair != kPairs.end()) {
      for (size_t i = 0; i < 2; ++i) add(pair->second[i], value.at(i));
    } else if (value.is_boolean()) {
      add(key, value.get<bool>() ? 1 : 0);
    } else {
      add(key, value);
    }
  }
  return text;
}

// The sizes of the parameters that each group's elements are cut into: they
// have no common divisor, and one is empty.
constexpr int64_t kCuts[] = {11, 0, 8, 5};

// The values of an engine after a step, by group and element.
struct Snapshot {
  std::vector<std::vector<float>> params;
  std::vector<std::map<std::string, std::vector<float>>> states;
};

// Runs the steps of one case on an engine.
class CaseRun {
 public:
  CaseRun(const json& golden, Partition partition, int world_size)
      : golden_(golden), partition_(partition), world_size_(world_size) {
    const std::string name = golden.at("optimizer");
    for (const json& group : golden.at("groups")) {
      texts_.push_back(TextOf(name, group));
    }
    steps_ = golden.at("steps");
  }

  // Runs all steps. Compares parameters at every recorded step, and states at
  // the end.
  void Run() {
    const std::string what =
        StrCat(texts_[0], texts_.size() > 1 ? " and " + texts_[1] : "", ", ",
               world_size_, " ranks, ",
               partition_ == Partition::kEven ? "even, " : "greedy, ",
               KernelTargetName());
    SCOPED_TRACE(what);
    const auto plan = MakePlan();
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    Snapshot empty;
    for (size_t g = 0; g < texts_.size(); ++g) {
      empty.params.emplace_back(Numel());
      empty.states.emplace_back();
      for (const StateTensor& state : (*plan)->options().groups[g].states) {
        empty.states[g][state.name].resize(Numel());
      }
    }
    history_.assign(static_cast<size_t>(steps_), empty);
    RunThreadRanks(world_size_, [&](const std::shared_ptr<Communicator>& comm) {
      RunRank(*plan, comm);
    });
    if (::testing::Test::HasFailure()) return;
    for (size_t g = 0; g < texts_.size(); ++g) {
      CompareParams(g);
      CompareStates(g);
    }
  }

 private:
  size_t Numel() const { return golden_.at("init")[0].size(); }

  StatusOr<std::shared_ptr<const Plan>> MakePlan() const {
    auto model = std::make_shared<Model>();
    for (size_t g = 0; g < texts_.size(); ++g) {
      std::vector<ParamId> members;
      for (const int64_t cut : kCuts) {
        const auto param =
            model->AddParam(kRootModule, StrCat("p", model->params().size()),
                            DType::kF32, {cut});
        SHARD_RETURN_IF_ERROR(param.status());
        members.push_back(*param);
      }
      if (g == 0) continue;
      SHARD_RETURN_IF_ERROR(model->AddParamGroup(texts_[g], members).status());
    }
    PlanOptions options;
    options.world_size = world_size_;
    options.partition = partition_;
    // Ranges are as small as they can be, so that every rank has some elements.
    options.alignment_bytes = 4;
    SHARD_ASSIGN_OR_RETURN(options.groups, PlanGroups(*model, texts_[0]));
    return Plan::Create(model, options);
  }

  // Calls `visit(group, param, first element in the group, elements)`.
  template <typename Visit>
  void ForEachParam(Visit visit) const {
    ParamId param = 0;
    for (size_t g = 0; g < texts_.size(); ++g) {
      int64_t begin = 0;
      for (const int64_t cut : kCuts) {
        visit(g, param++, static_cast<size_t>(begin), static_cast<size_t>(cut));
        begin += cut;
      }
    }
  }

  void RunRank(const std::shared_ptr<const Plan>& plan,
               const std::shared_ptr<Communicator>& comm) {
    auto made = CreateEngine(plan, comm, EngineOptions());
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    Engine& engine = **made;
    ForEachParam([&](size_t g, ParamId param, size_t begin, size_t count) {
      const auto init = golden_.at("init")[g].get<std::vector<float>>();
      const Status set =
          engine.SetParam(param, init.data() + begin, count * sizeof(float));
      EXPECT_TRUE(set.ok()) << set.ToString();
    });
    ASSERT_TRUE(engine.BroadcastParams(0).ok());
    const json& change = golden_.at("lr_change");
    for (int64_t step = 1; step <= steps_; ++step) {
      // The ranks' gradients are equal, so each one is their mean.
      ForEachParam([&](size_t g, ParamId param, size_t begin, size_t count) {
        const auto gradient =
            golden_.at("grads")[g][static_cast<size_t>(step - 1)]
                .get<std::vector<float>>();
        std::copy_n(gradient.data() + begin, count,
                    FloatsOf(*engine.Grad(param)));
      });
      if (!change.is_null() && change[0] == step - 1) {
        const Status set = engine.SetHyper(kAllGroups, "lr", change[1]);
        ASSERT_TRUE(set.ok()) << set.ToString();
      }
      StepReport report;
      const Status stepped = engine.Step(StepOptions(), &report);
      ASSERT_TRUE(stepped.ok()) << stepped.ToString();
      EXPECT_EQ(report.step, step);
      Record(engine, comm->rank(), &history_[static_cast<size_t>(step - 1)]);
    }
  }

  // Records the elements that this rank owns.
  void Record(const Engine& engine, int rank, Snapshot* snapshot) const {
    ForEachParam([&](size_t g, ParamId param, size_t begin, size_t count) {
      const ParamPlace& place =
          engine.plan().places()[static_cast<size_t>(param)];
      const EngineBuffer& buffer =
          engine.memory().buffers()[static_cast<size_t>(place.buffer)];
      const int64_t shard = buffer.plan->layout.shard_numel();
      for (size_t i = 0; i < count; ++i) {
        const int64_t at = place.offset + static_cast<int64_t>(i);
        if (at / shard != rank) continue;
        snapshot->params[g][begin + i] =
            *KernelView(static_cast<const float*>(buffer.ParamAt(at)));
        for (size_t s = 0; s < buffer.states.size(); ++s) {
          snapshot->states[g][buffer.plan->states[s].tensor.name][begin + i] =
              KernelView(
                  reinterpret_cast<const float*>(buffer.states[s]))[at % shard];
        }
      }
    });
  }

  // Allows 2e-7 + 2e-6 m, m the largest magnitude of that element so far.
  void CompareParams(size_t g) const {
    const auto init = golden_.at("init")[g].get<std::vector<double>>();
    std::vector<double> largest(init.size());
    for (size_t i = 0; i < init.size(); ++i) largest[i] = std::abs(init[i]);
    for (int64_t step = 1; step <= steps_; ++step) {
      const auto recorded =
          golden_.at("params_after").find(std::to_string(step));
      if (recorded == golden_.at("params_after").end()) continue;
      const auto expected = (*recorded)[g].get<std::vector<double>>();
      const auto& param = history_[static_cast<size_t>(step - 1)].params[g];
      ASSERT_EQ(expected.size(), param.size());
      for (size_t i = 0; i < param.size(); ++i) {
        largest[i] = std::max(largest[i], std::abs(expected[i]));
        EXPECT_NEAR(static_cast<double>(param[i]), expected[i],
                    2e-7 + 2e-6 * largest[i])
            << "group " << g << ", step " << step << ", element " << i;
      }
    }
  }

  // Allows 1e-6 m, m the largest magnitude that the element of the state ever
  // had: ten steps round some ten times by at most 2^-24 = 6e-8 of it, and so
  // does torch. There is no absolute tolerance, so that second moments of 1e-24
  // are compared too.
  void CompareStates(size_t g) const {
    const json& golden = golden_.at("state_after")[g];
    const auto& states = history_.back().states[g];
    // SGD has no "step" in torch.
    EXPECT_EQ(golden.value("step", steps_), steps_);
    EXPECT_EQ(golden.size() - golden.count("step"), states.size());
    for (const auto& [name, values] : states) {
      ASSERT_TRUE(golden.contains(name)) << name;
      const auto expected = golden.at(name).get<std::vector<double>>();
      ASSERT_EQ(expected.size(), values.size());
      for (size_t i = 0; i < values.size(); ++i) {
        double largest = std::abs(expected[i]);
        for (const Snapshot& snapshot : history_) {
          largest = std::max<double>(largest,
                                     std::abs(snapshot.states[g].at(name)[i]));
        }
        EXPECT_NEAR(static_cast<double>(values[i]), expected[i], 1e-6 * largest)
            << "group " << g << ", " << name << ", element " << i;
      }
    }
  }

  const json& golden_;
  const Partition partition_;
  const int world_size_;
  std::vector<std::string> texts_;  // By group.
  int64_t steps_ = 0;
  std::vector<Snapshot> history_;  // By step.
};

TEST(OptimizersTest, MatchTorch) {
  const json document = LoadGolden("optimizers.json");
  const json cases = document.value("cases", json::array());
  std::set<std::string> names;
  size_t groups = 0;
  // Builds for sanitizers have one instruction set only.
  const auto supported =
      static_cast<uint32_t>(hwy::SupportedTargets() & HWY_TARGETS);
  ASSERT_NE(supported, 0u) << "no instruction set that was compiled runs here";
  for (const json& golden : cases) {
    names.insert(golden.at("optimizer").get<std::string>());
    groups += golden.at("groups").size();
    for (uint32_t bit = 1; bit != 0; bit <<= 1) {
      if ((supported & bit) == 0) continue;
      // A GPU has one. On the guard device, who touches tensors is the
      // question, and on several hosts, who has which gradients: the widest
      // instruction set answers for all.
      if ((TestsAreOn("guarded") || TestsAreOn("tcp") ||
           testing::TestsAreOnGpu()) &&
          bit != (supported & -supported)) {
        continue;
      }
      hwy::SetSupportedTargetsForTest(bit);
      for (int world_size = 1; world_size <= 4; ++world_size) {
        for (const Partition partition :
             {Partition::kEven, Partition::kGreedy}) {
          // Under a sanitizer, with NCCL and on several hosts, each number of
          // ranks with one partition.
          if ((kSanitized || TestsAreOn("fake_nccl") || TestsAreOn("tcp")) &&
              (world_size % 2 == 0) != (partition == Partition::kEven)) {
            continue;
          }
          CaseRun(golden, partition, world_size).Run();
        }
      }
      if (HasFailure()) break;
    }
    hwy::SetSupportedTargetsForTest(0);
    if (HasFailure()) break;  // One failing case shows enough.
  }
  EXPECT_EQ(cases.size(), 49u);
  EXPECT_EQ(groups, 68u);
  EXPECT_EQ(names.size(), 8u);
}

}  // namespace
}  // namespace shard::optimizers_test
