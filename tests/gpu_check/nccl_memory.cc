// SPDX-License-Identifier: Apache-2.0
//
// Memory that is registered with NCCL, and the address that a window tells.

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "tests/gpu_check/nccl.h"

namespace shard::gpu_check {

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

}  // namespace shard::gpu_check
