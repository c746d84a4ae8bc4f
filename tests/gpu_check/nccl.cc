// SPDX-License-Identifier: Apache-2.0
//
// The part of NCCL, of which a machine with one GPU has one rank: libshard's
// calls, alone and in a group, and how they end, replays of a captured call and
// of a captured group, sums of floats, memory that is registered, the address
// that a window tells, and the abort of a call behind a stream that is stuck.
//
//   gpu_check_nccl nccl [--device cuda:0] [--elements N]
//
// A program of its own: the C++ interface, which the other parts use, has names
// of the library's inside.

#include <dlfcn.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/base/strings.h"
#include "core/collectives/nccl/library.h"
#include "core/collectives/nccl/rank_comms.h"
#include "core/collectives/nccl/registration.h"
#include "core/comm/communicator.h"
#include "core/device/cuda/context.h"
#include "core/device/cuda/device_name.h"
#include "shard/shard.h"
#include "tests/gpu_check/gpu.h"
#include "tests/gpu_check/raw_comm.h"
#include "tests/gpu_check/report.h"
#include "tests/gpu_check/timing.h"

namespace shard::gpu_check {

namespace {

using nccl::NcclApi;
using nccl::NcclComm;
using nccl::NcclLibrary;
using nccl::NcclOp;
using nccl::NcclResult;
using nccl::NcclType;
using nccl::RankComms;

constexpr int kReplays = 100;

// One rank with its communicator, as an engine has.
class OneRank {
 public:
  explicit OneRank(int ordinal)
      : control_(Take(OpenCommunicator("local:", {}))),
        notices_(Take(control_->OpenNotices("gpu_check", 1, Soon()))) {
    const RankSet all = RankSet::All(1);
    comms_ = Take(RankComms::Open(control_.get(), notices_,
                                  Take(cuda::Context::Open(ordinal)),
                                  Take(nccl::OpenNccl()), {&all, 1}, Soon()));
  }

  static Deadline Soon() { return Deadline::After(kSeconds); }

  Status Enqueue(const char* name, const RankComms::Calls& calls) {
    return comms_->Enqueue(name, RankSet::All(1), calls, InTime());
  }
  StatusOr<RankComms::Allocated> Allocate(size_t bytes) {
    return comms_->Allocate("registered memory", bytes, InTime());
  }
  StatusOr<nccl::NcclWindow> OpenWindow(std::byte* memory) {
    return comms_->OpenWindow(0, memory, InTime());
  }
  std::string WhyNotRegistered() {
    return Take(nccl::Registration::Agree(control_.get(), comms_, Soon()))
        .why_not();
  }
  RankComms& comms() { return *comms_; }

 private:
  static RankComms::Check InTime() {
    return [deadline = Soon()]() -> Status {
      if (!deadline.Expired()) return Status();
      return DeadlineExceeded("not done in time");
    };
  }

  const std::shared_ptr<Communicator> control_;
  const std::shared_ptr<Notices> notices_;
  std::shared_ptr<RankComms> comms_;
};

// Memory that is sent and memory that receives it.
class Buffers {
 public:
  Buffers(Gpu* gpu, size_t bytes)
      : gpu_(gpu),
        send_(static_cast<std::byte*>(gpu->Allocate(bytes))),
        recv_(static_cast<std::byte*>(gpu->Allocate(bytes))),
        sent_(bytes),
        received_(bytes) {}
  ~Buffers() {
    gpu_->Free(recv_);
    gpu_->Free(send_);
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  std::byte* send() const { return send_; }
  std::byte* recv() const { return recv_; }
  size_t bytes() const { return sent_.size(); }

  // Writes other values, and clears what receives them.
  void Write(uint32_t seed) {
    for (size_t i = 0; i < sent_.size(); ++i) {
      sent_[i] = static_cast<std::byte>((i * 7 + i / 251 + seed * 31) % 253);
    }
    gpu_->Copy(send_, sent_.data(), bytes());
    gpu_->FillZeros(recv_, bytes());
    gpu_->Finish();
  }
  // Returns whether the values have come.
  bool Came() {
    gpu_->Copy(received_.data(), recv_, bytes());
    gpu_->Finish();
    return received_ == sent_;
  }

 private:
  Gpu* const gpu_;
  std::byte* const send_;
  std::byte* const recv_;
  std::vector<std::byte> sent_;
  std::vector<std::byte> received_;
};

struct Call {
  const char* name;
  RankComms::Calls calls;
};

// The calls of NcclCollectives.
std::vector<Call> CallsOf(const Buffers& buffers, void* stream) {
  std::byte* const send = buffers.send();
  std::byte* const recv = buffers.recv();
  const size_t bytes = buffers.bytes();
  return {
      {"ncclAllGather",
       [=](const NcclApi& api, NcclComm comm) {
         return api.AllGather(send, recv, bytes, NcclType::kInt8, comm, stream);
       }},
      {"ncclBroadcast",
       [=](const NcclApi& api, NcclComm comm) {
         return api.Broadcast(send, recv, bytes, NcclType::kInt8, 0, comm,
                              stream);
       }},
      {"ncclSend and ncclRecv",
       [=](const NcclApi& api, NcclComm comm) {
         const NcclResult sent =
             api.Send(send, bytes, NcclType::kInt8, 0, comm, stream);
         const NcclResult received =
             api.Recv(recv, bytes, NcclType::kInt8, 0, comm, stream);
         return std::max(sent, received);
       }},
      // The sum of one rank's bytes.
      {"ncclReduceScatter",
       [=](const NcclApi& api, NcclComm comm) {
         return api.ReduceScatter(send, recv, bytes, NcclType::kInt8,
                                  NcclOp::kSum, comm, stream);
       }},
  };
}

void CheckCalls(Gpu* gpu, Buffers* buffers, OneRank* rank, Report* report) {
  uint32_t seed = 0;
  for (const Call& call : CallsOf(*buffers, gpu->stream())) {
    buffers->Write(++seed);
    std::vector<double> seconds;
    std::string why;
    for (int i = 0; i < 5 && why.empty(); ++i) {
      const auto start = Clock::now();
      why = rank->Enqueue(call.name, call.calls).message();
      gpu->Finish();
      seconds.push_back(SecondsSince(start));
    }
    if (why.empty() && !buffers->Came()) why = "other bytes came";
    report->Check(call.name, why.empty(), why);
    report->Number(StrCat(call.name, " of ", FormatBytes(buffers->bytes())),
                   Median(seconds) * 1e3, "ms");
  }
  const Status status = rank->comms().AsyncError();
  report->Check("no error afterwards", status.ok(), status.message());
}

// Several calls of one group, each of which moves a part of the buffers.
RankComms::Calls GroupOf(const Buffers& buffers, void* stream) {
  std::byte* const send = buffers.send();
  std::byte* const recv = buffers.recv();
  const size_t part = buffers.bytes() / 4;
  const size_t rest = buffers.bytes() - 3 * part;
  return [=](const NcclApi& api, NcclComm comm) {
    constexpr NcclType kByte = NcclType::kInt8;
    return std::max({
        api.AllGather(send, recv, part, kByte, comm, stream),
        api.Broadcast(send + part, recv + part, part, kByte, 0, comm, stream),
        api.ReduceScatter(send + 2 * part, recv + 2 * part, part, kByte,
                          NcclOp::kSum, comm, stream),
        api.Send(send + 3 * part, rest, kByte, 0, comm, stream),
        api.Recv(recv + 3 * part, rest, kByte, 0, comm, stream),
    });
  };
}

void CheckGroup(Gpu* gpu, Buffers* buffers, OneRank* rank, Report* report) {
  Try(
      "a group of calls",
      [&] {
        buffers->Write(42);
        Require(rank->Enqueue("a group", GroupOf(*buffers, gpu->stream())));
        if (!buffers->Came()) throw std::runtime_error("other bytes came");
      },
      report);
}

// Each replay sends what is in the memory then.
void CheckReplays(Gpu* gpu, Buffers* buffers, OneRank* rank, Report* report) {
  std::vector<Call> calls = CallsOf(*buffers, gpu->stream());
  calls.push_back({"a group", GroupOf(*buffers, gpu->stream())});
  for (const Call& call : calls) {
    const std::string name = StrCat(kReplays, " replays of ", call.name);
    buffers->Write(0);
    gpu->BeginCapture();
    const Status captured = rank->Enqueue(call.name, call.calls);
    gpu->EndCapture();
    if (!captured.ok()) {
      report->Check(name, false, captured.message());
      continue;
    }
    int wrong = 0;
    for (uint32_t i = 1; i <= kReplays; ++i) {
      buffers->Write(i);
      gpu->Launch();
      if (!buffers->Came()) ++wrong;
    }
    report->Check(name, wrong == 0, StrCat(wrong, " of them are wrong"));
  }
}

// The sums of one rank's floats are the floats, bit by bit: also in place,
// where a block of gradients is summed.
void CheckSums(Gpu* gpu, size_t bytes, OneRank* rank, Report* report) {
  const size_t count = std::max<size_t>(1, bytes / sizeof(float));
  std::vector<float> expected(count);
  for (size_t i = 0; i < count; ++i) {
    const auto number = static_cast<float>(i % 65521);
    expected[i] = (i % 2 == 0 ? 1e-3F : -1e4F) * (number + 0.1F);
  }
  for (const bool in_place : {false, true}) {
    Try(
        in_place ? "sums of floats in place" : "sums of floats",
        [&] {
          Buffers buffers(gpu, count * sizeof(float));
          std::byte* const recv = in_place ? buffers.send() : buffers.recv();
          gpu->FillZeros(buffers.recv(), buffers.bytes());
          gpu->Copy(buffers.send(), expected.data(), buffers.bytes());
          Require(rank->Enqueue(
              "ncclReduceScatter", [&](const NcclApi& api, NcclComm comm) {
                return api.ReduceScatter(buffers.send(), recv, count,
                                         NcclType::kFloat32, NcclOp::kSum, comm,
                                         gpu->stream());
              }));
          std::vector<float> sums(count);
          gpu->Copy(sums.data(), recv, buffers.bytes());
          gpu->Finish();
          const auto differs = [](float sum, float value) {
            return std::memcmp(&sum, &value, sizeof(sum)) != 0;
          };
          for (size_t i = 0; i < count; ++i) {
            if (!differs(sums[i], expected[i])) continue;
            throw std::runtime_error(
                StrCat("element ", i, " is ", sums[i], ", not ", expected[i]));
          }
        },
        report);
  }
}

// Memory is registered as that of engines, and NCCL moves it.
void CheckRegistration(int ordinal, Gpu* gpu, size_t bytes, Report* report) {
  OneRank rank(ordinal);
  if (!rank.comms().library().api.HasRegistration()) {
    report->Text("registration", "not run: this NCCL has none");
    return;
  }
  const std::string why_not = rank.WhyNotRegistered();
  report->Check("memory can be registered", why_not.empty(), why_not);
  Try(
      "ncclAllGather of registered memory",
      [&] {
        const auto memory = Take(rank.Allocate(2 * bytes));
        std::byte* const send = memory.data;
        std::byte* const recv = send + bytes;
        const std::vector<std::byte> sent(bytes, std::byte{0x5a});
        std::vector<std::byte> received(bytes);
        gpu->Copy(recv, received.data(), bytes);
        gpu->Copy(send, sent.data(), bytes);
        gpu->Finish();
        const auto start = Clock::now();
        Require(rank.Enqueue(
            "ncclAllGather", [&](const NcclApi& api, NcclComm comm) {
              return api.AllGather(send, recv, bytes, NcclType::kInt8, comm,
                                   gpu->stream());
            }));
        gpu->Finish();
        report->Number("ncclAllGather of registered memory",
                       SecondsSince(start) * 1e3, "ms");
        gpu->Copy(received.data(), recv, bytes);
        gpu->Finish();
        rank.comms().Free(memory.data);
        if (received != sent) throw std::runtime_error("other bytes came");
      },
      report);
}

// The place of a rank's memory, as its window tells it to the kernels of a step
// in one kernel. Such a step itself has several ranks, and so several GPUs.
void CheckWindows(int ordinal, Gpu* gpu, size_t bytes, Report* report) {
  report->Text("a step in one kernel",
               "not run: it is of several ranks, and NCCL refuses two ranks on "
               "one GPU");
  OneRank rank(ordinal);
  const NcclLibrary& library = rank.comms().library();
  if (!library.api.HasWindows()) {
    report->Text("windows",
                 StrCat("not run: NCCL ", nccl::VersionText(library.version),
                        " makes none that are used; ",
                        nccl::VersionText(nccl::kMakesWindowsFrom), " does"));
    return;
  }
  Try(
      "the address that a window tells",
      [&] {
        const auto memory = Take(rank.Allocate(bytes));
        const nccl::NcclWindow window = Take(rank.OpenWindow(memory.data));
        if (window == nullptr) throw std::runtime_error("there is no window");
        void* address = nullptr;
        Require(library.ToStatus(
            library.api.GetPeerDevicePointer(window, 0, 0, &address),
            "ncclGetPeerDevicePointer", nullptr));
        if (address == nullptr) throw std::runtime_error("there is no address");
        const std::vector<std::byte> sent(bytes, std::byte{0x5a});
        std::vector<std::byte> received(bytes);
        gpu->Copy(memory.data, received.data(), bytes);
        gpu->Copy(address, sent.data(), bytes);
        gpu->Copy(received.data(), memory.data, bytes);
        gpu->Finish();
        rank.comms().Free(memory.data);
        if (received != sent) throw std::runtime_error("other bytes came");
      },
      report);
}

// A stream that goes on only when the host says so.
class Gate {
 public:
  explicit Gate(Gpu* gpu) : flag_(gpu) {
    void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const auto wait = reinterpret_cast<Wait>(
        driver == nullptr ? nullptr : dlsym(driver, "cuStreamWaitValue32_v2"));
    if (wait == nullptr) throw std::runtime_error("no cuStreamWaitValue32");
    constexpr unsigned kAtLeast = 0;
    if (wait(static_cast<cuda::CuStream>(gpu->stream()), flag_.address(), 1,
             kAtLeast) != cuda::CuResult::kSuccess) {
      throw std::runtime_error("cuStreamWaitValue32 fails");
    }
  }
  ~Gate() { Open(); }
  void Open() { flag_.Set(); }

 private:
  using Wait = cuda::CuResult (*)(cuda::CuStream, cuda::CuPointer, uint32_t,
                                  unsigned);

  // Pinned memory of the host.
  class Flag {
   public:
    explicit Flag(Gpu* gpu)
        : gpu_(gpu),
          value_(
              static_cast<uint32_t*>(gpu->AllocatePinned(sizeof(uint32_t)))) {
      *value_ = 0;
    }
    ~Flag() { gpu_->FreePinned(value_); }
    Flag(const Flag&) = delete;
    Flag& operator=(const Flag&) = delete;
    cuda::CuPointer address() const {
      return reinterpret_cast<cuda::CuPointer>(value_);
    }
    void Set() { std::atomic_ref<uint32_t>(*value_).store(1); }

   private:
    Gpu* const gpu_;
    uint32_t* const value_;
  };

  Flag flag_;
};

// A call that does not come to its end is ended in time, the stream goes on,
// and another communicator works.
void CheckAbort(int ordinal, Gpu* gpu, Buffers* buffers, Report* report) {
  const Call call = CallsOf(*buffers, gpu->stream())[2];
  OneRank rank(ordinal);
  // NCCL connects at a first call.
  Require(rank.Enqueue(call.name, call.calls));
  gpu->Finish();
  double seconds = 0;
  bool ended = false;
  {
    Gate gate(gpu);
    Require(rank.Enqueue(call.name, call.calls));
    const auto start = Clock::now();
    ended = rank.comms().Abort();
    seconds = SecondsSince(start);
    gate.Open();
    gpu->Finish();
  }
  report->Check("the abort behind a stuck stream", ended,
                StrCat("it is not over after ", seconds, " s"));
  report->Number("time of that abort", seconds * 1e3, "ms");
  Try(
      "another communicator after the abort",
      [&] {
        OneRank another(ordinal);
        buffers->Write(77);
        Require(another.Enqueue(call.name, call.calls));
        if (!buffers->Came()) throw std::runtime_error("other bytes came");
      },
      report);
}

// Runs the check that hosts have.
void CheckByLibrary(const std::string& device) {
  const auto require = [](shard_error* error) {
    if (error == nullptr) return;
    const std::string text = shard_error_message(error);
    shard_error_free(error);
    throw std::runtime_error(text);
  };
  shard_comm* comm = nullptr;
  require(shard_comm_open("local:", nullptr, &comm));
  const std::unique_ptr<shard_comm, void (*)(shard_comm*)> owned(
      comm, shard_comm_free);
  require(shard_comm_check_device(comm, device.c_str(), kSeconds));
}

int OrdinalOf(const std::string& device) {
  constexpr std::string_view kCuda = "cuda:";
  const std::string_view text = device;
  const auto name = Take(cuda::ParseDeviceName(
      text.starts_with(kCuda) ? text.substr(kCuda.size()) : text));
  if (name.uuid.empty()) return name.ordinal;
  throw std::runtime_error("name the device by its number, cuda:0");
}

void Run(const std::string& device, std::int64_t elements, Report* report) {
  auto library = nccl::OpenNccl();
  if (!library.ok()) {
    report->Text("nccl", "not run: " + library.status().message());
    return;
  }
  report->Text("nccl", StrCat(nccl::VersionText(library->version), ", ",
                              library->library.FindPath()));
  Try(
      "libshard's own check", [&] { CheckByLibrary(device); }, report);

  const int ordinal = OrdinalOf(device);
  constexpr std::int64_t kMost = std::int64_t{64} << 20;
  const auto bytes = static_cast<size_t>(std::min(kMost, elements));
  Gpu gpu(ordinal);
  Buffers buffers(&gpu, bytes);
  {
    const auto start = Clock::now();
    OneRank rank(ordinal);
    report->Number("a communicator's start", SecondsSince(start) * 1e3, "ms");
    CheckCalls(&gpu, &buffers, &rank, report);
    // Small: each replay has other values.
    Buffers small(&gpu, std::min(bytes, size_t{1} << 16));
    CheckGroup(&gpu, &buffers, &rank, report);
    CheckSums(&gpu, bytes, &rank, report);
    CheckReplays(&gpu, &small, &rank, report);
  }
  Try(
      "ncclCommSplit and ends",
      [&] {
        RawComm comm(*library);
        comm.Split();
        comm.End();
      },
      report);
  CheckRegistration(ordinal, &gpu, bytes, report);
  CheckWindows(ordinal, &gpu, bytes, report);
  CheckAbort(ordinal, &gpu, &buffers, report);
}

int Main(int argc, char** argv) {
  CLI::App app("The part nccl of gpu_check.");
  std::string part;
  std::string device = "cuda:0";
  std::int64_t elements = std::int64_t{1} << 30;
  app.add_option("part", part)->required()->check(CLI::IsMember({"nccl"}));
  app.add_option("--device", device, "cuda:0");
  app.add_option("--elements", elements, "At most so many bytes are sent");
  CLI11_PARSE(app, argc, argv);
  Report report(part);
  try {
    const Gpu gpu(OrdinalOf(device));
    report.Text("device", gpu.Describe());
    Run(device, elements, &report);
  } catch (const std::exception& error) {
    report.Check("the part runs", false, error.what());
  }
  return report.ok() ? 0 : 1;
}

}  // namespace
}  // namespace shard::gpu_check

int main(int argc, char** argv) { return shard::gpu_check::Main(argc, argv); }
