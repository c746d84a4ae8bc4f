// SPDX-License-Identifier: Apache-2.0
//
// NcclTest: a fixture for tests of the fake NCCL, and Rank: one of its ranks,
// which calls it as libshard does.

#ifndef SHARD_TESTS_FAKE_NCCL_NCCL_TESTING_H_
#define SHARD_TESTS_FAKE_NCCL_NCCL_TESTING_H_

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/core/base/comes_true.h"
#include "tests/fake_cuda/driver_testing.h"
#include "tests/fake_nccl/entry_points.h"
#include "tests/fake_nccl/fake_nccl.h"
#include "tests/fake_nccl/fake_nccl_fixture.h"

namespace shard::testing::fake_nccl {

using cuda::CuContext;
using cuda::CuEvent;
using cuda::CuPointer;
using cuda::CuResult;
using cuda::CuStream;
using fake_cuda::Api;
using fake_cuda::At;
using ::shard::testing::ComesTrue;

#define EXPECT_NCCL(call) EXPECT_EQ((call), Result::kSuccess)
#define ASSERT_NCCL(call) ASSERT_EQ((call), Result::kSuccess)

// A rank: a device whose context is current in the thread that made it, and a
// stream.
class Rank {
 public:
  Rank(int rank, int device) : rank_(rank), device_(device) {
    EXPECT_CU(api_.DevicePrimaryCtxRetain(&context_, device));
    EXPECT_CU(api_.CtxPushCurrent(context_));
    EXPECT_CU(api_.StreamCreate(&stream_, cuda::kStreamNonBlocking));
  }
  ~Rank() {
    for (const CuPointer it : memory_) api_.MemFree(it);
    for (const CuEvent it : events_) api_.EventDestroy(it);
    for (const CuStream it : streams_) api_.StreamDestroy(it);
    api_.StreamDestroy(stream_);
    CuContext popped = nullptr;
    api_.CtxPopCurrent(&popped);  // Fails where the device is lost.
    api_.DevicePrimaryCtxRelease(device_);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  int rank() const { return rank_; }
  CuStream stream() const { return stream_; }
  CuContext context() const { return context_; }

  void MakeCurrent() const { EXPECT_CU(api_.CtxPushCurrent(context_)); }
  static void PopCurrent() {
    CuContext popped = nullptr;
    EXPECT_CU(Api().CtxPopCurrent(&popped));
  }

  // Begins a communicator with blocking = 0.
  Result Begin(int nranks, const UniqueId& id, Comm** comm) const {
    Config config;
    config.blocking = 0;
    return ncclCommInitRankConfig(comm, nranks, id, rank_, &config);
  }
  // Polls until a communicator is no longer in progress.
  static Result Await(Comm* comm) {
    Result result = Result::kInProgress;
    Result called = Result::kSuccess;
    EXPECT_TRUE(ComesTrue([&] {
      called = ncclCommGetAsyncError(comm, &result);
      return called != Result::kSuccess || result != Result::kInProgress;
    }));
    EXPECT_NCCL(called);
    return result;
  }
  // Makes a communicator of all ranks.
  Comm* Init(int nranks, const UniqueId& id) const {
    Comm* comm = nullptr;
    EXPECT_EQ(Begin(nranks, id, &comm), Result::kInProgress);
    EXPECT_NCCL(Await(comm));
    return comm;
  }
  static void Finish(Comm* comm) {
    EXPECT_EQ(ncclCommFinalize(comm), Result::kInProgress);
    EXPECT_NCCL(Await(comm));
    EXPECT_NCCL(ncclCommDestroy(comm));
  }

  CuStream MakeStream() {
    CuStream made = nullptr;
    EXPECT_CU(api_.StreamCreate(&made, cuda::kStreamNonBlocking));
    streams_.push_back(made);
    return made;
  }
  void* Make(size_t bytes) {
    CuPointer made = 0;
    EXPECT_CU(api_.MemAlloc(&made, bytes));
    memory_.push_back(made);
    return reinterpret_cast<void*>(made);
  }
  // Returns memory of the device with values.
  template <typename T>
  T* Put(const std::vector<T>& values) {
    const size_t bytes = values.size() * sizeof(T);
    void* const made = Make(bytes);
    EXPECT_CU(api_.MemcpyAsync(At(made), At(values.data()), bytes, stream_));
    EXPECT_TRUE(Synchronize());
    return static_cast<T*>(made);
  }
  // Returns values when the stream has come to them.
  template <typename T>
  std::vector<T> Get(const T* memory, size_t count) {
    std::vector<T> values(count);
    EXPECT_CU(api_.MemcpyAsync(At(values.data()), At(memory), count * sizeof(T),
                               stream_));
    EXPECT_TRUE(Synchronize());
    return values;
  }
  bool Synchronize() { return Synchronize(stream_); }
  bool Synchronize(CuStream stream) {
    const CuEvent event = Record(stream);
    CuResult result = CuResult::kNotReady;
    return ComesTrue([&] {
             result = api_.EventQuery(event);
             return result != CuResult::kNotReady;
           }) &&
           result == CuResult::kSuccess;
  }
  CuEvent Record() { return Record(stream_); }
  CuEvent Record(CuStream stream) {
    CuEvent event = nullptr;
    EXPECT_CU(api_.EventCreate(&event, cuda::kEventDisableTiming));
    EXPECT_CU(api_.EventRecord(event, stream));
    events_.push_back(event);
    return event;
  }
  // Returns whether a stream has not come to a record.
  static bool IsPending(CuEvent event) {
    return Api().EventQuery(event) == CuResult::kNotReady;
  }

 private:
  const cuda::DriverApi& api_ = Api();
  const int rank_;
  const int device_;
  CuContext context_ = nullptr;
  CuStream stream_ = nullptr;
  std::vector<CuStream> streams_;
  std::vector<CuEvent> events_;
  std::vector<CuPointer> memory_;
};

inline UniqueId NewId() {
  UniqueId id = {};
  EXPECT_NCCL(ncclGetUniqueId(&id));
  return id;
}

class NcclTest : public ::testing::Test {
 protected:
  static constexpr int kDevices = 4;

  void SetUp() override {
    Api();
    Begin();
  }
  void TearDown() override { FakeNccl::Check(); }

  // Begins afresh.
  void Begin(const Options& options = {}, fake_cuda::Options cuda = {}) {
    cuda.devices = kDevices;
    ResetWithNccl(cuda, options);
    id_ = NewId();
  }
  // Runs ranks as threads, each on a device of its own.
  static void Run(int nranks, const std::function<void(Rank*)>& body) {
    std::vector<std::thread> threads;
    for (int r = 0; r < nranks; ++r) {
      threads.emplace_back([&body, r] {
        Rank rank(r, r);
        body(&rank);
      });
    }
    for (std::thread& it : threads) it.join();
  }
  // The same with a communicator of all, which ends well.
  void RunWithComm(int nranks, const std::function<void(Rank*, Comm*)>& body) {
    Run(nranks, [&](Rank* rank) {
      Comm* const comm = rank->Init(nranks, id_);
      body(rank, comm);
      Rank::Finish(comm);
    });
  }
  // Expects violations of one kind, the first of which has the text.
  static void ExpectViolations(ViolationKind kind, const std::string& text) {
    const std::vector<Violation> all = Violations();
    ASSERT_FALSE(all.empty());
    for (const Violation& it : all) EXPECT_EQ(it.kind, kind) << it.text;
    EXPECT_NE(ViolationText().find(text), std::string::npos) << ViolationText();
    ClearViolations();
  }

  UniqueId id_ = {};
};

}  // namespace shard::testing::fake_nccl

#endif  // SHARD_TESTS_FAKE_NCCL_NCCL_TESTING_H_
