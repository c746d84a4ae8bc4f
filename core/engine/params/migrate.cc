// SPDX-License-Identifier: Apache-2.0

#include "core/engine/params/migrate.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/element_type.h"
#include "core/collectives/collectives.h"
#include "core/device/stream_guard.h"
#include "core/engine/memory/buffers.h"
#include "core/engine/params/gather_params.h"
#include "core/engine/transfer/ok_or_abort.h"
#include "core/flat/plan.h"

namespace shard {

namespace {

const EngineBuffer& BufferOf(const EngineRuntime& runtime, ParamId param) {
  const ParamPlace& place = runtime.plan()->place(param);
  return runtime.memory().buffer(place.buffer);
}

// Writes this rank's elements of a parameter. `data`: the whole parameter.
void WriteParam(const EngineRuntime& to, const Slot& slot,
                const unsigned char* data) {
  const ParamPlace& place = to.plan()->place(slot.param);
  const EngineBuffer& buffer = BufferOf(to, slot.param);
  const EngineMemory::Elements mine = to.memory().WrittenOf(buffer);
  const int64_t begin = std::max(place.offset, mine.begin);
  const int64_t end = std::min(place.offset + slot.numel, mine.end);
  if (begin >= end) return;
  const DType dtype = buffer.plan->dtype;
  to.compute().Copy(buffer.ParamAt(begin),
                    data + DTypeBytes(dtype, begin - place.offset),
                    DTypeBytes(dtype, end - begin));
}

// Returns the state of the same name and dtype, or -1.
int FindSameState(const FlatBufferPlan& plan, const StateTensor& tensor) {
  for (size_t s = 0; s < plan.states.size(); ++s) {
    if (plan.states[s].tensor.name == tensor.name &&
        plan.states[s].tensor.dtype == tensor.dtype) {
      return static_cast<int>(s);
    }
  }
  return -1;
}

// Copies one state of one old buffer into the new buffers.
class StateMigration {
 public:
  // `room`: BytesFor the world size.
  StateMigration(const EngineRuntime& from, const EngineRuntime& to,
                 const Communicator* comm, const EngineBuffer& buffer,
                 size_t state, const DeviceMemory& room)
      : from_(from),
        to_(to),
        comm_(comm),
        layout_(buffer.plan->StateLayout(state)),
        tensor_(buffer.plan->states[state].tensor),
        data_(buffer.states[state]),
        gathered_(reinterpret_cast<unsigned char*>(room.data())),
        scales_(gathered_ + kPiece * comm->world_size()),
        // A q8 state is a code per element, then a scale per block.
        quantized_(IsQuantized(tensor_.dtype)) {}

  static size_t BytesFor(int world_size) {
    return static_cast<size_t>(kPiece + ScaleBytes(kPiece)) *
           static_cast<size_t>(world_size);
  }

  // Enqueues the work on the compute stream: one piece after the other.
  void Run() {
    const int64_t range = layout_.shard_numel();
    const auto size = static_cast<int64_t>(quantized_ ? 1 : SizeOf());
    // Pieces are whole blocks, as ranges are.
    const int64_t piece =
        std::max<int64_t>(kPiece / size / kQ8Block, 1) * kQ8Block;
    const auto ranks = static_cast<size_t>(comm_->world_size());
    for (int64_t at = 0; at < range; at += piece) {
      const int64_t numel = std::min(piece, range - at);
      const auto bytes = static_cast<size_t>(numel * size);
      Gather(data_ + at * size, bytes, gathered_);
      if (quantized_) {
        Gather(data_ + range + ScaleBytes(at), ScaleBytes(numel), scales_);
      }
      for (size_t r = 0; r < ranks; ++r) {
        Write(static_cast<int>(r), at, numel, bytes);
      }
    }
  }

 private:
  static constexpr int64_t kPiece = 1 << 20;  // Bytes per rank.

  size_t SizeOf() const { return DTypeSize(tensor_.dtype); }
  static size_t ScaleBytes(int64_t numel) {
    return static_cast<size_t>(numel / kQ8Block) * sizeof(float);
  }

  void Gather(const unsigned char* send, size_t bytes, unsigned char* recv) {
    to_.collectives().AllGatherBlocks("migrate optimizer states",
                                      RankSet::All(comm_->world_size()), send,
                                      bytes, recv, &to_.compute());
  }

  // Writes the elements [at, at + numel) of the range of `rank`, which it has
  // sent.
  void Write(int rank, int64_t at, int64_t numel, size_t bytes) {
    const auto r = static_cast<size_t>(rank);
    const int64_t begin =
        from_.plan()->RangeOf(rank) * layout_.shard_numel() + at;
    for (const SlotSlice& slice : layout_.Slices(begin, begin + numel)) {
      WriteSlice(slice, slice.flat_begin - begin, r * bytes,
                 r * ScaleBytes(numel));
    }
  }

  void WriteSlice(const SlotSlice& slice, int64_t offset, size_t codes_at,
                  size_t scales_at) {
    const EngineBuffer& buffer = BufferOf(to_, slice.param);
    if (!buffer.plan->trainable) return;
    const int s = FindSameState(*buffer.plan, tensor_);
    if (s < 0) return;
    const auto state = static_cast<size_t>(s);
    const FlatLayout& layout = buffer.plan->StateLayout(state);
    // Layouts of states list the parameters in the same order.
    const ParamPlace& place = to_.plan()->place(slice.param);
    const Slot& slot = layout.slots()[buffer.plan->layout.SlotAt(place.offset)];
    const int64_t range =
        to_.plan()->RangeOf(comm_->rank()) * layout.shard_numel();
    const int64_t begin = std::max(slot.offset + slice.param_begin, range);
    const int64_t end = std::min(slot.offset + slice.param_begin + slice.numel,
                                 range + layout.shard_numel());
    if (begin >= end) return;
    // Blocks begin with their parameter, so a cut between ranges is one
    // between blocks.
    const int64_t skipped = begin - (slot.offset + slice.param_begin);
    const size_t size = quantized_ ? 1 : SizeOf();
    unsigned char* const data = buffer.states[state];
    to_.compute().Copy(
        data + static_cast<size_t>(begin - range) * size,
        gathered_ + codes_at + static_cast<size_t>(offset + skipped) * size,
        static_cast<size_t>(end - begin) * size);
    if (!quantized_) return;
    to_.compute().Copy(data + layout.shard_numel() + ScaleBytes(begin - range),
                       scales_ + scales_at + ScaleBytes(offset + skipped),
                       ScaleBytes(end - begin + kQ8Block - 1));
  }

  const EngineRuntime& from_;
  const EngineRuntime& to_;
  const Communicator* const comm_;
  const FlatLayout& layout_;
  const StateTensor& tensor_;
  const unsigned char* const data_;
  unsigned char* const gathered_;  // kPiece bytes per rank.
  unsigned char* const scales_;
  const bool quantized_;
};

}  // namespace

Status MigrateParams(const EngineRuntime& from, const EngineRuntime& to,
                     Communicator* comm, const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(GatherParams(
      from, std::vector<bool>(from.plan()->units().size(), true), comm,
      [&](std::span<const GatheredParam> params) {
        for (const GatheredParam& param : params) {
          WriteParam(to, *param.slot, param.data);
        }
        return to.compute().Synchronize(deadline);
      },
      deadline));
  return comm->Barrier("migrate parameters", deadline);
}

Status MigrateStates(const EngineRuntime& from, const EngineRuntime& to,
                     Communicator* comm, Device* device,
                     const Deadline& deadline) {
  auto room = device->Allocate(StateMigration::BytesFor(comm->world_size()),
                               "a piece of optimizer states");
  SHARD_RETURN_IF_ERROR(
      AgreeOnStatus(comm, "migrate optimizer states", room.status(), deadline));
  const StreamGuard guard(&to.compute());
  const CollectiveDeadline scope(&to.collectives(), deadline);
  for (const EngineBuffer& buffer : from.memory().buffers()) {
    for (size_t s = 0; s < buffer.states.size(); ++s) {
      StateMigration(from, to, comm, buffer, s, *room).Run();
    }
  }
  return OkOrAbort(comm, to.compute().Synchronize(deadline));
}

}  // namespace shard
