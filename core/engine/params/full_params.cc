// SPDX-License-Identifier: Apache-2.0

#include "core/engine/params/full_params.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "core/base/dtype.h"
#include "core/base/rounding.h"
#include "core/collectives/collectives.h"
#include "core/device/host_access.h"
#include "core/engine/memory/buffers.h"
#include "core/engine/params/gather_params.h"
#include "core/engine/params/open_access.h"
#include "core/engine/transfer/ok_or_abort.h"
#include "core/engine/transfer/transfers.h"
#include "core/model/walk.h"

namespace shard {

namespace {

// Alignment of a copy: a cache line.
constexpr int64_t kAlignment = 64;

// Returns, by ParamId, whether the parameter has a name in `module` or below.
std::vector<bool> ParamsIn(const Model& model, ModuleId module) {
  std::vector<bool> in(model.params().size());
  int depth = -1;  // The depth of `module`, while the walk is in it.
  WalkModel(
      model,
      [&](ModuleId at, int at_depth) {
        if (depth >= 0 && at_depth <= depth) depth = -1;
        if (at == module) depth = at_depth;
        return !model.modules()[static_cast<size_t>(at)].ignored;
      },
      [&](int32_t reference) {
        if (depth < 0) return;
        const auto& name = model.references()[static_cast<size_t>(reference)];
        in[static_cast<size_t>(name.param)] = true;
      });
  return in;
}

// Overwrites elements of a parameter, and the master weights of those that
// change.
class Overwriter {
 public:
  static StatusOr<Overwriter> Create(HostAccess* access, Stream* stream,
                                     Device* device) {
    SHARD_ASSIGN_OR_RETURN(
        DeviceMemory before,
        device->AllocateHost(kPiece, "elements before they are overwritten"));
    return Overwriter(access, stream, std::move(before));
  }

  // `from` is the host's. `master`: null where there is none.
  Status Write(DType dtype, const unsigned char* from, unsigned char* to,
               float* master, size_t count, const Deadline& deadline) {
    const size_t size = DTypeSize(dtype);
    if (master == nullptr) {
      const HostCopy copy = {to, from, count * size};
      return access_->Store({&copy, 1}, deadline);
    }
    const size_t piece = kPiece / size;
    for (size_t at = 0; at < count; at += piece) {
      const size_t some = std::min(piece, count - at);
      SHARD_RETURN_IF_ERROR(WritePiece(dtype, from + at * size, to + at * size,
                                       master + at, some, deadline));
    }
    return Status();
  }

 private:
  static constexpr size_t kPiece = 64 * 1024;  // Bytes.

  Overwriter(HostAccess* access, Stream* stream, DeviceMemory before)
      : access_(access), stream_(stream), before_(std::move(before)) {}

  Status WritePiece(DType dtype, const unsigned char* from, unsigned char* to,
                    float* master, size_t count, const Deadline& deadline) {
    const size_t size = DTypeSize(dtype);
    const auto* const before =
        reinterpret_cast<const unsigned char*>(before_.data());
    const HostCopy old = {before_.data(), to, count * size};
    SHARD_RETURN_IF_ERROR(access_->Fetch({&old, 1}, deadline));
    const HostCopy copy = {to, from, count * size};
    SHARD_RETURN_IF_ERROR(access_->Store({&copy, 1}, deadline));
    const auto changed = [&](size_t i) {
      return std::memcmp(before + i * size, from + i * size, size) != 0;
    };
    for (size_t i = 0; i < count;) {
      size_t end = i;
      while (end < count && changed(end)) ++end;
      if (end > i) stream_->Widen(dtype, to + i * size, master + i, end - i);
      i = end + 1;
    }
    return stream_->Synchronize(deadline);
  }

  HostAccess* access_;
  Stream* stream_;
  DeviceMemory before_;  // The elements of a piece.
};

}  // namespace

StatusOr<std::unique_ptr<FullParams>> FullParams::Create(
    const EngineRuntime& runtime, Communicator* comm, Device* device,
    ModuleId module, int rank, const Deadline& deadline) {
  const bool here = rank == kAllRanks || rank == comm->rank();
  std::unique_ptr<FullParams> summoned(new FullParams(rank, here));
  const Plan& plan = *runtime.plan();
  const std::vector<bool> in = ParamsIn(plan.model(), module);
  summoned->offsets_.assign(in.size(), -1);
  // Units that have any of the parameters.
  std::vector<bool> units(plan.units().size());
  for (size_t p = 0; p < in.size(); ++p) {
    const ParamPlace& place = plan.places()[p];
    if (!in[p] || place.buffer < 0) continue;
    const auto& buffer = plan.buffer(place.buffer);
    summoned->offsets_[p] = summoned->bytes_;
    units[static_cast<size_t>(buffer.unit)] = true;
    const auto bytes = static_cast<int64_t>(
        DTypeBytes(buffer.dtype, plan.model().params()[p].numel));
    summoned->bytes_ += RoundUp(bytes, kAlignment);
  }
  auto access = OpenAccess(runtime, device, deadline);
  Status local = access.status();
  if (local.ok() && here && summoned->bytes_ > 0) {
    auto memory = device->AllocateHost(static_cast<size_t>(summoned->bytes_),
                                       "summoned parameters");
    local = memory.status();
    if (memory.ok()) summoned->copies_ = *std::move(memory);
    if (local.ok()) local = (*access)->Reserve();
  }
  SHARD_RETURN_IF_ERROR(
      AgreeOnStatus(comm, "summon full parameters", local, deadline));
  ParamSink fetch;  // None on a rank without copies.
  if (here) {
    fetch = [&](std::span<const GatheredParam> params) {
      std::vector<HostCopy> copies;
      for (const GatheredParam& param : params) {
        const Slot& slot = *param.slot;
        const int64_t to = summoned->offsets_[static_cast<size_t>(slot.param)];
        if (to < 0) continue;
        copies.push_back({summoned->copies_.data() + to, param.data,
                          DTypeBytes(param.buffer->plan->dtype, slot.numel)});
      }
      return (*access)->Fetch(copies, deadline);
    };
  }
  SHARD_RETURN_IF_ERROR(GatherParams(runtime, units, comm, fetch, deadline));
  return summoned;
}

void* FullParams::Param(ParamId param) const {
  return here_ ? copies_.data() + offsets_[static_cast<size_t>(param)]
               : nullptr;
}

Status FullParams::WriteBack(const EngineRuntime& runtime, Communicator* comm,
                             Device* device, const Deadline& deadline) const {
  const CollectiveDeadline scope(&runtime.collectives(), deadline);
  const Plan& plan = *runtime.plan();
  const std::vector<EngineBuffer>& buffers = runtime.memory().buffers();
  const int range_index = plan.RangeOf(comm->rank());
  // Room for the largest parameter, received from the one rank that has the
  // copies.
  size_t largest = 0;
  for (size_t p = 0; p < offsets_.size() && !here_; ++p) {
    const Model::Param& param = plan.model().params()[p];
    if (Has(static_cast<ParamId>(p))) {
      largest = std::max(largest, DTypeBytes(param.dtype, param.numel));
    }
  }
  auto received = device->AllocateHost(largest, "a summoned parameter");
  auto access = OpenAccess(runtime, device, deadline);
  Status local = access.status();
  if (local.ok()) local = received.status();
  if (local.ok()) local = (*access)->Reserve();
  auto overwriter =
      local.ok() ? Overwriter::Create(access->get(), &runtime.compute(), device)
                 : StatusOr<Overwriter>(local);
  SHARD_RETURN_IF_ERROR(AgreeOnStatus(comm, "write summoned parameters back",
                                      overwriter.status(), deadline));
  for (size_t b = 0; b < buffers.size(); ++b) {
    const EngineBuffer& buffer = buffers[b];
    const DType dtype = buffer.plan->dtype;
    const int64_t range = buffer.plan->layout.shard_numel();
    const int64_t own_begin = range_index * range;
    bool any = false;
    for (const Slot& slot : buffer.plan->layout.slots()) {
      const int64_t at = offsets_[static_cast<size_t>(slot.param)];
      if (at < 0 || slot.numel == 0) continue;
      any = true;
      std::byte* const copy = here_ ? copies_.data() + at : received->data();
      if (rank_ != kAllRanks) {
        SHARD_RETURN_IF_ERROR(
            comm->Broadcast("write summoned parameters back", rank_, copy,
                            DTypeBytes(dtype, slot.numel), deadline));
      }
      const auto* const from = reinterpret_cast<const unsigned char*>(copy);
      const int64_t begin = std::max(slot.offset, own_begin);
      const int64_t end = std::min(slot.offset + slot.numel, own_begin + range);
      if (begin >= end) continue;
      float* master = nullptr;
      if (buffer.plan->trainable && buffer.plan->has_masters) {
        master = reinterpret_cast<float*>(buffer.states.back()) +
                 (begin - own_begin);
      }
      SHARD_RETURN_IF_ERROR(OkOrAbort(
          comm, overwriter->Write(
                    dtype, from + DTypeBytes(dtype, begin - slot.offset),
                    static_cast<unsigned char*>(buffer.ParamAt(begin)), master,
                    static_cast<size_t>(end - begin), deadline)));
    }
    if (!any) continue;
    SHARD_RETURN_IF_ERROR(runtime.transfers().Publish(b, &runtime.moving()));
  }
  SHARD_RETURN_IF_ERROR(
      OkOrAbort(comm, runtime.moving().Synchronize(deadline)));
  return runtime.transfers().Finish(deadline);
}

}  // namespace shard
