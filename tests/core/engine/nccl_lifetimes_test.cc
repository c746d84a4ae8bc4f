// SPDX-License-Identifier: Apache-2.0
//
// Engines that share a process and its GPUs, over NCCL: at the same time, one
// after another, freed by another thread, and in a host that forks; and ranks
// whose engines differ.

#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iterator>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/core/base/comes_true.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/in_child.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/nccl_training.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/fake_nccl/fake_nccl_fixture.h"
#include "tests/ranks/ranks.h"

namespace shard::nccl_lifetimes_test {
namespace {

using nccl_training::Form;
using nccl_training::MakePlan;
using nccl_training::RankTraining;
using testing::FakeNccl;

constexpr int kRanks = 2;
constexpr double kTimeout = 20;

testing::fake_cuda::Options Gpus() {
  testing::fake_cuda::Options options;
  options.devices = kRanks;
  return options;
}

using Body = std::function<void(const std::shared_ptr<Communicator>&)>;

void RunRanks(const Body& body) {
  RunThreadRanks(kRanks, body, kTimeout, "direct=0");
}

// Trains an engine that was filled, and returns its parameters.
StatusOr<std::vector<float>> Train(RankTraining* training) {
  for (int step = 1; step <= 3; ++step) {
    SHARD_RETURN_IF_ERROR(training->Step(step));
  }
  return training->Read();
}

// Returns what an engine learns that is alone.
std::vector<float> LearnedAlone(const Form& form) {
  std::vector<float> learned;
  const FakeNccl fake(Gpus());
  RunRanks([&](const std::shared_ptr<Communicator>& comm) {
    RankTraining training(form, MakePlan(form), comm, kTimeout);
    ASSERT_OK(training.Create());
    ASSERT_OK(training.Fill());
    const auto values = Train(&training);
    ASSERT_OK(values);
    if (comm->rank() == 0) learned = *values;
  });
  return learned;
}

// Each on a stream of its own: on one that both use, the order of their work
// would be another one on each rank, and their collectives would wait for each
// other.
TEST(NcclLifetimesTest, TwoEnginesTrainAtTheSameTime) {
  const Form forms[] = {{.world_size = kRanks, .stage = 1},
                        {.world_size = kRanks, .stage = 3}};
  std::vector<std::vector<float>> expected;
  for (const Form& form : forms) expected.push_back(LearnedAlone(form));
  const FakeNccl fake(Gpus());
  RunRanks([&](const std::shared_ptr<Communicator>& comm) {
    std::list<cuda_training::HostsStream> streams;
    std::vector<std::unique_ptr<RankTraining>> trainings;
    for (const Form& form : forms) {
      trainings.push_back(
          std::make_unique<RankTraining>(form, MakePlan(form), comm, kTimeout));
      ASSERT_OK(trainings.back()->Create());
      ASSERT_OK(trainings.back()->engine()->SetStream(
          streams.emplace_back(comm->rank()).get()));
      ASSERT_OK(trainings.back()->Fill());
    }
    std::vector<std::thread> threads;
    for (size_t i = 0; i < trainings.size(); ++i) {
      threads.emplace_back([&, i] {
        const auto values = Train(trainings[i].get());
        ASSERT_OK(values);
        EXPECT_TRUE(*values == expected[i]) << forms[i].Text();
        // Engines end in another thread than they were made in.
        trainings[i]->End();
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

// One engine is stuck and aborted on all ranks, and one of another communicator
// trains on.
TEST(NcclLifetimesTest, AnEngineOutlivesAnotherOnesAbort) {
  const Form form = {.world_size = kRanks, .stage = 1};
  const std::vector<float> expected = LearnedAlone(form);
  const FakeNccl fake(Gpus());
  const std::string name = testing::UniqueName();
  RunRanks([&](const std::shared_ptr<Communicator>& comm) {
    const auto others = OpenCommunicator(
        StrCat("threads:2?direct=0&name=", name),
        {.rank = comm->rank(), .world_size = kRanks, .timeout = kTimeout});
    ASSERT_OK(others);
    RankTraining good(form, MakePlan(form), comm, kTimeout);
    RankTraining bad(form, MakePlan(form), *others, 1);
    for (RankTraining* const it : {&good, &bad}) {
      ASSERT_OK(it->Create());
      ASSERT_OK(it->Fill());
    }
    ASSERT_OK(good.Synchronize());
    ASSERT_OK(bad.Synchronize());
    ASSERT_OK(comm->Barrier("made", Deadline::After(kTimeout)));
    if (comm->rank() == 0) testing::fake_nccl::StickAt(1, {.rank = 1});
    ASSERT_OK(comm->Barrier("stuck", Deadline::After(kTimeout)));
    Status status = bad.Step(1);
    if (status.ok()) status = bad.Synchronize();
    EXPECT_FALSE(status.ok());
    const auto values = Train(&good);
    ASSERT_OK(values);
    EXPECT_TRUE(*values == expected);
    bad.End();
    good.End();
  });
}

size_t CountIn(const char* folder) {
  const std::filesystem::directory_iterator entries(folder);
  return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

TEST(NcclLifetimesTest, NothingIsLeftOfEngines) {
  const Form form = {.world_size = kRanks, .stage = 3};
  const int rounds = std::getenv("SHARD_TEST_LONG") != nullptr ? 200 : 20;
  const auto plan = MakePlan(form);
  const FakeNccl fake(Gpus());
  size_t threads = 0;
  size_t files = 0;
  RunRanks([&](const std::shared_ptr<Communicator>& comm) {
    for (int round = 0; round < rounds; ++round) {
      RankTraining training(form, plan, comm, kTimeout);
      ASSERT_OK(training.Create());
      ASSERT_OK(training.Fill());
      ASSERT_OK(training.Step(1));
      ASSERT_OK(training.Synchronize());
      training.End();
      ASSERT_OK(comm->Barrier("freed", Deadline::After(kTimeout)));
      if (comm->rank() == 0) {
        EXPECT_EQ(testing::fake_nccl::CountAlive().comms, 0u);
        if (round == 1) {
          threads = CountIn("/proc/self/task");
          files = CountIn("/proc/self/fd");
        }
        if (round == rounds - 1) {
          EXPECT_EQ(CountIn("/proc/self/task"), threads);
          EXPECT_EQ(CountIn("/proc/self/fd"), files);
        }
      }
      ASSERT_OK(comm->Barrier("counted", Deadline::After(kTimeout)));
    }
  });
}

// ---- A process that restarts
// -------------------------------------------------

enum class End {
  kAborts,  // The host of rank 1 gives up.
  kLeaves,  // Rank 1 ends without shutdown.
  kDead,    // NCCL's part of rank 1 never arrives.
};

// Most failures end at once, so that many restarts take little time.
End EndOf(int round) {
  return round % 10 == 4   ? End::kDead
         : round % 10 == 8 ? End::kLeaves
                           : End::kAborts;
}

// Meets the other rank, trains a step, and fails in the next one. Returns what
// the first step has learned.
std::vector<float> TrainAndFail(const Form& form,
                                const std::shared_ptr<const Plan>& plan,
                                const std::string& name, int rank, End end) {
  std::vector<float> learned;
  const auto train = [&] {
    const auto comm = OpenCommunicator(
        StrCat("threads:2?direct=0&name=", name),
        {.rank = rank, .world_size = kRanks, .timeout = kTimeout});
    ASSERT_OK(comm);
    RankTraining training(form, plan, *comm,
                          end == End::kDead ? 0.3 : kTimeout);
    ASSERT_OK(training.Create());
    ASSERT_OK(training.Fill());
    ASSERT_OK(training.Step(1));
    const auto values = training.Read();
    ASSERT_OK(values);
    learned = *values;
    ASSERT_OK((*comm)->Barrier("trained", Deadline::After(kTimeout)));
    if (rank == 1) {
      if (end == End::kLeaves) return;
      if (end == End::kDead) testing::fake_nccl::Kill(1);
      if (end == End::kAborts) (*comm)->Abort(Cancelled("the host gives up"));
    }
    Status status = training.Step(2);
    if (status.ok()) status = training.Synchronize();
    switch (end) {
      case End::kAborts:
        return ExpectError(status, StatusCode::kPoisoned,
                           {"the host gives up"});
      case End::kLeaves:
        ExpectError(status, StatusCode::kRankLost, {});
        EXPECT_EQ(status.rank(), 1);
        return;
      case End::kDead:
        EXPECT_TRUE(status.code() == StatusCode::kDeadlineExceeded ||
                    status.code() == StatusCode::kPoisoned)
            << status.ToString();
    }
  };
  train();
  return learned;
}

// Returns the bytes that malloc has given out, 0 with a sanitizer.
size_t AllocatedBytes() {
  const auto info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

// Each time with new communicators and engines. FakeNccl checks that nothing of
// NCCL or of the driver is left, and forgets its records, which would grow.
TEST(NcclLifetimesTest, NothingGrowsWhereEnginesFailAndAreMadeAgain) {
  constexpr int kFirst = 10;  // All is allocated that a process keeps.
  const int rounds = std::getenv("SHARD_TEST_LONG") != nullptr ? 100 : 20;
  const Form form = {.world_size = kRanks, .stage = 3};
  const auto plan = MakePlan(form);
  std::vector<float> expected;
  size_t threads = 0;
  size_t files = 0;
  size_t bytes = 0;
  for (int round = 0; round <= rounds && !HasFailure(); ++round) {
    SCOPED_TRACE(StrCat("round ", round));
    {
      const FakeNccl fake(Gpus());
      const std::string name = testing::UniqueName();
      std::vector<std::vector<float>> learned(kRanks);
      std::vector<std::thread> ranks;
      for (size_t rank = 0; rank < kRanks; ++rank) {
        ranks.emplace_back([&, rank] {
          learned[rank] = TrainAndFail(form, plan, name, static_cast<int>(rank),
                                       EndOf(round));
        });
      }
      for (std::thread& rank : ranks) rank.join();
      if (round == 0) expected = learned[0];
      ASSERT_FALSE(expected.empty());
      EXPECT_TRUE(learned[0] == expected);
      EXPECT_TRUE(learned[1] == expected);
    }
    if (round == kFirst) {
      threads = CountIn("/proc/self/task");
      files = CountIn("/proc/self/fd");
      bytes = AllocatedBytes();
    }
  }
  // A thread that was joined may be listed for a moment.
  EXPECT_TRUE(testing::ComesTrue(
      [&] { return CountIn("/proc/self/task") <= threads; }));
  EXPECT_EQ(CountIn("/proc/self/fd"), files);
  // The fakes and malloc keep some bytes more, and an engine's parts have many.
  EXPECT_LT(AllocatedBytes(), bytes + 32 * 1024);
}

// As with a data loader: the child frees what it inherits, and exits.
TEST(NcclLifetimesTest, AHostThatForksTrainsOn) {
  const Form form = {.world_size = kRanks, .stage = 3};
  const std::vector<float> expected = LearnedAlone(form);
  const FakeNccl fake(Gpus());
  RunRanks([&](const std::shared_ptr<Communicator>& comm) {
    RankTraining training(form, MakePlan(form), comm, kTimeout);
    ASSERT_OK(training.Create());
    ASSERT_OK(training.Fill());
    ASSERT_OK(training.Step(1));
    ASSERT_OK(training.Synchronize());
    ASSERT_OK(comm->Barrier("idle", Deadline::After(kTimeout)));
    if (comm->rank() == 0) {
      testing::InChild([&] {
        ::alarm(60);
        training.End();
      });
    }
    ASSERT_OK(training.Step(2));
    ASSERT_OK(training.Step(3));
    const auto values = training.Read();
    ASSERT_OK(values);
    EXPECT_TRUE(*values == expected);
  });
}

// The parts of an engine that differ between ranks.
struct Part {
  std::shared_ptr<const Plan> plan;
  std::string device;
  Transport transport = Transport::kNccl;
};

std::vector<Status> CreateDifferent(const std::vector<Part>& parts) {
  const FakeNccl fake(Gpus());
  std::vector<Status> made(kRanks);
  RunRanks([&](const std::shared_ptr<Communicator>& comm) {
    const auto rank = static_cast<size_t>(comm->rank());
    const Part& part = parts[rank];
    EngineOptions options;
    options.timeout = 1;
    if (part.device == "cpu") {
      options.opened_device = *OpenDevice("cpu");
    } else {
      options.opened_device = *cuda::OpenDevice(part.device);
    }
    options.transport = part.transport;
    const auto begin = std::chrono::steady_clock::now();
    made[rank] = Engine::Create(part.plan, comm, options).status();
    const std::chrono::duration<double> took =
        std::chrono::steady_clock::now() - begin;
    EXPECT_LT(took.count(), 2);
  });
  return made;
}

TEST(NcclLifetimesTest, RanksThatDifferAreToldHow) {
  const auto plan = MakePlan({.world_size = kRanks, .stage = 1});
  const auto other = MakePlan({.world_size = kRanks, .stage = 2});
  const auto bf16 =
      MakePlan({.world_size = kRanks, .stage = 1, .dtype = DType::kBF16});
  const auto f32_grads = MakePlan({.world_size = kRanks,
                                   .stage = 1,
                                   .dtype = DType::kBF16,
                                   .f32_grads = true});
  struct Case {
    std::vector<Part> parts;
    StatusCode code;
    const char* text;
  };
  for (const Case& it : std::vector<Case>{
           {{{plan, "0"}, {other, "1"}}, StatusCode::kDesync, "stage: rank 0"},
           {{{plan, "0"}, {bf16, "1"}},
            StatusCode::kDesync,
            "dtype of parameter 'weight': rank 0 has f32, rank 1 has bf16"},
           // The gradients' dtype.
           {{{bf16, "0"}, {f32_grads, "1"}},
            StatusCode::kDesync,
            "f32_grads: rank 0 has 0, rank 1 has 1"},
           {{{plan, "0"}, {plan, "1", Transport::kStaged}},
            StatusCode::kDesync,
            "collectives: rank 0 has nccl, rank 1 has staged"},
           {{{plan, "0"}, {plan, "1", Transport::kAuto}},
            StatusCode::kDesync,
            "rank 1 has auto"},
           {{{plan, "0"}, {plan, "cpu"}},
            StatusCode::kDesync,
            "kind of device: rank 0 has cuda, rank 1 has cpu"},
           {{{plan, "1"}, {plan, "1"}},
            StatusCode::kBackendUnavailable,
            "ranks 0 and 1 have one GPU"}}) {
    SCOPED_TRACE(it.text);
    const auto made = CreateDifferent(it.parts);
    for (const Status& status : made) {
      ExpectError(status, it.code, {it.text});
    }
  }
}

}  // namespace
}  // namespace shard::nccl_lifetimes_test
