// SPDX-License-Identifier: Apache-2.0
//
// One of the ranks, which are processes, finds no libnccl.so.2, or has loaded
// another one. The creation of the engine is an error on all ranks, at once,
// that names this rank and says why; with collectives=auto all ranks train
// without NCCL, and the log has the reason. A library that lacks functions of
// its version is used without them. Not linked with the fake of NCCL,
// which each process then has from its start: the other ranks load it.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/device/cuda/cuda_device.h"
#include "core/engine/engine.h"
#include "core/observe/logger.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/nccl_training.h"
#include "tests/ranks/ranks.h"

namespace shard::nccl_missing_test {
namespace {

using nccl_training::MakeEngineOn;
using nccl_training::MakePlan;
using testing::Rank;

constexpr int kRanks = 3;
constexpr double kTimeout = 30;
constexpr char kFake[] = "tests/fake_nccl/libnccl.so.2";

// The file that each rank has loaded before, or none for "".
using Files = std::array<std::string, kRanks>;

// Those of ranks that all have the fake, or another file, but for one.
Files AllBut(int odd, const std::string& file,
             const std::string& others = kFake) {
  Files files;
  files.fill(others);
  files[static_cast<size_t>(odd)] = file;
  return files;
}

// Runs body(communicator, what it logs of how tensors move) on ranks that are
// processes, and expects all to go on together afterwards.
using Body = std::function<void(const std::shared_ptr<Communicator>& comm,
                                const std::string& log)>;
void RunLoaded(const Files& files, const Body& body) {
  const std::string url = StrCat("shm:", testing::UniqueName(), "?direct=0");
  testing::ExpectAllPassed(testing::RunRanks(kRanks, [&](const Rank& me) {
    const std::string& loaded = files[static_cast<size_t>(me.rank())];
    if (!loaded.empty()) {
      ASSERT_NE(::dlopen(loaded.c_str(), RTLD_NOW | RTLD_LOCAL), nullptr)
          << ::dlerror();
    }
    std::string log;
    CommOptions options;
    options.rank = me.rank();
    options.world_size = kRanks;
    options.timeout = kTimeout;
    options.logger = Logger(
        [](int32_t, const char* message, void* text) {
          if (std::string_view(message).starts_with("tensors ")) {
            static_cast<std::string*>(text)->append(message);
          }
        },
        LogLevel::kInfo, &log);
    const auto comm = OpenCommunicator(url, options);
    ASSERT_OK(comm);
    body(*comm, log);
    EXPECT_OK((*comm)->Barrier("told", Deadline::After(kTimeout)));
    EXPECT_OK((*comm)->Shutdown(Deadline::After(kTimeout)));
  }));
}

// Trains one step, after which the parameters are those of an engine on
// processors of the same ranks.
void ExpectTrains(Engine* engine, const std::shared_ptr<const Plan>& plan,
                  const std::shared_ptr<Communicator>& comm) {
  const auto on_cpu = MakeEngineOn("cpu", plan, comm);
  ASSERT_OK(on_cpu);
  std::vector<float> trained[2];
  for (Engine* const each : {engine, on_cpu->get()}) {
    ASSERT_OK(cuda_training::Fill(each));
    const auto filled = cuda_training::ReadParam(each);
    ASSERT_OK(filled);
    ASSERT_OK(cuda_training::TrainOneStep(each, 1));
    const auto values = cuda_training::ReadParam(each);
    ASSERT_OK(values);
    EXPECT_NE(*values, *filled);
    trained[each == on_cpu->get()] = *values;
  }
  EXPECT_FALSE(trained[0].empty());
  EXPECT_EQ(trained[0], trained[1]);
}

// Makes an engine on ranks one of which has another file. All ranks get an
// error with the texts, in time.
void ExpectNoNccl(int odd, const std::string& file,
                  const std::vector<std::string>& texts) {
  SCOPED_TRACE(StrCat("rank ", odd, " has '", file, "'"));
  const auto plan = MakePlan({.world_size = kRanks});
  RunLoaded(AllBut(odd, file), [&](const auto& comm, const std::string&) {
    const auto begin = std::chrono::steady_clock::now();
    const Status status = MakeEngineOn("cuda", plan, comm).status();
    const std::chrono::duration<double> took =
        std::chrono::steady_clock::now() - begin;
    EXPECT_LT(took.count(), kTimeout / 2);
    for (const std::string& text : texts) {
      ExpectError(status, StatusCode::kBackendUnavailable, {text});
    }
  });
}

// Trains with collectives=auto, on each rank's own GPU. All ranks move tensors
// through the host, and rank 0 alone logs it, with the texts.
void ExpectStaged(const Files& files, const std::vector<std::string>& texts) {
  SCOPED_TRACE(StrCat("'", files[0], "', '", files[1], "', '", files[2], "'"));
  const auto plan = MakePlan({.world_size = kRanks});
  RunLoaded(files, [&](const auto& comm, const std::string& log) {
    EngineOptions options;
    options.opened_device = *cuda::OpenDevice(StrCat(comm->rank()));
    options.transport = Transport::kAuto;
    const auto engine = Engine::Create(plan, comm, options);
    ASSERT_OK(engine);
    EXPECT_EQ((*engine)->ToJson(),
              StrCat(R"({"device":"cuda:)", comm->rank(),
                     R"(","transport":"staged","sum_order":"ranks"})"));
    if (comm->rank() != 0) {
      EXPECT_EQ(log, "");
    } else {
      EXPECT_TRUE(
          log.starts_with("tensors pass through the host's memory: rank "))
          << log;
      for (const std::string& text : texts) {
        EXPECT_NE(log.find(text), std::string::npos) << log;
      }
    }
    ExpectTrains(engine->get(), plan, comm);
  });
}

TEST(NcclMissingTest, TheRankThatLacksItIsNamedOnAllRanks) {
  for (int lacking = 0; lacking < kRanks; ++lacking) {
    ExpectNoNccl(lacking, "",
                 {StrCat("rank ", lacking, ": no usable NCCL: "),
                  "libnccl.so.2", "install NCCL"});
  }
}

// A library that the host of one rank has loaded before is used there.
TEST(NcclMissingTest, TheRankThatHasLoadedAnotherIsNamedOnAllRanks) {
  for (int odd = 0; odd < kRanks; ++odd) {
    ExpectNoNccl(odd, "tests/fake_nccl/v3_0/libnccl.so.2",
                 {StrCat("rank ", odd, ": no usable NCCL"), "3.0.0",
                  "libshard needs 2.18.0"});
  }
  ExpectNoNccl(
      2, "tests/fake_nccl/v2_27/libnccl.so.2",
      {"rank 0 has NCCL 2.28.9, rank 2 has 2.27.3", "install one version"});
}

TEST(NcclMissingTest, AutoTrainsWithoutItWhereNoRankHasIt) {
  ExpectStaged({},
               {"rank 0: no usable NCCL: ", "libnccl.so.2", "install NCCL"});
}

// The ranks that have it do not wait for the others in NCCL.
TEST(NcclMissingTest, AutoTrainsWithoutItWhereSomeRanksHaveIt) {
  for (int lacking = 0; lacking < kRanks; ++lacking) {
    ExpectStaged(AllBut(lacking, ""),
                 {StrCat("rank ", lacking, ": no usable NCCL: "),
                  "libnccl.so.2", "install NCCL"});
  }
  ExpectStaged({"", kFake, ""}, {"rank 0: no usable NCCL: "});
  ExpectStaged(AllBut(1, "tests/fake_nccl/v3_0/libnccl.so.2"),
               {"rank 1: no usable NCCL", "3.0.0", "libshard needs 2.18.0"});
  ExpectStaged(AllBut(2, "tests/fake_nccl/v2_27/libnccl.so.2"),
               {"rank 0 has NCCL 2.28.9, rank 2 has 2.27.3"});
}

// Trains by NCCL, on ranks of which some lack functions. Expects all engines to
// tell the reason.
void ExpectWithout(const Files& files, const std::vector<std::string>& texts) {
  SCOPED_TRACE(StrCat("'", files[0], "', '", files[1], "', '", files[2], "'"));
  const auto plan = MakePlan({.world_size = kRanks, .deterministic = true});
  RunLoaded(files, [&](const auto& comm, const std::string&) {
    const auto engine = MakeEngineOn("cuda", plan, comm);
    ASSERT_OK(engine);
    const std::string json = (*engine)->ToJson();
    for (const std::string& text : texts) {
      EXPECT_NE(json.find(text), std::string::npos) << json;
    }
    ExpectTrains(engine->get(), plan, comm);
  });
}

TEST(NcclMissingTest, ALibraryThatLacksFunctionsIsUsedWithoutThem) {
  constexpr char kWhole[] = "tests/fake_nccl/v2_31/libnccl.so.2";
  constexpr char kNoWindows[] = "tests/fake_nccl/no_windows/libnccl.so.2";
  ExpectWithout(AllBut(0, kWhole, kWhole),
                {R"("transport":"nccl 2.31.2")", R"("window_bytes":)"});
  ExpectWithout(AllBut(0, kNoWindows, kNoWindows),
                {R"("transport":"nccl 2.31.2")",
                 R"("no_windows":"rank 0: NCCL 2.31.2 lacks )"
                 "ncclCommWindowRegister"});
  for (int odd = 0; odd < kRanks; ++odd) {
    ExpectWithout(AllBut(odd, kNoWindows, kWhole),
                  {StrCat(R"("no_windows":"rank )", odd,
                          ": NCCL 2.31.2 lacks ncclCommWindowRegister")});
    ExpectWithout(AllBut(odd, "tests/fake_nccl/no_registration/libnccl.so.2"),
                  {R"("transport":"nccl 2.28.9")", R"("registered_bytes":0)",
                   StrCat(R"("not_registered":"rank )", odd,
                          ": NCCL 2.28.9 lacks ncclCommDeregister")});
  }
}

// One rank moves no tensors, but whoever asks for NCCL is told where there is
// none.
TEST(NcclMissingTest, OneRankIsToldToo) {
  const auto plan = MakePlan({.world_size = 1, .stage = 0});
  testing::ExpectAllPassed(testing::RunRanks(1, [&](const Rank&) {
    const auto comm = OpenCommunicator("local:", {});
    ASSERT_OK(comm);
    ExpectError(
        MakeEngineOn("cuda", plan, *comm).status(),
        StatusCode::kBackendUnavailable,
        {"collectives=nccl: ", "no usable NCCL", "libnccl.so.2", "install"});
    EngineOptions options;
    options.opened_device = *cuda::OpenDevice("0");
    options.transport = Transport::kAuto;
    const auto engine = Engine::Create(plan, *comm, options);
    ASSERT_OK(engine);
    EXPECT_EQ((*engine)->ToJson(),
              R"({"device":"cuda:0","transport":"none","sum_order":"ranks"})");
    ExpectTrains(engine->get(), plan, *comm);
  }));
}

}  // namespace
}  // namespace shard::nccl_missing_test
