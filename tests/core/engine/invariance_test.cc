// SPDX-License-Identifier: Apache-2.0
//
// The bits of a run depend on values, hyperparameters and the seed. They do not
// depend on the number of ranks, on who owns which elements, or on the size of
// buckets. Nor do they depend on who moves tensors: ranks that have a GPU each
// reach the bits of ranks on processors.

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/core/base/sanitizers.h"
#include "tests/core/engine/training.h"

namespace shard::invariance_test {
namespace {

struct Case {
  const char* name;
  const char* optimizer;
  DType dtype = DType::kF32;
  bool f32_grads = false;
  Masters masters = Masters::kF32;
};

class InvarianceTest : public ::testing::TestWithParam<Case> {};

// Returns shapes that are larger than a block of 256 and than a tile, whose
// sizes no world size divides, a scalar and an empty one. For Muon, all are
// matrices, some of one shape.
std::vector<std::vector<int64_t>> ShapesFor(const std::string& optimizer) {
  if (optimizer.substr(0, 4) == "muon") {
    return {{33, 70}, {9, 4}, {33, 70}, {4, 9}, {0, 4}, {1, 12}, {9, 4}};
  }
  return {{33, 70}, {5}, {}, {0, 4}, {1029}, {2, 3, 4}, {1}};
}

// Whether ranks are on NCCL and reach the bits of processors, which multiply
// Muon's matrices in another order.
bool HasBitsOfProcessors(const Case& c) {
  return testing::TestsAreOn("fake_nccl") &&
         std::string(c.optimizer).substr(0, 4) != "muon";
}

Training TrainingOf(const Case& c) {
  Training training;
  training.model = ModelOf(ShapesFor(c.optimizer), c.dtype);
  training.optimizer = c.optimizer;
  training.plan.f32_grads = c.f32_grads;
  training.plan.masters = c.masters;
  training.plan.seed = 77;
  return training;
}

TEST_P(InvarianceTest, BitsDependOnNeitherWorldSizeNorPartition) {
  const Case& c = GetParam();
  Training training = TrainingOf(c);
  const bool few = kSanitized || testing::TestsAreOn("tcp") || TriesFew();
  for (const double type :
       {0.0, 1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()}) {
    // Other types of norm differ only in their numbers, which the default
    // configuration compares.
    if (few && type != 0 && type != 2) continue;
    // Type 0 stands for a step in one pass, without a norm.
    training.step.max_grad_norm = type == 0 ? 0 : 0.5;
    training.step.grad_norm_type = type;
    std::vector<std::vector<float>> first;
    if (HasBitsOfProcessors(c)) {
      Training plain = training;
      plain.on_processors = true;
      plain.plan.world_size = 2;
      first = Train(plain);
    }
    for (const int world_size : {1, 2, 3, 4}) {
      // Under a sanitizer, on several hosts and in the short form on other
      // devices, two numbers of ranks and buckets of one size.
      if (few && world_size % 2 == 0) continue;
      for (const Partition partition :
           {Partition::kEven, Partition::kGreedy, Partition::kBucket}) {
        for (const int64_t bucket_bytes : {64, 5000}) {
          if (bucket_bytes > 64 && (few || partition != Partition::kBucket)) {
            continue;
          }
          training.plan.world_size = world_size;
          training.plan.partition = partition;
          training.plan.bucket_bytes = bucket_bytes;
          const auto params = Train(training);
          ASSERT_FALSE(params[0].empty());
          // The parameters changed.
          EXPECT_NE(params[0][0], InitialValue(0, 0));
          if (first.empty()) first = params;
          ASSERT_EQ(params, first)
              << world_size << " ranks, partition "
              << static_cast<int>(partition) << ", buckets of " << bucket_bytes
              << ", norm " << type;
        }
      }
    }
  }
}

// All ranks have gradients, whose sums are in the order of ranks.
TEST_P(InvarianceTest, RanksApartHaveTheBitsOfSharedMemory) {
  const Case& c = GetParam();
  Training training = TrainingOf(c);
  training.all_ranks = true;
  training.plan.deterministic = true;
  for (const int world_size : {2, 3, 4}) {
    // Three ranks have each pair of threads, and hosts take a while to start.
    if ((kSanitized || testing::TestsAreOn("tcp")) && world_size != 3) continue;
    for (const double max_grad_norm : {0.0, 0.5}) {
      // So do ranks on fakes: an odd number of them clips, and an even one does
      // not.
      const bool all = !kSanitized && !testing::TestsAreOn("tcp") &&
                       !testing::TestsAreOnGpu();
      if (!all && (world_size == 3) != (max_grad_norm > 0)) continue;
      training.plan.world_size = world_size;
      training.step.max_grad_norm = max_grad_norm;
      training.link = "direct=1";
      training.on_processors = HasBitsOfProcessors(c);
      const auto shared = Train(training);
      ASSERT_FALSE(shared[0].empty());
      EXPECT_NE(shared[0][0], InitialValue(0, 0));
      training.link = "direct=0";
      training.on_processors = false;
      EXPECT_EQ(Train(training), shared)
          << world_size << " ranks, max_grad_norm " << max_grad_norm;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, InvarianceTest,
    ::testing::Values(
        Case{.name = "adamw", .optimizer = "adamw?lr=0.01"},
        Case{.name = "adamw_bf16_states",
             .optimizer = "adamw?lr=0.01&states=bf16"},
        Case{.name = "adamw_q8_states", .optimizer = "adamw?lr=0.01&states=q8"},
        Case{.name = "adam_q8_amsgrad",
             .optimizer = "adam?lr=0.01&states=q8&amsgrad=1"},
        Case{.name = "adamw_bf16_masters",
             .optimizer = "adamw?lr=0.01",
             .dtype = DType::kBF16},
        Case{.name = "adamw_f16_masters",
             .optimizer = "adamw?lr=0.01",
             .dtype = DType::kF16,
             .f32_grads = true},
        Case{.name = "adamw_bf16_stochastic",
             .optimizer = "adamw?lr=0.01",
             .dtype = DType::kBF16,
             .masters = Masters::kNoneStochastic},
        Case{.name = "adamw_f16_nearest",
             .optimizer = "adamw?lr=0.01",
             .dtype = DType::kF16,
             .masters = Masters::kNoneNearest},
        Case{.name = "sgd_momentum", .optimizer = "sgd?lr=0.01&momentum=0.9"},
        Case{.name = "lamb", .optimizer = "lamb?lr=0.01"},
        Case{.name = "lamb_bf16",
             .optimizer = "lamb?lr=0.01",
             .dtype = DType::kBF16,
             .masters = Masters::kNoneStochastic},
        Case{.name = "adafactor", .optimizer = "adafactor?lr=0.01"},
        Case{.name = "adafactor_bf16",
             .optimizer = "adafactor?lr=0.01",
             .dtype = DType::kBF16},
        Case{.name = "muon", .optimizer = "muon?lr=0.01"},
        Case{.name = "muon_bf16",
             .optimizer = "muon?lr=0.01",
             .dtype = DType::kBF16,
             .f32_grads = true,
             .masters = Masters::kNoneNearest}),
    [](const auto& info) { return std::string(info.param.name); });

// With random rounding, only the seed decides the bits.
TEST(StochasticTest, AnotherSeedGivesOtherBits) {
  Training training;
  training.model = ModelOf({{300}}, DType::kBF16);
  training.plan.masters = Masters::kNoneStochastic;
  training.plan.seed = 1;
  const auto first = Train(training);
  EXPECT_EQ(Train(training), first);
  training.plan.seed = 2;
  EXPECT_NE(Train(training), first);
}

}  // namespace
}  // namespace shard::invariance_test
