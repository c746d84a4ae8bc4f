// SPDX-License-Identifier: Apache-2.0

#include "core/engine/transfer/direct_transfers.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "core/base/dtype.h"

namespace shard {

namespace {

constexpr double kNoClip = std::numeric_limits<double>::infinity();

}  // namespace

DirectTransfers::DirectTransfers(const Dependencies& deps, DeviceMemory tile)
    : Transfers(deps),
      plan_(*deps.plan),
      memory_(*deps.memory),
      tile_(std::move(tile)) {
  sources_.reserve(static_cast<size_t>(deps.comm->world_size()) + 1);
}

Status DirectTransfers::Reduce(const Proposal& led,
                               const std::vector<Proposal>& proposals, bool add,
                               Stream* stream) {
  for (const SlotPart& part : SlotParts(plan_, led.unit, true)) {
    SumBuffer(part, led, proposals, add, stream);
  }
  return Status();
}

Status DirectTransfers::ReduceWhole(size_t, Stream*) {
  return Internal("reducing whole gradients that every rank sees");
}

bool DirectTransfers::ReadInPlace(
    const Proposal& led, const std::vector<Proposal>& proposals,
    std::vector<std::vector<const void*>>* sources) {
  if (!plan_.shards_grads()) return false;
  sources->clear();
  for (const SlotPart& part : SlotParts(plan_, led.unit, true)) {
    if (plan_.buffers()[part.buffer].sum_dtype != DType::kF32) return false;
    FindSources(part, led, proposals, &sources->emplace_back());
    if (sources->back().empty()) return false;
  }
  return true;
}

void DirectTransfers::FinishReading(double timeout, Stream* stream) {
  if (deps_.comm->world_size() == 1) return;
  static constexpr std::string_view kWhat = "gradients of a unit reduced";
  stream->Call(kWhat, [comm = deps_.comm, timeout] {
    return comm->Barrier(kWhat, Deadline::After(timeout));
  });
}

void DirectTransfers::FindSources(const SlotPart& part, const Proposal& led,
                                  const std::vector<Proposal>& proposals,
                                  std::vector<const void*>* sources) const {
  const FlatBufferPlan& plan = plan_.buffers()[part.buffer];
  const int32_t depth = plan_.unit(led.unit).depth;
  const size_t begin =
      DTypeBytes(plan.grad_dtype,
                 plan_.RangeOf(deps_.comm->rank()) * plan.layout.shard_numel());
  sources->clear();
  for (size_t r = 0; r < proposals.size(); ++r) {
    if (!Contributes(proposals[r], led)) continue;
    sources->push_back(
        memory_.GradSlot(static_cast<int>(r), depth, proposals[r].slot) +
        part.offset + begin);
  }
}

void DirectTransfers::SumBuffer(const SlotPart& part, const Proposal& led,
                                const std::vector<Proposal>& proposals,
                                bool add, Stream* stream) {
  const EngineBuffer& buffer = memory_.buffers()[part.buffer];
  const FlatBufferPlan& plan = *buffer.plan;
  const int64_t range = plan.layout.shard_numel();
  if (range == 0) return;
  FindSources(part, led, proposals, &sources_);
  // The previous sum is added as the last source.
  const bool wider = plan.sum_dtype != plan.grad_dtype;
  if (add && !wider) sources_.push_back(buffer.sum);
  const GradientSources sources = {sources_.data(), sources_.size(),
                                   plan.grad_dtype};
  const auto count = static_cast<size_t>(range);
  if (sources_.empty()) {
    stream->FillZeros(buffer.sum, DTypeBytes(plan.sum_dtype, range));
    return;
  }
  if (sources_.size() == 1 && !wider) {
    // Else the previous sum stays.
    if (sources_[0] != buffer.sum) {
      stream->Copy(buffer.sum, sources_[0], DTypeBytes(plan.sum_dtype, range));
    }
    return;
  }
  auto* const sum = reinterpret_cast<float*>(buffer.sum);
  if (plan.sum_dtype == DType::kF32 && !(add && wider)) {
    stream->SumGradients(sources, 0, count, 1.0, kNoClip, sum);
    return;
  }
  auto* const tile = reinterpret_cast<float*>(tile_.data());
  const size_t tile_numel = tile_.size() / sizeof(float);
  for (size_t at = 0; at < count; at += tile_numel) {
    const size_t some = std::min(tile_numel, count - at);
    stream->SumGradients(sources, at, some, 1.0, kNoClip, tile);
    if (wider) {
      const void* const both[] = {tile, sum + at};
      stream->SumGradients({both, 2, DType::kF32}, 0, some, 1.0, kNoClip,
                           sum + at);
      continue;
    }
    stream->Narrow(plan.sum_dtype, tile,
                   buffer.sum + at * DTypeSize(plan.sum_dtype), some, nullptr);
  }
}

Status DirectTransfers::Gather(int32_t, unsigned char*, Stream*) {
  return Internal("gathering parameters that every rank sees");
}

Status DirectTransfers::Finish(const Deadline& deadline) {
  return deps_.comm->Barrier("step: parameters published", deadline);
}

uint64_t DirectTransfers::ReduceBytes(int32_t unit) const {
  // Counts the bytes that a rank reads from the others.
  uint64_t bytes = 0;
  const auto others = static_cast<uint64_t>(deps_.comm->world_size() - 1);
  for (const SlotPart& part : SlotParts(plan_, unit, true)) {
    const FlatBufferPlan& buffer = plan_.buffers()[part.buffer];
    bytes +=
        others * DTypeBytes(buffer.grad_dtype, buffer.layout.shard_numel());
  }
  return bytes;
}

}  // namespace shard
