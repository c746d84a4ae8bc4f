// SPDX-License-Identifier: Apache-2.0
//
// libshard's calls of NCCL, alone, in a group and in replays of a capture, and
// sums of floats.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "tests/gpu_check/nccl.h"

namespace shard::gpu_check {

namespace {

constexpr int kReplays = 100;

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

}  // namespace

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

}  // namespace shard::gpu_check
