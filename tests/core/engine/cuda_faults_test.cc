// SPDX-License-Identifier: Apache-2.0
//
// What becomes of an engine on the device cuda when the driver fails. A whole
// training, from the engine's creation to its end, is run once for each call
// that it makes of the driver's entry points: there that call fails, or the
// device is lost from it on. Each time the training ends well with the right
// parameters, or with an error that names the call; it leaves nothing behind
// it, no thread either; and the process trains again. The normal run tries some
// calls of each entry point. SHARD_TEST_LONG tries up to 60: the first and the
// last ones, where engines are made and freed, and some of the steps between;
// all of them would take 20 minutes.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "tests/core/base/hang_alarm.h"
#include "tests/core/base/sanitizers.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/core/engine/sixty_calls.h"
#include "tests/core/engine/thread_ranks.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"

namespace shard::cuda_faults_test {
namespace {

using cuda::CuCaptureMode;
using cuda::CuResult;
using cuda_training::Form;
using cuda_training::HostsStream;
using cuda_training::MakePlan;
using cuda_training::MuonForm;
using testing::ResetWithKernels;
using testing::fake_cuda::Alive;
using testing::fake_cuda::AliveText;
using testing::fake_cuda::ClearFailures;
using testing::fake_cuda::Count;
using testing::fake_cuda::CountAlive;
using testing::fake_cuda::CountSince;
using testing::fake_cuda::FailCall;
using testing::fake_cuda::IsLost;
using testing::fake_cuda::LoseAtCall;
using testing::fake_cuda::LoseAtOperation;
using testing::fake_cuda::Reset;
using testing::fake_cuda::ViolationText;
using FakeCounters = testing::fake_cuda::Counters;

// Below the 30 seconds of the ranks' deadlines, and of a stream that ends: a
// training that took as long has waited for one of them.
constexpr double kLongestSeconds = kSanitized ? 28 : 15;

std::ptrdiff_t CountThreads() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                       std::filesystem::directory_iterator());
}

// A thread that was joined may be listed for a moment.
void ExpectThreads(std::ptrdiff_t expected) {
  for (int i = 0; i < 2000 && CountThreads() > expected; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_LE(CountThreads(), expected);
}

// ---- Trainings -------------------------------------------------------------

using Result = StatusOr<std::vector<float>>;

// Returns the elements of parameter 0 after three steps.
Result Train(const std::shared_ptr<const Plan>& plan,
             const std::shared_ptr<Communicator>& comm, cuda::CuStream stream,
             const std::optional<Offload>& offload) {
  SHARD_ASSIGN_OR_RETURN(const auto engine,
                         cuda_training::MakeEngine(plan, comm, offload));
  if (stream != nullptr) SHARD_RETURN_IF_ERROR(engine->SetStream(stream));
  SHARD_RETURN_IF_ERROR(cuda_training::Fill(engine.get()));
  for (int step = 1; step <= 3; ++step) {
    SHARD_RETURN_IF_ERROR(cuda_training::TrainOneStep(engine.get(), step));
  }
  return cuda_training::ReadParam(engine.get());
}

// Returns what the calling thread may do while the host captures a graph.
CuCaptureMode CaptureModeOfThread() {
  const cuda::DriverApi& api = (*cuda::Driver::Load())->api();
  CuCaptureMode mode = CuCaptureMode::kGlobal;
  // Nobody can tell where the device is lost.
  if (api.ThreadExchangeCaptureMode(&mode) != CuResult::kSuccess) return mode;
  const CuCaptureMode found = mode;
  api.ThreadExchangeCaptureMode(&mode);
  return found;
}

// A failure of the driver.
struct Fault {
  std::string symbol;  // "": an operation of the device, not a call.
  uint64_t number = 0;
  CuResult result = CuResult::kUnknown;
  bool loses = false;

  std::string Text() const {
    return StrCat(symbol.empty() ? "operation" : symbol, " number ", number,
                  loses ? " loses the device" : " fails with ",
                  loses ? "" : StrCat(static_cast<int>(result)));
  }
  void Arm() const {
    if (symbol.empty()) {
      LoseAtOperation(number, result);
    } else if (loses) {
      LoseAtCall(symbol, number, result);
    } else {
      FailCall(symbol, number, result);
    }
  }
};

// The results of the ranks of a training, and what the fake had before and
// after it.
struct Outcome {
  std::vector<Result> results;
  Alive before;
  Alive after;
  double seconds = 0;

  bool Failed() const {
    return std::any_of(results.begin(), results.end(),
                       [](const Result& it) { return !it.ok(); });
  }
};

class Trainings {
 public:
  explicit Trainings(const Form& form) : form_(form), plan_(MakePlan(form)) {
    ResetWithKernels();
    // The first one starts the thread of the fake.
    const Outcome first = Run(nullptr);
    if (!first.Failed()) expected_ = *first.results[0];
    threads_ = CountThreads();
    ResetWithKernels();
    const FakeCounters before = Count();
    ExpectRight(Run(nullptr));
    counters_ = CountSince(before);
    EXPECT_GT(counters_.Calls(), 200u);
  }

  // The calls of one training.
  const FakeCounters& counters() const { return counters_; }

  // Trains once, on the fake as it is.
  Outcome Run(const Fault* fault) const {
    const testing::HangAlarm alarm(fault == nullptr ? "no fault"
                                                    : fault->Text());
    Outcome outcome;
    std::optional<HostsStream> stream;
    if (form_.hosts_stream) {
      stream.emplace();
      EXPECT_NE(stream->get(), nullptr);
    }
    const auto ranks = static_cast<size_t>(form_.world_size);
    outcome.results.assign(ranks, Status(StatusCode::kUnknown, "no rank"));
    std::vector<CuCaptureMode> modes(ranks, CuCaptureMode::kGlobal);
    outcome.before = CountAlive();
    if (fault != nullptr) fault->Arm();
    const auto begin = std::chrono::steady_clock::now();
    RunThreadRanks(form_.world_size, [&](const auto& comm) {
      const auto rank = static_cast<size_t>(comm->rank());
      Result& result = outcome.results[rank];
      result = Train(plan_, comm, stream ? stream->get() : nullptr,
                     cuda_training::OffloadOf(form_));
      // As a host does that goes on no more.
      if (!result.ok()) comm->Abort(result.status());
      modes[rank] = CaptureModeOfThread();
      EXPECT_EQ(CountAlive().current_contexts, 0u);
    });
    ClearFailures();
    outcome.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
            .count();
    outcome.after = CountAlive();
    // Every second call of a thread gives it its mode back, and nothing else
    // does. Which one that is, is known where one thread calls.
    if (fault == nullptr || fault->symbol != kExchange ||
        (ranks == 1 && !form_.offloads && fault->number % 2 == 1)) {
      for (const CuCaptureMode mode : modes) {
        EXPECT_EQ(mode, CuCaptureMode::kGlobal);
      }
    }
    return outcome;
  }

  void ExpectValues(const Outcome& outcome) const {
    for (const Result& result : outcome.results) {
      EXPECT_OK(result);
      if (result.ok()) {
        EXPECT_EQ(*result, expected_);
      }
    }
  }
  // And that nothing stays.
  void ExpectRight(const Outcome& outcome) const {
    ExpectValues(outcome);
    EXPECT_EQ(outcome.after, outcome.before) << AliveText();
  }

  // Trains with a fault on a fresh fake, and once more without one. Returns
  // whether any rank had an error.
  bool RunWith(const Fault& fault) const {
    SCOPED_TRACE(fault.Text());
    ResetWithKernels();
    const Outcome outcome = Run(&fault);
    for (const Result& result : outcome.results) {
      if (result.ok()) {
        EXPECT_EQ(*result, expected_);
      } else {
        ExpectNamed(result.status(), fault);
      }
    }
    EXPECT_LT(outcome.seconds, kLongestSeconds);
    EXPECT_EQ(ViolationText(), "");
    ExpectThreads(threads_);
    if (IsLost()) {
      // The driver frees memory with the device's context.
      Alive after = outcome.after;
      after.device_allocations = outcome.before.device_allocations;
      after.device_bytes = outcome.before.device_bytes;
      EXPECT_EQ(after, outcome.before) << AliveText();
      return outcome.Failed();
    }
    EXPECT_EQ(outcome.after, outcome.before) << AliveText();
    ExpectRight(Run(nullptr));
    return outcome.Failed();
  }

 private:
  static constexpr std::string_view kExchange =
      "cuThreadExchangeStreamCaptureMode";

  void ExpectNamed(const Status& status, const Fault& fault) const {
    const std::string text(status.message());
    EXPECT_NE(status.code(), StatusCode::kDeadlineExceeded) << text;
    if (fault.result == CuResult::kOutOfMemory) {
      // Another cuBLAS may start, so that an error has all that were tried.
      if (form_.world_size == 1 && fault.symbol != "cublasLtCreate") {
        EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << text;
      }
      return;
    }
    // cuBLAS has errors of its own, those of the driver's included.
    constexpr std::string_view kOfCublas = ": CUBLAS_STATUS_EXECUTION_FAILED";
    const bool of_cublas = text.find(kOfCublas) != std::string::npos;
    const std::string_view error = of_cublas ? kOfCublas
                                   : fault.loses
                                       ? ": CUDA_ERROR_ILLEGAL_ADDRESS"
                                       : ": CUDA_ERROR_UNKNOWN";
    const size_t end = text.find(error);
    ASSERT_NE(end, std::string::npos) << text;
    const size_t begin = text.rfind(' ', end) + 1;
    const std::string call = text.substr(begin, end - begin);
    EXPECT_EQ(call.substr(0, of_cublas ? 8 : 2), of_cublas ? "cublasLt" : "cu")
        << text;
    EXPECT_GT(call.size(), 5u) << text;
    if (!fault.loses && !(of_cublas && fault.symbol == "cuLaunchKernel")) {
      EXPECT_EQ(fault.symbol, call) << text;
    }
  }

  const Form form_;
  const std::shared_ptr<const Plan> plan_;
  std::vector<float> expected_;
  FakeCounters counters_;
  std::ptrdiff_t threads_ = 0;
};

// ---- Each call -------------------------------------------------------------

bool IsLong() { return std::getenv("SHARD_TEST_LONG") != nullptr; }

// Returns the numbers of at most `most` calls, from the first to the last.
std::vector<uint64_t> SomeOf(uint64_t calls, uint64_t most) {
  if (IsLong()) return SixtyOf(calls);
  if (kSanitized) most = (most + 4) / 5;
  std::vector<uint64_t> numbers;
  const uint64_t count = std::min(calls, most);
  for (uint64_t i = 0; i < count; ++i) {
    numbers.push_back(count == 1 ? 1 : 1 + i * (calls - 1) / (count - 1));
  }
  return numbers;
}

// Whether a call gives memory or a handle, so that there may be none.
bool Gives(const std::string& symbol) {
  return symbol.find("Alloc") != std::string::npos ||
         symbol.find("Create") != std::string::npos ||
         symbol.find("Load") != std::string::npos;
}

class CudaFaultTest : public ::testing::Test {
 protected:
  void TearDown() override { Reset(); }
};

// Trains with each fault of each entry point, or with `most` of it. A training
// with Muon calls cuBLAS, and no other does.
void TrainWithEveryFault(const Form& form, uint64_t most) {
  const Trainings trainings(form);
  const bool has_muon = form.optimizer.starts_with("muon");
  for (const char* const call : {"cublasLtCreate", "cublasLtMatmul"}) {
    EXPECT_EQ(trainings.counters().Calls(call) > 0, has_muon) << call;
  }
  int runs = 0;
  int failed = 0;
  for (const auto& [symbol, calls] : trainings.counters().calls) {
    for (const uint64_t number : SomeOf(calls, most)) {
      std::vector<Fault> faults = {
          {symbol, number}, {symbol, number, CuResult::kIllegalAddress, true}};
      if (Gives(symbol)) {
        faults.push_back({symbol, number, CuResult::kOutOfMemory});
      }
      // Under a sanitizer, the kinds of faults take turns.
      if (kSanitized && !IsLong()) {
        faults = {faults[static_cast<size_t>(runs) % faults.size()]};
      }
      for (const Fault& fault : faults) {
        failed += trainings.RunWith(fault) ? 1 : 0;
        ++runs;
      }
    }
  }
  EXPECT_GT(failed, runs / 2);
  ::testing::Test::RecordProperty("runs", runs);
}

TEST_F(CudaFaultTest, AnErrorOfAnyCallIsAnErrorOfTheTraining) {
  TrainWithEveryFault({}, 8);
}

// Calls return before their work is done, and a later one has its error.
TEST_F(CudaFaultTest, AnErrorOfAnyCallIsFoundOnAHostsStream) {
  TrainWithEveryFault({.units = 2, .stage = 0, .hosts_stream = true}, 3);
}

TEST_F(CudaFaultTest, AnErrorOfAnyCallEndsBothRanks) {
  TrainWithEveryFault({.units = 2, .world_size = 2}, 2);
}

// Copies of threads of the host fail in the middle of an update.
TEST_F(CudaFaultTest, AnErrorOfAnyCallIsAnErrorOfATrainingWithOffload) {
  TrainWithEveryFault({.units = 2, .offloads = true}, 3);
}

TEST_F(CudaFaultTest, AnErrorOfAnyCallEndsBothRanksOfATrainingWithOffload) {
  TrainWithEveryFault({.units = 2, .world_size = 2, .offloads = true}, 2);
}

// The calls of cuBLAS are among them.
TEST_F(CudaFaultTest, AnErrorOfAnyCallIsAnErrorOfATrainingWithMuon) {
  TrainWithEveryFault(MuonForm(), 2);
}

TEST_F(CudaFaultTest, AnErrorOfAnyCallEndsBothRanksOfATrainingWithMuon) {
  Form form = MuonForm();
  form.world_size = 2;
  TrainWithEveryFault(form, 2);
}

// Engines on one device share its context, its kernels and its memory pool.
// What fails in one is no error of the other, and both use right values.
TEST_F(CudaFaultTest, AnErrorLeavesOtherEnginesOfTheDeviceAlone) {
  const Trainings trainings({});
  CommOptions options;
  options.world_size = 1;
  const auto comm = OpenCommunicator("local:", options);
  ASSERT_OK(comm);
  const auto plan = MakePlan({.units = 2});
  const auto make = [&] {
    auto engine = cuda_training::MakeEngine(plan, *comm);
    EXPECT_OK(engine);
    EXPECT_OK(cuda_training::Fill(engine->get()));
    return *std::move(engine);
  };
  // The parameters after each step of an engine that is alone.
  std::vector<std::vector<float>> expected;
  {
    const testing::FakeCuda fake;
    const auto alone = make();
    for (int step = 1; step <= 3; ++step) {
      ASSERT_OK(cuda_training::TrainOneStep(alone.get(), step));
      const Result read = cuda_training::ReadParam(alone.get());
      ASSERT_OK(read);
      expected.push_back(*read);
    }
  }
  for (const auto& [symbol, calls] : trainings.counters().calls) {
    ResetWithKernels();
    const auto other = make();
    const FakeCounters before = Count();
    ASSERT_FALSE(trainings.Run(nullptr).Failed());
    const uint64_t made = CountSince(before).Calls(symbol);
    for (int step = 1; step <= 3; ++step) {
      // The device is open: some calls are not made again.
      const uint64_t number = 1 + made * static_cast<uint64_t>(step) / 4;
      const Fault fault = {symbol, number};
      SCOPED_TRACE(fault.Text());
      trainings.Run(&fault);
      ASSERT_OK(cuda_training::TrainOneStep(other.get(), step));
      const Result read = cuda_training::ReadParam(other.get());
      ASSERT_OK(read);
      EXPECT_EQ(*read, expected[static_cast<size_t>(step - 1)]);
      EXPECT_EQ(ViolationText(), "");
    }
    trainings.ExpectValues(trainings.Run(nullptr));
  }
}

// The driver tells of what happened on the device at a later call.
TEST_F(CudaFaultTest, AnyOperationMayLoseTheDevice) {
  const int stride = IsLong() ? 1 : kSanitized ? 5 : 2;
  uint64_t first = 1;  // Another one for each form.
  // With offload, operations lie within updates of the host's threads.
  for (const Form& form : {Form{}, Form{.hosts_stream = true}, MuonForm(),
                           Form{.units = 2, .offloads = true}}) {
    const Trainings trainings(form);
    int failed = 0;
    for (uint64_t number = first;; number += static_cast<uint64_t>(stride)) {
      Fault fault = {"", number, CuResult::kIllegalAddress, true};
      failed += trainings.RunWith(fault) ? 1 : 0;
      if (!IsLost()) break;
    }
    EXPECT_GT(failed, 30 / stride);
    first = first % static_cast<uint64_t>(stride) + 1;
  }
}

}  // namespace
}  // namespace shard::cuda_faults_test
