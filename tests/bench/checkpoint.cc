// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints of 2 GB of state: fp32 AdamW, two processes on shared memory, on
// the file system of the folder given as argument (default: the working
// directory's), each beside its roof, which moves the same bytes the simplest
// way:
//
//   save   every rank writes its file, fsync included, checksums on; roof:
//          every rank writes as many bytes of prepared memory with O_DIRECT
//   load   every rank reads its file past the page cache, checksums on; roof:
//          every rank reads as many bytes with O_DIRECT into memory
//   async  how long an asynchronous save blocks the host: a copy of the state
//          with checksums (8 bytes of traffic per 4 of state, a read and a
//          write); roof: memcpy
//
// Both sides use as many threads as the library's default. All are interleaved.
// Ratios are medians over the rounds, above 1 when the roof is slower. Peak
// memory is the most by which a rank's resident memory grows. With --peers,
// torch.save, torch.distributed.checkpoint and safetensors are measured as
// well, where they are installed: checkpoint_torch.py.

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/mapping.h"
#include "core/base/strings.h"
#include "core/comm/communicator.h"
#include "core/engine/engine.h"
#include "tests/bench/bench.h"
#include "tests/bench/gpt2_shapes.h"
#include "tests/bench/peer.h"
#include "tests/bench/ranks.h"

namespace shard::bench {
namespace {

constexpr const char* kName = "checkpoint";
constexpr int kRounds = 7;
constexpr int kThreads = 4;
constexpr size_t kChunk = size_t{8} << 20;

void RequireCall(bool ok, const char* what) {
  if (ok) return;
  std::perror(what);
  std::exit(1);
}

// 167 million parameters, GPT-2 with half as many layers again: with AdamW's
// states, 2 GB.
constexpr Gpt2Size kSize = {.layers = 18};

// Returns the bytes of VmHWM: the peak since ResetPeak.
size_t PeakMemory() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind("VmHWM:", 0) == 0) {
      return std::strtoull(line.c_str() + 6, nullptr, 10) * 1024;
    }
  }
  return 0;
}

void ResetPeak() { std::ofstream("/proc/self/clear_refs") << 5; }

// Calls `move(offset, bytes)` for all chunks of `bytes` bytes on kThreads
// threads.
template <typename Move>
void ForChunks(size_t bytes, const Move& move) {
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (;;) {
        const size_t at = next.fetch_add(kChunk);
        if (at >= bytes) return;
        move(at, std::min(kChunk, bytes - at));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class Rank {
 public:
  Rank(std::shared_ptr<Communicator> comm, std::string folder)
      : comm_(std::move(comm)), folder_(std::move(folder)) {
    engine_ = Require(Engine::Create(WholePlan(kSize), comm_,
                                     EngineOptions{.timeout = kTimeout}));
    for (const EngineBuffer& buffer : engine_->memory().buffers()) {
      const int64_t shard = buffer.plan->layout.shard_numel();
      Fill(buffer.ParamAt(comm_->rank() * shard), shard);
      for (unsigned char* const state : buffer.states) Fill(state, shard);
      bytes_ += 3 * 4 * static_cast<size_t>(shard);
    }
    Require(engine_->BroadcastParams(kTimeout));
    bytes_ = (bytes_ + 4095) / 4096 * 4096;
    room_ = Require(Mapping::Anonymous(bytes_));
    std::memset(room_.data(), comm_->rank() + 1, bytes_);
    copy_ = Require(Mapping::Anonymous(bytes_));
    std::memset(copy_.data(), 1, bytes_);
  }

  size_t bytes() const { return bytes_; }

  // Each of these returns the seconds from the time when all ranks have begun
  // until all are done.

  double RoofSave() {
    return Timed([&] {
      const int fd = ::open(RoofPath().c_str(),
                            O_CREAT | O_TRUNC | O_WRONLY | O_DIRECT, 0600);
      RequireCall(fd >= 0, "open");
      ForChunks(bytes_, [&](size_t at, size_t count) {
        RequireCall(
            ::pwrite(fd, room_.data() + at, count, static_cast<off_t>(at)) ==
                static_cast<ssize_t>(count),
            "pwrite");
      });
      RequireCall(::fsync(fd) == 0, "fsync");
      ::close(fd);
    });
  }

  double RoofLoad() {
    const double seconds = Timed([&] {
      const int fd = ::open(RoofPath().c_str(), O_RDONLY | O_DIRECT);
      RequireCall(fd >= 0, "open");
      ForChunks(bytes_, [&](size_t at, size_t count) {
        RequireCall(
            ::pread(fd, room_.data() + at, count, static_cast<off_t>(at)) ==
                static_cast<ssize_t>(count),
            "pread");
      });
      ::close(fd);
    });
    return seconds;
  }

  double Save() {
    return Timed(
        [&] { Require(engine_->Save(Root(), SaveOptions()).status()); });
  }

  double Load() {
    return Timed([&] {
      LoadReport report;
      Require(engine_->Load(Root(), LoadOptions(), &report));
    });
  }

  double Copy() {
    return Timed([&] {
      std::byte* to = copy_.data();
      for (const EngineBuffer& buffer : engine_->memory().buffers()) {
        const int64_t shard = buffer.plan->layout.shard_numel();
        const size_t bytes = 4 * static_cast<size_t>(shard);
        std::memcpy(to, buffer.ParamAt(comm_->rank() * shard), bytes);
        to += bytes;
        for (unsigned char* const state : buffer.states) {
          std::memcpy(to, state, bytes);
          to += bytes;
        }
      }
    });
  }

  // Returns the duration of the call alone; waits for the rest of the save
  // afterwards.
  double Blocking() {
    SaveOptions options;
    options.async = true;
    options.overwrite = true;
    std::shared_ptr<AsyncSave> save;
    const double seconds =
        Timed([&] { save = Require(engine_->Save(Root(), options)); });
    Require(save->Wait(Deadline::After(kTimeout)));
    return seconds;
  }

  // Returns the most by which resident memory grows.
  template <typename Do>
  size_t PeakOf(const Do& act) {
    ResetPeak();
    const size_t before = PeakMemory();
    act();
    return PeakMemory() - before;
  }

  void Clean() {
    Meet(comm_.get());
    if (comm_->rank() == 0) std::filesystem::remove_all(Root());
    std::filesystem::remove(RoofPath());
    Meet(comm_.get());
  }

 private:
  static void Fill(void* to, int64_t count) {
    auto* const values = static_cast<float*>(to);
    for (int64_t i = 0; i < count; ++i) {
      values[i] = static_cast<float>(i % 4096) * 1e-3f;
    }
  }

  std::string Root() const { return folder_ + "/ckpt"; }
  std::string RoofPath() const {
    return StrCat(folder_, "/roof-", comm_->rank());
  }

  template <typename Do>
  double Timed(const Do& act) {
    Meet(comm_.get());
    const double start = Seconds();
    act();
    Meet(comm_.get());
    return Seconds() - start;
  }

  std::shared_ptr<Communicator> comm_;
  const std::string folder_;
  std::unique_ptr<Engine> engine_;
  size_t bytes_ = 0;
  Mapping room_;
  Mapping copy_;
};

struct Samples {
  std::vector<double> roof_save, save, roof_load, load, copy, blocking;
  size_t save_peak = 0;
  size_t load_peak = 0;
};

struct TorchVariant {
  const char* name;
  const char* seconds;
  const char* ratio;
};
constexpr TorchVariant kTorchVariants[] = {
    {"torch_save", "torch_save_s", "torch_save_over_ours"},
    {"dcp", "dcp_s", "dcp_over_ours"},
    {"safetensors", "safetensors_s", "safetensors_over_ours"},
};

double MedianRatio(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> ratios;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    ratios.push_back(a[i] / b[i]);
  }
  return Median(ratios);
}

// Runs the benchmark on one of the two ranks. Only rank 0 has peers and prints.
void Run(int rank, const std::string& url, const std::string& folder,
         std::optional<Peer>* peer) {
  const auto comm = OpenRank(url, rank);
  Rank self(comm, folder);
  Samples samples;
  std::vector<double> torch[std::size(kTorchVariants)];
  for (int round = -1; round < kRounds; ++round) {
    const double roof_save = self.RoofSave();
    double save = 0;
    double load = 0;
    samples.save_peak = self.PeakOf([&] { save = self.Save(); });
    const double roof_load = self.RoofLoad();
    samples.load_peak = self.PeakOf([&] { load = self.Load(); });
    const double copy = self.Copy();
    const double blocking = self.Blocking();
    std::optional<double> torch_s[std::size(kTorchVariants)];
    for (size_t v = 0; v < std::size(kTorchVariants); ++v) {
      if (*peer) torch_s[v] = (*peer)->Go(kTorchVariants[v].name);
    }
    self.Clean();
    if (round < 0) continue;  // The page tables are cold.
    samples.roof_save.push_back(roof_save);
    samples.save.push_back(save);
    samples.roof_load.push_back(roof_load);
    samples.load.push_back(load);
    samples.copy.push_back(copy);
    samples.blocking.push_back(blocking);
    for (size_t v = 0; v < std::size(kTorchVariants); ++v) {
      if (torch_s[v]) torch[v].push_back(*torch_s[v] / 1e3);
    }
  }
  Shutdown(comm.get());
  if (rank != 0) return;

  const double gigabytes = static_cast<double>(kWorldSize * self.bytes()) / 1e9;
  Bench(kName, "state", gigabytes, "GB");
  Bench(kName, "save_s", Median(samples.save), "s");
  Bench(kName, "save_bandwidth", gigabytes / Median(samples.save), "GB/s");
  Bench(kName, "save_roof_s", Median(samples.roof_save), "s");
  Bench(kName, "save_ratio_to_roof",
        MedianRatio(samples.roof_save, samples.save), "x");
  Bench(kName, "save_peak_memory",
        static_cast<double>(samples.save_peak) / (1 << 20), "MiB");
  Bench(kName, "load_s", Median(samples.load), "s");
  Bench(kName, "load_bandwidth", gigabytes / Median(samples.load), "GB/s");
  Bench(kName, "load_roof_s", Median(samples.roof_load), "s");
  Bench(kName, "load_ratio_to_roof",
        MedianRatio(samples.roof_load, samples.load), "x");
  Bench(kName, "load_peak_memory",
        static_cast<double>(samples.load_peak) / (1 << 20), "MiB");
  Bench(kName, "memcpy_ms", Median(samples.copy) * 1e3, "ms");
  Bench(kName, "blocking_ms", Median(samples.blocking) * 1e3, "ms");
  Bench(kName, "blocking_over_memcpy",
        MedianRatio(samples.blocking, samples.copy), "x");
  for (size_t v = 0; v < std::size(kTorchVariants); ++v) {
    if (torch[v].empty()) continue;
    Bench(kName, kTorchVariants[v].seconds, Median(torch[v]), "s");
    Bench(kName, kTorchVariants[v].ratio, MedianRatio(torch[v], samples.save),
          "x");
  }
}

// Starts PyTorch's ranks, where PyTorch is installed.
std::optional<Peer> StartTorch(const std::string& program) {
  const std::string script =
      program + ".runfiles/libshard/tests/bench/checkpoint_torch.py";
  auto peer = Peer::Start({"/usr/bin/python3", script}, kWorldSize);
  if (!peer) {
    std::fprintf(stderr,
                 "%s: PyTorch did not start (package python3-torch): peers are "
                 "not measured\n",
                 kName);
  }
  return peer;
}

int Main(int argc, char** argv) {
  bool peers = false;
  std::string parent = ".";
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--peers") {
      peers = true;
    } else {
      parent = argv[i];
    }
  }
  std::string folder =
      std::filesystem::absolute(parent).string() + "/bench-checkpoint-XXXXXX";
  RequireCall(::mkdtemp(folder.data()) != nullptr, "mkdtemp");
  ::setenv("SHARD_BENCH_FOLDER", folder.c_str(), 1);
  std::optional<Peer> peer = peers ? StartTorch(argv[0]) : std::nullopt;
  const std::string url =
      StrCat("shm:bench-", getpid(), "-", std::random_device()());
  const int child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::optional<Peer> none;
    Run(1, url, folder, &none);
    _exit(0);
  }
  Run(0, url, folder, &peer);
  int status = 0;
  waitpid(child, &status, 0);
  std::filesystem::remove_all(folder);
  return status == 0 ? 0 : 1;
}

}  // namespace
}  // namespace shard::bench

int main(int argc, char** argv) { return shard::bench::Main(argc, argv); }
