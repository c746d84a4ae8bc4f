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

#include "tests/gpu_check/nccl.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "core/base/strings.h"
#include "core/device/cuda/device_name.h"
#include "shard/shard.h"

namespace shard::gpu_check {

namespace {

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
