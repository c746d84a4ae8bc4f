// SPDX-License-Identifier: Apache-2.0
//
// Memory runs out on one rank while two ranks capture a step whose collectives
// are NCCL's, on the fakes of NCCL and of the driver: the n-th allocation of
// libshard within its calls throws, for every n (SHARD_TEST_LONG) or some. The
// border to C turns that into an error, the other rank gets one at once, and
// everything is given back.

#include <gtest/gtest.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/device/cuda/driver.h"
#include "shard/shard.h"
#include "tests/fake_cuda/graph_api.h"
#include "tests/fake_nccl/fake_nccl_fixture.h"

namespace {

// The allocations of a thread that are libshard's, while the thread says so:
// those of the fakes, which are not libshard, never fail.
struct Allocations {
  bool armed = false;
  int64_t count = 0;
  int64_t fails_at = 0;
};
thread_local Allocations allocations;

// The code of this program and of libshard_cuda.so.
struct Code {
  uintptr_t begin = 0;
  uintptr_t end = 0;
};
std::array<Code, 2> codes;

int AddCode(dl_phdr_info* info, size_t /*bytes*/, void* /*unused*/) {
  const std::string_view name = info->dlpi_name;
  const size_t at = name.empty()                          ? 0
                    : name.ends_with("/libshard_cuda.so") ? 1
                                                          : codes.size();
  if (at == codes.size()) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
    codes[at].begin = info->dlpi_addr + part.p_vaddr;
    codes[at].end = codes[at].begin + part.p_memsz;
  }
  return 0;
}

void* Allocate(size_t bytes, const void* caller) {
  Allocations& mine = allocations;
  const auto address = reinterpret_cast<uintptr_t>(caller);
  const bool counts =
      mine.armed &&
      std::any_of(codes.begin(), codes.end(), [&](const Code& it) {
        return address >= it.begin && address < it.end;
      });
  if (counts && ++mine.count == mine.fails_at) throw std::bad_alloc();
  void* const memory = std::malloc(std::max<size_t>(bytes, 1));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t bytes) {
  return Allocate(bytes, __builtin_return_address(0));
}
void* operator new[](size_t bytes) {
  return Allocate(bytes, __builtin_return_address(0));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace shard::captured_step_test {
namespace {

using cuda::CuResult;

constexpr int kRanks = 2;
constexpr int kFails = 1;  // The rank without memory.
constexpr int64_t kNumel = 3000;

// The end of one rank's flow.
struct End {
  shard_code code = SHARD_OK;
  std::string call;
  std::string message;
  double seconds = 0;  // Of the calls of the capture.
  int64_t allocations = 0;
};

// A rank's context and stream, of which a host captures the work.
class HostStream {
 public:
  explicit HostStream(int device) : device_(device) {
    EXPECT_EQ(api_.DevicePrimaryCtxRetain(&context_, device_),
              CuResult::kSuccess);
    EXPECT_EQ(api_.CtxPushCurrent(context_), CuResult::kSuccess);
    EXPECT_EQ(api_.StreamCreate(&stream_, cuda::kStreamNonBlocking),
              CuResult::kSuccess);
  }
  ~HostStream() {
    api_.StreamDestroy(stream_);
    api_.CtxPopCurrent(&context_);
    api_.DevicePrimaryCtxRelease(device_);
  }
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  cuda::CuStream get() const { return stream_; }
  void BeginCapture() const {
    EXPECT_EQ(
        graphs_.StreamBeginCapture(stream_, cuda::CuCaptureMode::kThreadLocal),
        CuResult::kSuccess);
  }
  // Drops the graph that was captured.
  void EndCapture() const {
    cuda::CuGraph graph = nullptr;
    static_cast<void>(graphs_.StreamEndCapture(stream_, &graph));
    if (graph != nullptr) graphs_.GraphDestroy(graph);
  }

 private:
  const cuda::DriverApi& api_ = (*cuda::Driver::Load())->api();
  const cuda::GraphApi graphs_ = cuda::GraphApi::Load();
  const int device_;
  cuda::CuContext context_ = nullptr;
  cuda::CuStream stream_ = nullptr;
};

class Rank {
 public:
  Rank(int rank, std::string name)
      : rank_(rank), url_("threads:2?direct=0&name=" + name), stream_(rank) {}
  ~Rank() {
    shard_engine_free(engine_);
    shard_comm_free(comm_);
    shard_plan_free(plan_);
    shard_model_free(model_);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // Allocation `fails_at` of the calls of a capture fails; 0: none.
  End Run(int64_t fails_at) {
    if (!Make() || !Prepare()) return end_;
    stream_.BeginCapture();
    if (rank_ == kFails) ::dl_iterate_phdr(AddCode, nullptr);
    const auto begin = std::chrono::steady_clock::now();
    allocations = {rank_ == kFails, 0, fails_at};
    shard_error* const begun = shard_engine_capture_begin(engine_);
    shard_error* const stepped =
        begun == nullptr ? shard_engine_step(engine_, nullptr, nullptr)
                         : nullptr;
    shard_error* const ended =
        begun == nullptr ? shard_engine_capture_end(engine_) : nullptr;
    allocations.armed = false;
    end_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
            .count();
    end_.allocations = allocations.count;
    Failed("capture_begin", begun);
    Failed("step", stepped);
    Failed("capture_end", ended);
    stream_.EndCapture();
    return end_;
  }

 private:
  bool Make() {
    const int64_t shape[] = {kNumel};
    int32_t param = 0;
    shard_plan_options plan = SHARD_PLAN_OPTIONS_INIT;
    plan.stage = 1;
    plan.world_size = kRanks;
    plan.deterministic = 1;
    shard_comm_options comm = SHARD_COMM_OPTIONS_INIT;
    comm.rank = rank_;
    comm.world_size = kRanks;
    comm.timeout = 30;
    shard_engine_options engine = SHARD_ENGINE_OPTIONS_INIT;
    const std::string device =
        "cuda:" + std::to_string(rank_) + "?collectives=nccl";
    engine.device = device.c_str();
    return !Failed("model", shard_model_create("Net", &model_)) &&
           !Failed("param",
                   shard_model_add_param(model_, 0, "weight", SHARD_F32, shape,
                                         1, &param)) &&
           !Failed("plan", shard_plan_create(model_, &plan, &plan_)) &&
           !Failed("open", shard_comm_open(url_.c_str(), &comm, &comm_)) &&
           !Failed("engine",
                   shard_engine_create(plan_, comm_, &engine, &engine_)) &&
           !Failed("set_stream",
                   shard_engine_set_stream(engine_, stream_.get()));
  }
  bool Prepare() {
    const std::vector<float> values(kNumel, 1.0F);
    return !Failed("set_param",
                   shard_engine_set_param(engine_, 0, values.data(),
                                          values.size() * sizeof(float))) &&
           !Failed("broadcast", shard_engine_broadcast_params(engine_, 0)) &&
           !Failed("step", shard_engine_step(engine_, nullptr, nullptr)) &&
           !Failed("synchronize", shard_engine_synchronize(engine_, 0)) &&
           !Failed("barrier", shard_comm_barrier(comm_, 0));
  }
  bool Failed(const char* call, shard_error* error) {
    if (error == nullptr) return false;
    if (end_.code == SHARD_OK) {
      end_.code = shard_error_code(error);
      end_.call = call;
      end_.message = shard_error_message(error);
    }
    shard_error_free(error);
    return true;
  }

  const int rank_;
  const std::string url_;
  const HostStream stream_;
  End end_;
  shard_model* model_ = nullptr;
  shard_plan* plan_ = nullptr;
  shard_comm* comm_ = nullptr;
  shard_engine* engine_ = nullptr;
};

std::array<End, kRanks> RunRanks(int64_t fails_at) {
  static int groups = 0;
  const std::string name = "captured-" + std::to_string(++groups);
  const testing::FakeNccl fake({.devices = kRanks});
  std::array<End, kRanks> ends;
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      Rank rank(r, name);
      ends[static_cast<size_t>(r)] = rank.Run(r == kFails ? fails_at : 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ends;
}

TEST(CapturedStepTest, AnExceptionEndsAllRanksAtOnce) {
  const auto whole = RunRanks(0);
  for (const End& end : whole) ASSERT_EQ(end.message, "") << end.call;
  const int64_t count = whole[kFails].allocations;
  ASSERT_GT(count, 20);
  const int64_t stride =
      std::getenv("SHARD_TEST_LONG") != nullptr ? 1 : count / 20;
  int failed = 0;
  for (int64_t at = 1; at <= count; at += stride) {
    SCOPED_TRACE(at);
    const auto ends = RunRanks(at);
    for (const End& end : ends) EXPECT_LT(end.seconds, 10);
    const End& mine = ends[kFails];
    const End& other = ends[1 - kFails];
    // The allocation may be that of a text that may be missing.
    if (mine.code == SHARD_OK) {
      EXPECT_EQ(other.message, "") << other.call;
      continue;
    }
    ++failed;
    EXPECT_EQ(mine.code, SHARD_RESOURCE_EXHAUSTED)
        << mine.call << ": " << mine.message;
    EXPECT_TRUE(other.code == SHARD_RESOURCE_EXHAUSTED ||
                other.code == SHARD_POISONED || other.code == SHARD_RANK_LOST)
        << other.call << ": " << shard_code_name(other.code) << " "
        << other.message;
    if (HasFailure()) return;
  }
  EXPECT_GT(failed, 10);
}

}  // namespace
}  // namespace shard::captured_step_test
