// SPDX-License-Identifier: Apache-2.0
//
// Collectives through staging memory, on the guard device: the exchange is that
// of the host, so it would fault at a tensor. Results are compared with those
// of CpuCollectives.

#include "core/collectives/staged/staged_collectives.h"

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/strings.h"
#include "core/collectives/collectives.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"
#include "core/device/forwarding_device.h"
#include "kernels/cpu/convert.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/collectives/blocking_collectives.h"
#include "tests/core/comm/backends.h"
#include "tests/core/device/gate.h"
#include "tests/core/device/guard_device.h"
#include "tests/core/device/guard_memory.h"

namespace shard::testing::staged_collectives_test {
namespace {

constexpr size_t kStaging = 4096;
// Left for the alignment of the result.
constexpr size_t kUsed = kStaging - 64;

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

using Bytes = std::vector<std::byte>;

// Returns elements of both signs and several magnitudes, so that sums in
// another order have other bits.
Bytes Elements(DType dtype, int salt, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t hash =
        (i * 131 + static_cast<uint64_t>(salt) + 1) * 0x9E3779B97F4A7C15u;
    const auto mantissa = static_cast<int32_t>(hash >> 40) - (1 << 23);
    values[i] = static_cast<float>(mantissa) /
                static_cast<float>(1 << (16 + ((hash >> 32) & 7)));
  }
  Bytes out(count * DTypeSize(dtype));
  Narrow(dtype, values.data(), out.data(), count, nullptr);
  return out;
}

// A rank on a guard device, whose collectives may be compared with those of the
// host.
class StagedRank {
 public:
  explicit StagedRank(Communicator* comm, const char* device = "cpu",
                      double timeout = 30,
                      std::function<Status()> before_copy = nullptr)
      : comm_(comm),
        device_(GuardTensors(*OpenDevice(device), std::move(before_copy))) {
    auto opened = OpenCollectives(
        comm, device_.get(), EverySet(*comm),
        {.timeout = timeout, .staging_bytes = kStaging}, Soon());
    EXPECT_OK(opened);
    if (opened.ok()) collectives_ = *std::move(opened);
    stream_ = *device_->CreateStream(StreamKind::kCommunication);
    stream_->OnError([comm](const Status& error) { comm->Abort(error); });
  }

  Communicator* comm() const { return comm_; }
  int rank() const { return comm_->rank(); }
  Collectives* operator->() const { return collectives_.get(); }
  Collectives* collectives() const { return collectives_.get(); }
  Stream* stream() const { return stream_.get(); }
  Status Synchronize() const { return stream_->Synchronize(Soon()); }

  // Makes a tensor, with a byte behind it that must not change.
  DeviceMemory Tensor(const Bytes& values) const {
    auto memory = *device_->Allocate(values.size() + 1, "a tensor");
    std::copy(values.begin(), values.end(), KernelView(memory.data()));
    KernelView(memory.data())[values.size()] = std::byte{0xEE};
    return memory;
  }
  static Bytes ValuesOf(const DeviceMemory& tensor) {
    const std::byte* const values = KernelView(tensor.data());
    EXPECT_EQ(values[tensor.size() - 1], std::byte{0xEE});
    return Bytes(values, values + tensor.size() - 1);
  }

  // Returns how many calls of a collective the rank has made.
  uint64_t Calls(const char* event) const {
    const auto counter = comm_->observer()->counters().Find(event);
    return counter.ok() ? counter->calls : 0;
  }

 private:
  Communicator* const comm_;
  const std::shared_ptr<Device> device_;
  std::shared_ptr<Collectives> collectives_;
  // Destroyed first: its work uses the collectives.
  std::unique_ptr<Stream> stream_;
};

// Both collectives of a rank.
struct Pair {
  Pair(Communicator* comm, const char* device)
      : cpu(comm), staged(comm, device) {}

  BlockingCollectives cpu;
  StagedRank staged;
};

struct ReduceCase {
  DType dtype = DType::kF32;
  DType recv_dtype = DType::kF32;
  bool add = false;
  int groups = 1;
  unsigned absent = 0;  // The bits of the ranks that have nothing to add.
  bool in_place = false;
};

void CheckReduceScatter(const Pair& ranks, BlockingCollectives* cpu,
                        const RankSet& set, size_t count,
                        const ReduceCase& reduce) {
  const StagedRank& staged = ranks.staged;
  const auto blocks = static_cast<size_t>(set.count);
  ReduceScatterArgs args;
  args.dtype = reduce.dtype;
  args.recv_dtype = reduce.recv_dtype;
  args.count = count;
  args.add = reduce.add;
  args.block_groups = reduce.groups;
  const bool sends = (reduce.absent >> staged.rank() & 1) == 0;
  const size_t own =
      static_cast<size_t>(args.BlockOf(set.IndexOf(staged.rank()), set.count)) *
      count * DTypeSize(args.dtype);
  const bool in_place = reduce.in_place && sends;

  Bytes send = Elements(args.dtype, staged.rank(), blocks * count);
  Bytes recv = Elements(args.recv_dtype, 100 + staged.rank(), count);
  const DeviceMemory staged_send = staged.Tensor(send);
  const DeviceMemory staged_recv = staged.Tensor(recv);

  args.send = sends ? send.data() : nullptr;
  args.recv = in_place ? send.data() + own : recv.data();
  SHARD_ASSERT_OK(cpu->ReduceScatter("sum", set, args));
  args.send = sends ? staged_send.data() : nullptr;
  args.recv = in_place ? staged_send.data() + own : staged_recv.data();
  staged.collectives()->ReduceScatter("sum", set, args, staged.stream());
  SHARD_ASSERT_OK(staged.Synchronize());
  const std::string text =
      StrCat(count, " ", DTypeName(args.dtype), " to ",
             DTypeName(args.recv_dtype), args.add ? ", added" : "", ", ",
             args.block_groups, " groups, absent ", reduce.absent, ", set ",
             set.stride, " ", set.count, in_place ? ", in place" : "");
  EXPECT_TRUE(StagedRank::ValuesOf(staged_send) == send) << text;
  EXPECT_TRUE(StagedRank::ValuesOf(staged_recv) == recv) << text;
}

// Returns the elements of a chunk, of which each takes so many bytes.
size_t ChunkOf(size_t unit_bytes) { return kUsed / unit_bytes / 64 * 64; }

// Returns the calls of the Exchange that a collective makes: none where the set
// is one rank, whose tensors stay on the device.
size_t CallsOf(const RankSet& set, size_t count, size_t most, size_t chunk) {
  if (set.count == 1) return 0;
  return count <= most ? 1 : (count + chunk - 1) / chunk;
}

class StagedTest
    : public ::testing::TestWithParam<std::tuple<const char*, int, bool>> {
 protected:
  void Run(const std::function<void(Pair*)>& body) {
    const auto& [device, world_size, direct] = GetParam();
    RunGroup(
        Backend::kThreads, world_size,
        [&, device = device](Communicator* comm) {
          Pair pair(comm, device);
          body(&pair);
        },
        /*shutdown=*/true, direct ? "" : "direct=0");
  }
};

TEST_P(StagedTest, ReduceScattersHaveTheBitsOfTheCpu) {
  Run([](Pair* pair) {
    for (const RankSet& set : EverySet(*pair->cpu.comm())) {
      const auto ranks = static_cast<size_t>(set.count);
      for (const DType dtype : kDTypes) {
        for (const DType recv_dtype : kDTypes) {
          const size_t chunk =
              ChunkOf(ranks * DTypeSize(dtype) + DTypeSize(recv_dtype));
          for (const bool add : {false, true}) {
            for (const size_t count : {size_t{0}, size_t{1}, 3 * chunk + 5}) {
              CheckReduceScatter(
                  *pair, &pair->cpu, set, count,
                  {.dtype = dtype, .recv_dtype = recv_dtype, .add = add});
            }
          }
        }
        for (const bool add : {false, true}) {
          const size_t chunk = ChunkOf((ranks + 1) * DTypeSize(dtype));
          CheckReduceScatter(*pair, &pair->cpu, set, 2 * chunk + 1,
                             {.dtype = dtype,
                              .recv_dtype = dtype,
                              .add = add,
                              .in_place = true});
        }
      }
    }
  });
}

TEST_P(StagedTest, ReduceScattersSizesAroundAChunk) {
  Run([](Pair* pair) {
    for (const RankSet& set : EverySet(*pair->cpu.comm())) {
      const size_t unit = (static_cast<size_t>(set.count) + 1) * sizeof(float);
      const size_t most = kUsed / unit;  // In one chunk.
      const size_t chunk = ChunkOf(unit);
      for (const size_t count : {chunk - 1, chunk, chunk + 1, most, most + 1,
                                 2 * chunk, 2 * chunk + 1}) {
        const uint64_t before = pair->staged.Calls("reduce_scatter");
        CheckReduceScatter(*pair, &pair->cpu, set, count, {});
        // One of them is that of the CPU.
        EXPECT_EQ(pair->staged.Calls("reduce_scatter") - before - 1,
                  CallsOf(set, count, most, chunk))
            << count;
      }
    }
  });
}

TEST_P(StagedTest, ReduceScattersBlocksByGroups) {
  Run([](Pair* pair) {
    for (const RankSet& set : EverySet(*pair->cpu.comm())) {
      for (int groups = 2; groups <= set.count; ++groups) {
        if (set.count % groups != 0) continue;
        for (const size_t count : {77, 1001}) {
          for (const bool in_place : {false, true}) {
            CheckReduceScatter(
                *pair, &pair->cpu, set, count,
                {.add = true, .groups = groups, .in_place = in_place});
          }
        }
      }
    }
  });
}

TEST_P(StagedTest, RanksMayHaveNothingToAdd) {
  Run([](Pair* pair) {
    const RankSet all = RankSet::All(pair->cpu.world_size());
    for (unsigned absent = 0; absent < 1u << all.count; ++absent) {
      for (const bool add : {false, true}) {
        for (const size_t count : {63, 1001}) {
          CheckReduceScatter(*pair, &pair->cpu, all, count,
                             {.dtype = DType::kBF16,
                              .add = add,
                              .absent = absent,
                              .in_place = false});
        }
      }
    }
  });
}

TEST_P(StagedTest, AllGathersBlocks) {
  Run([](Pair* pair) {
    const StagedRank& staged = pair->staged;
    for (const RankSet& set : EverySet(*pair->cpu.comm())) {
      const auto ranks = static_cast<size_t>(set.count);
      const auto index = static_cast<size_t>(set.IndexOf(staged.rank()));
      const size_t most = kUsed / ranks;
      const size_t chunk = ChunkOf(ranks);
      for (const size_t bytes :
           {size_t{0}, size_t{1}, chunk - 1, chunk, chunk + 1, most, most + 1,
            2 * chunk, 3 * chunk + 7}) {
        const Bytes own = Elements(DType::kF32, staged.rank(), bytes / 4 + 1);
        Bytes expected(ranks * bytes);
        SHARD_ASSERT_OK(pair->cpu.AllGatherBlocks("gather", set, own.data(),
                                                  bytes, expected.data()));
        const DeviceMemory send = staged.Tensor(own);
        const DeviceMemory recv = staged.Tensor(Bytes(ranks * bytes));
        const uint64_t before = staged.Calls("all_gather_blocks");
        staged->AllGatherBlocks("gather", set, send.data(), bytes, recv.data(),
                                staged.stream());
        SHARD_ASSERT_OK(staged.Synchronize());
        EXPECT_EQ(staged.Calls("all_gather_blocks") - before,
                  CallsOf(set, bytes, most, chunk))
            << bytes;
        EXPECT_TRUE(StagedRank::ValuesOf(recv) == expected) << bytes;
        EXPECT_TRUE(StagedRank::ValuesOf(send) == own) << bytes;

        Bytes place(ranks * bytes);
        std::copy_n(own.begin(), bytes, place.data() + index * bytes);
        const DeviceMemory both = staged.Tensor(place);
        staged->AllGatherBlocks("in place", set, both.data() + index * bytes,
                                bytes, both.data(), staged.stream());
        SHARD_ASSERT_OK(staged.Synchronize());
        EXPECT_TRUE(StagedRank::ValuesOf(both) == expected)
            << bytes << " in place";
      }
    }
  });
}

TEST_P(StagedTest, BroadcastsFromEveryRank) {
  Run([](Pair* pair) {
    const StagedRank& staged = pair->staged;
    for (int root = 0; root < pair->cpu.world_size(); ++root) {
      for (const size_t count : {size_t{0}, size_t{1}, kUsed / 4, kUsed / 4 + 1,
                                 kUsed, 3 * kUsed / 4 + 3}) {
        const DeviceMemory data =
            staged.Tensor(Elements(DType::kF32, staged.rank(), count));
        const uint64_t before = staged.Calls("broadcast");
        staged->Broadcast("weights", root, data.data(), count * sizeof(float),
                          staged.stream());
        SHARD_ASSERT_OK(staged.Synchronize());
        EXPECT_EQ(staged.Calls("broadcast") - before,
                  std::max<size_t>((count * 4 + kUsed - 1) / kUsed, 1));
        EXPECT_TRUE(StagedRank::ValuesOf(data) ==
                    Elements(DType::kF32, root, count))
            << count << " of rank " << root;
      }
    }
  });
}

// Staging memory is used again before the host has waited for anything.
TEST_P(StagedTest, CollectivesFollowOneAnother) {
  Run([](Pair* pair) {
    const StagedRank& staged = pair->staged;
    const RankSet all = RankSet::All(pair->cpu.world_size());
    const auto ranks = static_cast<size_t>(all.count);
    constexpr size_t kCount = 1501;
    constexpr size_t kBytes = kCount * sizeof(float);
    const Bytes values = Elements(DType::kF32, staged.rank(), ranks * kCount);
    Bytes sum(kBytes);
    Bytes gathered(ranks * kBytes);
    SHARD_ASSERT_OK(pair->cpu.ReduceScatter(
        "sum", all,
        {.send = values.data(), .count = kCount, .recv = sum.data()}));
    SHARD_ASSERT_OK(pair->cpu.AllGatherBlocks("gather", all, sum.data(), kBytes,
                                              gathered.data()));
    const DeviceMemory send = staged.Tensor(values);
    std::vector<DeviceMemory> results;
    for (int i = 0; i < 4; ++i) {
      results.push_back(staged.Tensor(Bytes(ranks * kBytes)));
      std::byte* const to = results.back().data();
      std::byte* const own = to + static_cast<size_t>(staged.rank()) * kBytes;
      staged->ReduceScatter("sum", all,
                            {.send = send.data(), .count = kCount, .recv = own},
                            staged.stream());
      staged->AllGatherBlocks("gather", all, own, kBytes, to, staged.stream());
      staged->Broadcast("weights", 0, to, kBytes, staged.stream());
    }
    SHARD_ASSERT_OK(staged.Synchronize());
    EXPECT_EQ(staged->order(DType::kF32), SumOrder::kRankOrder);
    for (const DeviceMemory& result : results) {
      EXPECT_TRUE(StagedRank::ValuesOf(result) == gathered);
    }
  });
}

constexpr char kLate[] = "cpu-async?max_delay=0.0001&seed=3";

std::string TestName(
    const ::testing::TestParamInfo<std::tuple<const char*, int, bool>>& info) {
  const auto& [device, world_size, direct] = info.param;
  return StrCat(device == kLate ? "late" : "cpu", world_size,
                direct ? "Direct" : "");
}

INSTANTIATE_TEST_SUITE_P(All, StagedTest,
                         ::testing::Combine(::testing::Values("cpu", kLate),
                                            ::testing::Values(1, 2, 3, 4),
                                            ::testing::Values(false)),
                         TestName);
// Ranks that share memory take the same way.
INSTANTIATE_TEST_SUITE_P(Direct, StagedTest,
                         ::testing::Combine(::testing::Values("cpu"),
                                            ::testing::Values(2),
                                            ::testing::Values(true)),
                         TestName);

constexpr size_t kManyBytes = 10 * kUsed;  // A broadcast of 10 chunks.

// Returns work that takes a while.
std::function<Status()> WorkOf(double seconds) {
  return [seconds] {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    return Status();
  };
}

class StagedFaultTest : public ::testing::TestWithParam<const char*> {
 protected:
  static void Run(int world_size,
                  const std::function<void(Communicator*)>& body,
                  bool shutdown = false) {
    RunGroup(Backend::kThreads, world_size, body, shutdown, "direct=0");
  }
  // Runs a broadcast to a rank that copies its chunks slowly.
  static Status BroadcastSlowly(Communicator* comm, double timeout,
                                std::optional<double> call) {
    StagedRank rank(comm, GetParam(), timeout,
                    comm->rank() == 1 ? WorkOf(0.1) : nullptr);
    const DeviceMemory data = rank.Tensor(Bytes(kManyBytes));
    std::optional<Deadline> deadline;
    if (call.has_value()) deadline = Deadline::After(*call);
    rank->SetDeadline(deadline);
    rank->Broadcast("weights", 0, data.data(), kManyBytes, rank.stream());
    return rank.Synchronize();
  }
};

TEST_P(StagedFaultTest, TheDeadlineIsThatOfAllChunks) {
  Run(2, [](Communicator* comm) {
    const Status status = BroadcastSlowly(comm, 0.5, {});
    if (comm->rank() == 0) {
      ExpectError(status, StatusCode::kDeadlineExceeded,
                  {"'weights': 1 of 2 ranks did not enter it within 0.5 s"});
    } else {
      ExpectError(status, StatusCode::kPoisoned, {"'weights': 1 of 2 ranks"});
    }
  });
}

TEST_P(StagedFaultTest, TheDeadlineOfACallIsThatOfAllChunks) {
  Run(2, [](Communicator* comm) {
    const Status status = BroadcastSlowly(comm, 30, 0.5);
    EXPECT_EQ(status.code(), comm->rank() == 0 ? StatusCode::kDeadlineExceeded
                                               : StatusCode::kPoisoned)
        << status.ToString();
  });
}

TEST_P(StagedFaultTest, ACallMayAllowMoreTime) {
  Run(
      2, [](Communicator* comm) { EXPECT_OK(BroadcastSlowly(comm, 0.05, 30)); },
      /*shutdown=*/true);
}

// The time of a collective begins when it does.
TEST_P(StagedFaultTest, TheDeadlineBeginsWithTheCollective) {
  Run(
      2,
      [](Communicator* comm) {
        StagedRank rank(comm, GetParam(), /*timeout=*/1);
        const Deadline timeout = Deadline::After(1);
        const DeviceMemory data = rank.Tensor(Bytes(kManyBytes));
        // One collective before it, whose time has passed by then.
        rank->Broadcast("early", 0, data.data(), 4, rank.stream());
        rank.stream()->Call("work until the timeout has passed", [&timeout] {
          while (!timeout.Expired()) std::this_thread::yield();
          return Status();
        });
        rank->Broadcast("late", 0, data.data(), kManyBytes, rank.stream());
        EXPECT_OK(rank.Synchronize());
      },
      /*shutdown=*/true);
}

// One rank stops between two chunks until its peers have given up.
TEST_P(StagedFaultTest, ARankThatStopsBetweenChunksIsAnErrorOfAll) {
  Gate gate;
  Run(3, [&](Communicator* comm) {
    std::atomic<int> copies{0};
    StagedRank rank(comm, GetParam(), /*timeout=*/0.5, [&] {
      if (comm->rank() == 1 && ++copies == 3) return gate.Pass();
      return Status();
    });
    const DeviceMemory data = rank.Tensor(Bytes(kManyBytes));
    const auto broadcast = [&] {
      rank->Broadcast("weights", 0, data.data(), kManyBytes, rank.stream());
      return rank.Synchronize();
    };
    if (comm->rank() == 1) {
      std::thread opener([&] {
        EXPECT_TRUE(Contains(comm->Barrier("control", Soon()).message(),
                             "'weights': 1 of 3 ranks did not enter it"));
        gate.Open();
      });
      ExpectError(broadcast(), StatusCode::kPoisoned, {"'weights': 1 of 3"});
      opener.join();
    } else {
      const Status status = broadcast();
      EXPECT_TRUE(Contains(status.message(),
                           "'weights': 1 of 3 ranks did not enter it within "
                           "0.5 s: rank [1]"));
    }
  });
}

TEST_P(StagedFaultTest, ASetThatWasNotOpenedFailsTheStream) {
  Run(4, [](Communicator* comm) {
    StagedRank rank(comm, GetParam());
    const RankSet wrong = {0, 1, 3};
    const DeviceMemory data = rank.Tensor(Bytes(400));
    const Bytes before = StagedRank::ValuesOf(data);
    if (comm->rank() % 2 == 0) {
      rank->AllGatherBlocks("odd", wrong, data.data(), 100, data.data(),
                            rank.stream());
    } else {
      rank->ReduceScatter(
          "odd", wrong, {.send = data.data(), .count = 25, .recv = data.data()},
          rank.stream());
    }
    rank->Broadcast("next", 0, data.data(), 4, rank.stream());
    ExpectInvalid(rank.Synchronize(), {"'odd' over 3 ranks from 0",
                                       "OpenCollectives was not given"});
    EXPECT_TRUE(StagedRank::ValuesOf(data) == before);
  });
}

TEST_P(StagedFaultTest, DifferentCallsAreDesync) {
  Run(2, [](Communicator* comm) {
    StagedRank rank(comm, GetParam());
    const DeviceMemory data = rank.Tensor(Bytes(kManyBytes));
    // The calls have the same first chunks.
    const size_t bytes = comm->rank() == 0 ? kManyBytes : kManyBytes - 4;
    rank->Broadcast("weights", 0, data.data(), bytes, rank.stream());
    ExpectError(rank.Synchronize(), StatusCode::kDesync,
                {"rank 0 called broadcast 'weights'",
                 "rank 1 called broadcast 'weights'"});
  });
}

INSTANTIATE_TEST_SUITE_P(All, StagedFaultTest, ::testing::Values("cpu", kLate),
                         [](const auto& info) {
                           return info.param == kLate ? "late" : "cpu";
                         });

// A rank is killed after its second chunk.
TEST(StagedKillTest, ARankThatIsLostBetweenChunksIsAnErrorOfAll) {
  constexpr int kRanks = 3;
  constexpr int kVictim = 1;
  const std::string url =
      UrlFor(Backend::kShm, UniqueName(), kRanks, "direct=0");
  const auto results = RunRanks(kRanks, [&](const Rank& process) {
    auto comm =
        OpenCommunicator(url, {.rank = process.rank(), .world_size = kRanks});
    ASSERT_OK(comm);
    int copies = 0;
    StagedRank rank(comm->get(), "cpu", /*timeout=*/30, [&] {
      if (process.rank() == kVictim && ++copies == 3) ::raise(SIGKILL);
      return Status();
    });
    const DeviceMemory data = rank.Tensor(Bytes(kManyBytes));
    rank->Broadcast("weights", 0, data.data(), kManyBytes, rank.stream());
    const Status status = rank.Synchronize();
    ExpectError(status, StatusCode::kRankLost, {"'weights'"});
    EXPECT_EQ(status.rank(), kVictim);
  });
  for (const RankResult& result : results) {
    if (result.rank == kVictim) {
      EXPECT_EQ(result.signal, SIGKILL) << result.ToString();
    } else {
      EXPECT_TRUE(result.passed()) << result.ToString();
    }
  }
}

// A device without memory that the host reaches.
class NoHostMemory final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;

  StatusOr<DeviceMemory> AllocateHost(size_t bytes,
                                      std::string_view what) override {
    return ResourceExhausted("no ", bytes, " bytes for ", what);
  }
};

TEST(OpenStagedTest, NoStagingMemoryIsAnErrorOfAllRanks) {
  RunGroup(Backend::kThreads, 3, [](Communicator* comm) {
    const auto device = GuardTensors(*OpenDevice("cpu"));
    NoHostMemory without(device);
    Device* const own = comm->rank() == 1 ? &without : device.get();
    ExpectError(OpenCollectives(comm, own, {}, {}, Soon()),
                StatusCode::kResourceExhausted,
                {"rank 1", "no 4194304 bytes for staging memory"});
    // The group is still there.
    EXPECT_OK(OpenCollectives(comm, device.get(), {}, {}, Soon()));
  });
}

TEST(OpenStagedTest, DifferentStagingMemoryIsNamed) {
  for (const bool on_host : {false, true}) {
    RunGroup(
        Backend::kThreads, 3,
        [on_host](Communicator* comm) {
          const bool odd = comm->rank() == 2;
          const auto host = *OpenDevice("cpu");
          const auto device = GuardTensors(host);
          const Status status =
              OpenCollectives(
                  comm, odd && on_host ? host.get() : device.get(), {},
                  {.staging_bytes = odd ? size_t{8192} : size_t{4096}}, Soon())
                  .status();
          ExpectError(status, StatusCode::kDesync,
                      {"bytes of staging memory: rank 0 has 4096, rank 2 has ",
                       on_host ? "rank 2 has 0" : "rank 2 has 8192"});
        },
        /*shutdown=*/false);
  }
}

// Staging memory that was chosen too small for the world grows with it.
TEST(OpenStagedTest, AWorldOfAnySizeHasAChunk) {
  EXPECT_EQ(staged::StagingBytes(1, 4), 6u * 64);
  EXPECT_EQ(staged::StagingBytes(1000, 4), 1024u);
  RunGroup(Backend::kThreads, 4, [](Communicator* comm) {
    const auto device = GuardTensors(*OpenDevice("cpu"));
    const RankSet all = RankSet::All(4);
    auto collectives = OpenCollectives(comm, device.get(), {&all, 1},
                                       {.staging_bytes = 0}, Soon());
    ASSERT_OK(collectives);
    constexpr size_t kCount = 100;
    const auto send = *device->Allocate(4 * kCount * sizeof(float), "send");
    const auto recv = *device->Allocate(kCount * sizeof(float), "recv");
    auto* const values = reinterpret_cast<float*>(KernelView(send.data()));
    std::fill_n(values, 4 * kCount, static_cast<float>(comm->rank()));
    const auto stream = *device->CreateStream(StreamKind::kCommunication);
    (*collectives)
        ->ReduceScatter("sum", all,
                        {.send = send.data(),
                         .count = kCount,
                         .recv = recv.data(),
                         .add = true},
                        stream.get());
    (*collectives)
        ->AllGatherBlocks("gather", all, recv.data(), kCount * sizeof(float),
                          send.data(), stream.get());
    ASSERT_OK(stream->Synchronize(Soon()));
    for (size_t i = 0; i < 4 * kCount; ++i) ASSERT_EQ(values[i], 6) << i;
  });
}

}  // namespace
}  // namespace shard::testing::staged_collectives_test
