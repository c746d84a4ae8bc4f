// SPDX-License-Identifier: Apache-2.0
//
// Hosts that call an engine in random orders around captures and replays, on
// the fake of the driver: calls that are not allowed are errors that end
// nothing, and the calls that succeed have the bits of the same steps without
// graphs. SHARD_TEST_LONG tries 2,000 orders.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/base/strings.h"
#include "core/device/cuda/driver.h"
#include "core/device/cuda/driver_api.h"
#include "core/engine/engine.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/engine/cuda_graph_host.h"
#include "tests/core/engine/cuda_training.h"
#include "tests/fake_cuda/fake_cuda_fixture.h"
#include "tests/fake_cuda/graph_api.h"

namespace shard::cuda_graph_orders_test {
namespace {

using cuda::CuCaptureMode;
using cuda::CuGraph;
using cuda::CuResult;
using cuda_graphs::Host;
using cuda_training::Clipped;
using testing::FakeCudaTest;
using testing::TempFolder;

// A call that has succeeded, and changed what is trained.
struct Done {
  enum Kind { kStep, kHyper, kFreeze, kSave, kLoad } kind;
  int number = 0;  // Of the gradients of a step; 0: they are zeros.
  uint64_t form = 0;
  double lr = 0;
};

// Returns the options of a form of steps. A graph is of the first two, or of
// the third, whose norm has a second pass.
StepOptions OptionsOf(uint64_t form) {
  StepOptions options = form == 0 ? StepOptions() : Clipped();
  if (form == 2) options.grad_norm_type = 3;
  return options;
}

Status FreezeAndThaw(Engine* engine) {
  const ParamId params[] = {0};
  SHARD_RETURN_IF_ERROR(engine->SetTrainable(params, false, 0));
  return engine->SetTrainable(params, true, 0);
}

Status SaveTo(const std::string& folder, Engine* engine) {
  SaveOptions options;
  options.overwrite = true;
  return engine->Save(folder, options).status();
}

// Does without graphs what was done.
class Reference {
 public:
  explicit Reference(const std::vector<Done>& all) : host_("adamw") {
    for (const Done& done : all) Do(done);
    EXPECT_OK(host_.engine()->Synchronize(0));
  }

  Host* host() { return &host_; }

 private:
  void Do(const Done& done) {
    Engine* const engine = host_.engine();
    switch (done.kind) {
      case Done::kStep:
        if (done.number == 0) {
          EXPECT_OK(engine->ZeroGrad());
        } else {
          host_.CopyGrads(done.number, true);
        }
        EXPECT_OK(engine->Step(OptionsOf(done.form), nullptr));
        return;
      case Done::kHyper:
        EXPECT_OK(engine->SetHyper(-1, "lr", done.lr));
        return;
      case Done::kFreeze:
        EXPECT_OK(FreezeAndThaw(engine));
        return;
      case Done::kSave:
        EXPECT_OK(SaveTo(folder_.path(), engine));
        return;
      case Done::kLoad: {
        LoadReport report;
        EXPECT_OK(engine->Load(folder_.path(), LoadOptions(), &report));
        return;
      }
    }
  }

  const TempFolder folder_;
  Host host_;
};

// Calls an engine at random.
class RandomHost {
 public:
  explicit RandomHost(uint64_t seed) : random_(seed), host_("adamw") {}
  ~RandomHost() { Forget(); }
  RandomHost(const RandomHost&) = delete;
  RandomHost& operator=(const RandomHost&) = delete;

  // Makes one call, or a few.
  void Call() {
    switch (random_() % 16) {
      case 0:
        return CaptureInOrder();
      case 1:
        return BeginHostsCapture();
      case 2:
        return EndHostsCapture();
      case 3:
      case 4:
        Try("capture_begin", engine()->CaptureBegin());
        return;
      case 5:
        return CaptureStep();
      case 6:
        EndCapture();
        return;
      case 7:
        return ZeroGrad();
      case 8:
      case 9:
      case 10:
        return Replay();
      case 11:
      case 12:
        return Step();
      case 13:
        return SetHyper();
      case 14:
        return CallRarely();
      default:
        return Wait();
    }
  }

  // Ends captures, and waits.
  void End() {
    Try("capture_end", engine()->CaptureEnd());
    EndHostsCapture();
    EXPECT_OK(engine()->Synchronize(0));
  }

  Host* host() { return &host_; }
  Engine* engine() { return host_.engine(); }
  const std::vector<Done>& done() const { return done_; }
  const std::string& text() const { return text_; }  // All calls.
  uint64_t replays() const { return replays_; }

 private:
  bool Flip() { return random_() % 2 == 0; }
  uint64_t ChooseForm() {
    constexpr uint64_t kForms[] = {0, 0, 1, 1, 2};
    return kForms[random_() % 5];
  }

  // Expects a call to succeed, or to fail as one that is not allowed now.
  bool Try(const std::string& call, const Status& status) {
    EXPECT_TRUE(status.ok() ||
                status.code() == StatusCode::kFailedPrecondition ||
                status.code() == StatusCode::kInvalidArgument)
        << call << ": " << status.ToString();
    StrAppend(&text_, "\n", call, status.ok() ? "" : " is refused");
    return status.ok();
  }

  void Forget() {
    if (exec_ != nullptr) graphs_.GraphExecDestroy(exec_);
    exec_ = nullptr;
  }

  // Makes a graph of a step, but for a mistake now and then.
  void CaptureInOrder() {
    BeginHostsCapture();
    Try("capture_begin", engine()->CaptureBegin());
    if (random_() % 8 == 0) ZeroGrad();
    if (random_() % 8 == 0) CallWhatIsForbidden();
    CaptureStep();
    if (Flip()) ZeroGrad();
    if (random_() % 8 == 0) CallRarely();
    EndCapture();
    EndHostsCapture();
  }

  void ZeroGrad() {
    if (!Try("zero_grad", engine()->ZeroGrad())) return;
    if (is_captured_ && num_steps_ == 0) zeroes_ = true;
  }

  void BeginHostsCapture() {
    if (is_captured_) return;
    constexpr CuCaptureMode kModes[] = {CuCaptureMode::kGlobal,
                                        CuCaptureMode::kThreadLocal,
                                        CuCaptureMode::kRelaxed};
    EXPECT_EQ(graphs_.StreamBeginCapture(stream(), kModes[random_() % 3]),
              CuResult::kSuccess);
    is_captured_ = true;
    num_steps_ = 0;
    zeroes_ = false;
  }

  void EndHostsCapture() {
    if (!is_captured_) return;
    CuGraph graph = nullptr;
    const CuResult ended = graphs_.StreamEndCapture(stream(), &graph);
    is_captured_ = false;
    if (ended != CuResult::kSuccess) return;
    // A graph of two steps does both with the values of one.
    if (num_steps_ == 1) {
      exec_zeroes_ = zeroes_;
      EXPECT_EQ(graphs_.GraphInstantiate(&exec_, graph, 0), CuResult::kSuccess);
    }
    EXPECT_EQ(graphs_.GraphDestroy(graph), CuResult::kSuccess);
  }

  // Makes the step of a capture, where the engine captures; else a plain one,
  // which needs gradients.
  void CaptureStep() {
    if (!is_captured_) return Step();
    if (!Try("a captured step",
             engine()->Step(OptionsOf(ChooseForm()), nullptr))) {
      return;
    }
    // Graphs of other steps must not be launched any more.
    Forget();
    ++num_steps_;
  }

  void EndCapture() {
    if (!Try("capture_end", engine()->CaptureEnd())) return;
    // A call that waits or allocates, as a host may make by mistake.
    if (random_() % 4 == 0) CallWhatIsForbidden();
  }

  void CallWhatIsForbidden() {
    const auto call = [] {
      const cuda::DriverApi& api = (*cuda::Driver::Load())->api();
      cuda::CuPointer memory = 0;
      if (api.MemAlloc(&memory, 1) == CuResult::kSuccess) api.MemFree(memory);
    };
    if (Flip()) return call();
    std::thread other(call);
    other.join();
  }

  void Replay() {
    const uint64_t form = ChooseForm();
    const int number = ++number_;
    if (!is_captured_) host_.CopyGrads(number, true);
    if (!Try("before_replay", engine()->BeforeReplay(OptionsOf(form)))) return;
    EXPECT_FALSE(is_captured_);
    if (exec_ == nullptr || random_() % 4 == 0) return;
    EXPECT_EQ(graphs_.GraphLaunch(exec_, stream()), CuResult::kSuccess);
    StrAppend(&text_, ", launched");
    done_.push_back({.kind = Done::kStep,
                     .number = exec_zeroes_ ? 0 : number,
                     .form = form});
    ++replays_;
  }

  void Step() {
    const uint64_t form = ChooseForm();
    const int number = ++number_;
    if (!is_captured_) host_.CopyGrads(number, true);
    StepReport report;
    if (!Try("step", engine()->Step(OptionsOf(form), &report))) return;
    EXPECT_FALSE(is_captured_);
    done_.push_back({.kind = Done::kStep, .number = number, .form = form});
  }

  void SetHyper() {
    const double lr = 0.01 * static_cast<double>(1 + random_() % 9);
    if (!Try("set_hyper", engine()->SetHyper(-1, "lr", lr))) return;
    done_.push_back({.kind = Done::kHyper, .lr = lr});
  }

  void CallRarely() {
    switch (random_() % 8) {
      case 0:
        // The engine has a dynamic loss scale.
        EXPECT_FALSE(Try("begin_step", engine()->BeginStep(StepOptions())));
        return;
      case 1:
        if (!Try("set_trainable", FreezeAndThaw(engine()))) return;
        done_.push_back({.kind = Done::kFreeze});
        return;
      case 2:
        if (!Try("save", SaveTo(folder_.path(), engine()))) return;
        has_saved_ = true;
        done_.push_back({.kind = Done::kSave});
        return;
      case 3: {
        LoadReport report;
        if (!has_saved_) return;
        if (!Try("load",
                 engine()->Load(folder_.path(), LoadOptions(), &report))) {
          return;
        }
        done_.push_back({.kind = Done::kLoad});
        return;
      }
      case 4:
        Try("bind_param", engine()->Bind(0, {}));
        return;
      case 5:
        if (Try("summon", engine()->Summon(0, -1, 0))) {
          Try("capture_begin", engine()->CaptureBegin());
          EXPECT_OK(engine()->EndSummon(false, 0));
        }
        return;
      case 6:
        Try("set_stream",
            host_.SetStream(stream() == other_.get() ? host_.stream().get()
                                                     : other_.get()));
        return;
      default:
        CallWhatIsForbidden();
    }
  }

  void Wait() {
    if (Flip()) {
      Try("synchronize", engine()->Synchronize(0));
    } else {
      Try("last_report", engine()->LastReport().status());
    }
  }

  cuda::CuStream stream() const { return host_.current(); }

  std::mt19937_64 random_;
  const TempFolder folder_;
  const cuda::GraphApi graphs_ = cuda::GraphApi::Load();
  const cuda_training::HostsStream other_;  // Instead of the host's first.
  Host host_;
  cuda::CuGraphExec exec_ = nullptr;
  bool is_captured_ = false;  // The host's stream.
  // The steps that are part of the host's capture, and whether it zeroes the
  // gradients before the first.
  int num_steps_ = 0;
  bool zeroes_ = false;
  bool exec_zeroes_ = false;  // The same of the graph that can be launched.
  bool has_saved_ = false;
  int number_ = 0;
  uint64_t replays_ = 0;
  std::vector<Done> done_;
  std::string text_;
};

// The fake is new for each block of seeds, and so checks each that nothing is
// left.
class GraphOrdersTest : public FakeCudaTest,
                        public ::testing::WithParamInterface<uint64_t> {};

TEST_P(GraphOrdersTest, WhatSucceedsHasTheBitsOfSteps) {
  constexpr uint64_t kSeeds = 20;
  constexpr int kCalls = 150;
  const uint64_t first = GetParam() * kSeeds;
  uint64_t replays = 0;
  for (uint64_t i = 0; i < kSeeds && !HasFailure(); ++i) {
    SCOPED_TRACE(StrCat("seed ", first + i));
    RandomHost random(first + i);
    for (int call = 0; call < kCalls && !HasFailure(); ++call) random.Call();
    random.End();
    replays += random.replays();
    Reference expected(random.done());
    EXPECT_EQ(random.engine()->step(), expected.host()->engine()->step())
        << random.text();
    EXPECT_TRUE(random.host()->Params() == expected.host()->Params())
        << random.text();
  }
  EXPECT_GT(replays, 4 * kSeeds);
}

INSTANTIATE_TEST_SUITE_P(
    Blocks, GraphOrdersTest,
    ::testing::Range(uint64_t{0}, std::getenv("SHARD_TEST_LONG") != nullptr
                                      ? uint64_t{100}
                                      : uint64_t{1}));

}  // namespace
}  // namespace shard::cuda_graph_orders_test
