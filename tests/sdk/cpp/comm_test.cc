// SPDX-License-Identifier: Apache-2.0
//
// Versions, errors, element types and communicators.

#include <array>
#include <filesystem>
#include <mutex>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/core/base/temp_folder.h"
#include "tests/sdk/cpp/sdk_testing.h"

namespace shard_sdk_testing::comm_test {
namespace {

TEST(VersionTest, TheLibraryFitsItsHeaders) {
  EXPECT_EQ(
      shard::detail::version_problem(shard::version(), shard::abi_version()),
      "");
}

TEST(VersionTest, ANewerLibraryFitsAndAnOlderOneOrAnotherAbiDoesNot) {
  using shard::detail::version_problem;
  EXPECT_EQ(version_problem("0.99.0", 0), "");
  EXPECT_EQ(version_problem("1.0.0", 0), "");
  // The last number of these headers is 0: less is one that is not there.
  for (const char* version : {"0.2", "0.1.7", "0.0.9", "", "zero"}) {
    EXPECT_NE(version_problem(version, 0), "") << version;
  }
  const std::string problem = version_problem("0.2.0", 7);
  EXPECT_THAT(problem, ::testing::HasSubstr("0.2.0 with ABI 7"));
  EXPECT_THAT(problem, ::testing::HasSubstr("headers of version 0.2.0"));
}

TEST(ErrorTest, HasCodeMessageRankAndDetail) {
  const shard::Error error(Code::rank_lost, "rank 3 is gone", 3, "{}");
  EXPECT_STREQ(error.what(), "RANK_LOST: rank 3 is gone");
  EXPECT_STREQ(error.message(), "rank 3 is gone");
  EXPECT_EQ(error.code(), Code::rank_lost);
  EXPECT_EQ(error.rank(), 3);
  EXPECT_STREQ(error.detail(), "{}");
  static_assert(std::is_nothrow_copy_constructible_v<shard::Error>);
  static_assert(std::is_nothrow_copy_assignable_v<shard::Error>);
}

TEST(ErrorTest, OfTheLibraryNamesTheValueAndTheRemedy) {
  expect_error([] { (void)Comm::open("cloud:"); }, Code::invalid_argument,
               {"cloud", "threads:"});
  const shard::Error unknown(Code{999}, "from a newer library");
  EXPECT_STREQ(unknown.message(), "from a newer library");
}

TEST(TypesTest, HaveNamesAndSizes) {
  EXPECT_STREQ(shard::dtype_name(DType::bf16), "bf16");
  EXPECT_EQ(shard::dtype_size(DType::f64), sizeof(double));
  EXPECT_EQ(shard::dtype_size(DType::opaque), 0u);
  static_assert(shard::dtype_of<const std::int64_t> == DType::i64);
}

// ---- Misuse does not compile ----

static_assert(!std::is_convertible_v<UnitId, ParamId>);
static_assert(!std::is_convertible_v<int, ParamId>);
static_assert(!std::is_convertible_v<std::nullptr_t, shard::Text>);
static_assert(!std::is_copy_constructible_v<Comm>);
static_assert(!std::is_copy_constructible_v<Model>);
static_assert(!std::is_copy_constructible_v<Plan>);
static_assert(!std::is_copy_constructible_v<Engine>);
static_assert(!std::is_copy_constructible_v<Unit>);
static_assert(!std::is_copy_constructible_v<shard::FullParams>);
static_assert(!std::is_copy_constructible_v<shard::Checkpoint>);
static_assert(!std::is_copy_constructible_v<shard::Save>);
static_assert(!std::is_copy_constructible_v<shard::StateDict>);
static_assert(std::is_nothrow_move_constructible_v<Engine>);
static_assert(std::is_nothrow_move_assignable_v<Unit>);
static_assert(std::is_nothrow_destructible_v<shard::FullParams>);

TEST(TypesTest, AShapeHasAtMostEightDimensions) {
  const shard::Shape shape{2, 3};
  EXPECT_EQ(shape.size(), 2u);
  EXPECT_EQ(shape[1], 3);
  EXPECT_NE(shape, (shard::Shape{2, 3, 1}));
  expect_error([] { shard::Shape{1, 1, 1, 1, 1, 1, 1, 1, 1}; },
               Code::invalid_argument, {"9 dimensions", "0 to 8"});
}

TEST(TextTest, WithANulInsideIsRefused) {
  expect_error([] { (void)Comm::open(std::string("local:\0x", 8)); },
               Code::invalid_argument, {"NUL", "byte 6"});
  expect_error(
      [] {
        const Net net;
        (void)Plan::create(
            net.model,
            {.world_size = 1, .optimizer = std::string("sgd\0?lr=1", 9)});
      },
      Code::invalid_argument, {"NUL"});
}

TEST(CommTest, RanksMeetAndExchangeNumbers) {
  run_ranks(2, [](Comm& comm) {
    EXPECT_EQ(comm.world_size(), 2);
    EXPECT_EQ(comm.local_world_size(), 2);
    EXPECT_EQ(comm.local_rank(), comm.rank());
    EXPECT_THAT(std::string(comm.describe()), ::testing::HasSubstr("rank"));
    comm.barrier();
    EXPECT_EQ(comm.sum(comm.rank() + 1.0), 3);
    std::array<double, 2> sums = {1, comm.rank() * 10.0};
    comm.sum(sums);
    EXPECT_THAT(sums, ::testing::ElementsAre(2, 10));
    std::vector<int> seeds(3, comm.rank() + 7);
    comm.broadcast(std::span(seeds), 1);
    EXPECT_THAT(seeds, ::testing::Each(8));
    EXPECT_THROW(comm.check_device("cpu"), shard::Error);
    comm.shutdown();
  });
}

TEST(CommTest, AbortEndsTheOtherRanksCalls) {
  run_ranks(2, [](Comm& comm) {
    if (comm.rank() == 0) {
      comm.abort("out of data");
    } else {
      expect_error([&] { comm.barrier(); }, Code::poisoned, {"out of data"});
    }
  });
}

TEST(CommTest, CountsWhatARankDoes) {
  const shard::testing::TempFolder folder;
  Comm comm = Comm::open("local:", {.trace = folder / "trace.json",
                                    .metrics = folder / "m.prom",
                                    .dump = folder / "dump.json"});
  comm.barrier();
  comm.barrier();
  EXPECT_EQ(comm.counter("barrier").calls, 2u);
  EXPECT_EQ(comm.counter("barrier").errors, 0u);
  EXPECT_NE(comm.metrics().find("event=\"barrier\"} 2\n"), std::string::npos);
  expect_error([&] { (void)comm.counter("barriers"); }, Code::not_found,
               {"'barriers'", "barrier"});
  EXPECT_TRUE(std::filesystem::exists(folder / "trace.json"));
  EXPECT_TRUE(std::filesystem::exists(folder / "m.rank0.prom"));
  EXPECT_NE(comm.dump().find("\"operation\":\"barrier\""), std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(folder / "dump.rank0.json"));
}

TEST(CommTest, ARankThatThrowsIsLostToTheOthers) {
  run_ranks(2, [](Comm& comm) {
    if (comm.rank() == 1) {
      // The scope ends as by an exception.
      const Comm left = std::move(comm);
      return;
    }
    try {
      comm.barrier();
      ADD_FAILURE() << "rank 1 did not come";
    } catch (const shard::Error& error) {
      EXPECT_EQ(error.code(), Code::rank_lost) << error.what();
      EXPECT_EQ(error.rank(), 1);
    }
  });
}

TEST(CommTest, AMovedFromOneIsAnErrorInEveryCall) {
  Comm comm = Comm::open("local:");
  Comm moved = std::move(comm);
  EXPECT_EQ(moved.world_size(), 1);
  EXPECT_EQ(comm.rank(), -1);
  EXPECT_EQ(comm.world_size(), 0);
  expect_error([&] { comm.barrier(); }, Code::invalid_argument);
  expect_error([&] { (void)comm.describe(); }, Code::invalid_argument);
  expect_error([&] { comm.shutdown(); }, Code::invalid_argument);
  const Net net;
  expect_error([&] { (void)engine_of(net, 1, comm); }, Code::invalid_argument);
}

TEST(LogTest, MessagesReachAFunctionThatMayThrow) {
  std::mutex mutex;
  std::vector<std::string> messages;
  Comm comm = Comm::open(
      "local:", {.log =
                     [&](shard::LogLevel level, const char* message) {
                       const std::lock_guard lock(mutex);
                       EXPECT_LE(level, shard::LogLevel::debug);
                       messages.push_back(message);
                       throw std::runtime_error("not the library's problem");
                     },
                 .log_level = shard::LogLevel::debug});
  const Net net;
  Engine engine = engine_of(net, 1, comm);
  train_step(engine);
  const std::lock_guard lock(mutex);
  EXPECT_FALSE(messages.empty());
}

// The engine logs with the function of a communicator that is gone.
TEST(LogTest, TheFunctionLivesAsLongAsTheEngine) {
  auto lives = std::make_shared<int>(0);
  const std::weak_ptr<int> watch = lives;
  const Net net;
  auto engine = std::make_unique<Engine>([&] {
    Comm comm = Comm::open(
        "local:", {.log = [lives = std::move(lives)](shard::LogLevel,
                                                     const char*) { ++*lives; },
                   .log_level = shard::LogLevel::debug});
    return engine_of(net, 1, comm);
  }());
  EXPECT_FALSE(watch.expired());
  train_step(*engine);
  engine.reset();
  EXPECT_TRUE(watch.expired());
}

TEST(LogTest, AFunctionThatCallsItsCommunicatorIsRefused) {
  Comm* self = nullptr;
  int refused = 0;
  Comm comm = Comm::open(
      "local:", {.log =
                     [&](shard::LogLevel, const char*) {
                       if (self == nullptr) return;
                       EXPECT_EQ(self->rank(), 0);
                       expect_error([&] { self->barrier(); },
                                    Code::failed_precondition, {"callback"});
                       ++refused;
                     },
                 .log_level = shard::LogLevel::debug});
  self = &comm;
  const Net net;
  const Engine engine = engine_of(net, 1, comm);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace shard_sdk_testing::comm_test
