// SPDX-License-Identifier: Apache-2.0

#include "core/engine/state/load_state.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "core/base/host_memory.h"
#include "core/base/strings.h"
#include "core/checkpoint/store/progress.h"
#include "core/checkpoint/store/read_converted.h"
#include "core/device/stream_guard.h"
#include "core/engine/state/local_state.h"
#include "core/observe/observer.h"
#include "kernels/formula/narrow_states.h"

namespace shard {

namespace {

using Kind = EntryMatch::Kind;

}  // namespace

Status StateReader::Reserve(const TensorStore& store,
                            const std::vector<StateEntry>& entries,
                            const std::vector<EntryMatch>& matches,
                            bool from_rank0) const {
  for (size_t e = 0; e < entries.size(); ++e) {
    const EntryMatch& match = matches[e];
    if (match.kind == Kind::kNone) continue;
    const OwnedElements owned = OwnedBy(plan_, entries[e], rank_);
    // Rank 0 reads whole tensors.
    if (from_rank0 ? rank_ == 0 : owned.numel > 0) {
      SHARD_RETURN_IF_ERROR(store.ReserveRead(match.tensor));
      if (match.kind == Kind::kDecode) {
        SHARD_RETURN_IF_ERROR(store.ReserveRead(match.scales));
      }
    }
    if (owned.numel == 0) continue;
    // Kernels encode from values in the device's memory.
    SHARD_RETURN_IF_ERROR(match.kind == Kind::kEncode
                              ? access_->Reserve()
                              : access_->ReserveFor(LocalData(
                                    plan_, memory_, entries[e], owned, rank_)));
  }
  return Status();
}

Status StateReader::Read(const TensorStore& store,
                         const std::vector<StateEntry>& entries,
                         const std::vector<EntryMatch>& matches,
                         const ReadOptions& options) {
  SHARD_RETURN_IF_ERROR(ReadEntries(store, entries, matches, options));
  return FillMasters(entries, matches);
}

Status StateReader::ReadFromRank0(const TensorStore& store,
                                  const std::vector<StateEntry>& entries,
                                  const std::vector<EntryMatch>& matches,
                                  const ReadOptions& options) {
  std::vector<std::byte> room;
  std::vector<std::byte> scales_room;
  uint64_t total = 0;
  uint64_t largest = 0;
  uint64_t largest_scales = 0;
  for (size_t e = 0; e < entries.size(); ++e) {
    if (matches[e].kind == Kind::kNone) continue;
    const uint64_t bytes = TensorBytes(store.tensor(matches[e].tensor));
    total += bytes;
    largest = std::max(largest, bytes);
    if (matches[e].kind != Kind::kDecode) continue;
    largest_scales =
        std::max(largest_scales, TensorBytes(store.tensor(matches[e].scales)));
  }
  // Allocates once, so that no growing buffer is copied.
  const Status fits = CheckHostMemory(largest + largest_scales);
  if (fits.ok()) {
    room.reserve(largest);
    scales_room.reserve(largest_scales);
  }
  SHARD_RETURN_IF_ERROR(
      AgreeOnStatus(comm_, "load: from rank 0", fits, deadline_.Exchange()));
  ProgressMeter progress(options.progress, total);
  ReadOptions quiet = options;
  quiet.progress = nullptr;
  for (size_t e = 0; e < entries.size(); ++e) {
    EntryMatch match = matches[e];
    if (match.kind == Kind::kNone) continue;
    MemoryStore whole;
    SHARD_RETURN_IF_ERROR(Receive(store, match.tensor, quiet, &room, &whole));
    match.tensor = 0;
    if (match.kind == Kind::kDecode) {
      SHARD_RETURN_IF_ERROR(
          Receive(store, match.scales, quiet, &scales_room, &whole));
      match.scales = 1;
    }
    Status local = ReadEntries(whole, {&entries[e], 1}, {&match, 1}, quiet);
    if (local.ok()) local = progress.Add(room.size());
    SHARD_RETURN_IF_ERROR(
        AgreeOnStatus(comm_, "load: read", local, deadline_.Work()));
  }
  return AgreeOnStatus(comm_, "load: read", FillMasters(entries, matches),
                       deadline_.Work());
}

Status StateReader::Receive(const TensorStore& store, size_t tensor,
                            const ReadOptions& options,
                            std::vector<std::byte>* room, MemoryStore* whole) {
  constexpr const char* kPhase = "load: from rank 0";
  constexpr size_t kPiece = size_t{16} << 20;
  const TensorInfo info = store.tensor(tensor);
  const size_t size = ElementSize(info.type);
  const size_t bytes = static_cast<size_t>(info.numel) * size;
  Status local;
  room->resize(bytes);
  if (rank_ == 0) {
    const ReadRequest request = {tensor, 0, info.numel};
    local = store.Read(
        {&request, 1}, options,
        [&](size_t, int64_t begin, int64_t numel, const std::byte* data) {
          std::memcpy(room->data() + static_cast<size_t>(begin) * size, data,
                      static_cast<size_t>(numel) * size);
          return Status();
        });
  }
  SHARD_RETURN_IF_ERROR(AgreeOnStatus(comm_, kPhase, local, deadline_.Work()));
  for (size_t at = 0; at < bytes; at += kPiece) {
    SHARD_RETURN_IF_ERROR(comm_->Broadcast(kPhase, 0, room->data() + at,
                                           std::min(kPiece, bytes - at),
                                           deadline_.Exchange()));
  }
  MemoryStore::Tensor copy;
  copy.key = info.key;
  copy.type = info.type;
  copy.role = info.role;
  copy.shape.assign(info.shape.begin(), info.shape.end());
  copy.codebook = info.codebook;
  return whole->Add(std::move(copy), room->data(), bytes);
}

Status StateReader::ReadEntries(const TensorStore& store,
                                std::span<const StateEntry> entries,
                                std::span<const EntryMatch> matches,
                                const ReadOptions& options) {
  std::vector<Target> targets;
  std::vector<size_t> encoded;
  std::vector<ConvertedRequest> requests;
  std::vector<size_t> target_of;  // By request.
  int64_t bytes = 0;
  for (size_t e = 0; e < entries.size(); ++e) {
    if (matches[e].kind == Kind::kNone) continue;
    const OwnedElements owned = OwnedBy(plan_, entries[e], rank_);
    if (owned.numel == 0) continue;
    targets.push_back({&entries[e], matches[e], owned,
                       LocalData(plan_, memory_, entries[e], owned, rank_)});
    bytes += static_cast<int64_t>(EntryBytes(entries[e], owned.numel));
    if (matches[e].kind == Kind::kEncode) {
      encoded.push_back(targets.size() - 1);
      continue;
    }
    requests.push_back(
        {{matches[e].tensor, owned.begin, owned.numel}, entries[e].type});
    target_of.push_back(targets.size() - 1);
  }
  Span reading(comm_->observer(), EventId::kRead, {.bytes = bytes});
  Status status = ReadConverted(
      store, requests, options,
      [&](size_t request, int64_t begin, int64_t numel, const std::byte* data) {
        const Target& target = targets[target_of[request]];
        const StateEntry& entry = *target.entry;
        std::byte* const to =
            target.data + EntryBytes(entry, begin - target.owned.begin);
        // A state dict of this engine, whose memory is the engine's.
        if (to == data) return Status();
        const HostCopy copy = {to, data, EntryBytes(entry, numel)};
        return access_->Store({&copy, 1}, deadline_.Work());
      });
  for (const size_t t : encoded) {
    if (status.ok()) status = EncodeTarget(store, targets[t], options);
  }
  reading.set_result(status);
  return status;
}

Status StateReader::EncodeTarget(const TensorStore& store, const Target& target,
                                 const ReadOptions& options) {
  const StateEntry& entry = *target.entry;
  const auto count = static_cast<size_t>(target.owned.numel);
  std::vector<float> values(count);
  DeviceMemory copy;
  const StreamGuard guard(stream_);
  const ConvertedRequest request = {
      {target.match.tensor, target.owned.begin, target.owned.numel},
      ElementType::kF32};
  ReadOptions quiet = options;
  quiet.progress = nullptr;
  SHARD_RETURN_IF_ERROR(ReadConverted(
      store, {&request, 1}, quiet,
      [&](size_t, int64_t begin, int64_t numel, const std::byte* data) {
        std::memcpy(values.data() + (begin - target.owned.begin), data,
                    static_cast<size_t>(numel) * sizeof(float));
        return Status();
      }));
  const GroupId group =
      plan_.model().params()[static_cast<size_t>(entry.param)].group;
  const StateKind* const kinds =
      NarrowStateKinds(optimizers_[static_cast<size_t>(group)].formula());
  // The scales' own entry says where they lie.
  StateEntry scales = entry;
  scales.scales = true;
  scales.type = ElementType::kF32;
  const OwnedElements owned = OwnedBy(plan_, scales, rank_);
  SHARD_ASSIGN_OR_RETURN(
      const void* const from,
      access_->ForKernels(values.data(), count * sizeof(float), &copy,
                          deadline_.Work()));
  stream_->EncodeQ8(kinds[entry.state], static_cast<const float*>(from), count,
                    nullptr, 0, reinterpret_cast<uint8_t*>(target.data),
                    reinterpret_cast<float*>(
                        LocalData(plan_, memory_, scales, owned, rank_)));
  return stream_->Synchronize(deadline_.Work());
}

Status StateReader::FillMasters(const std::vector<StateEntry>& entries,
                                const std::vector<EntryMatch>& matches) {
  const auto buffer_of = [&](const StateEntry& entry) -> const EngineBuffer& {
    const ParamPlace& place = plan_.place(entry.param);
    return memory_.buffer(place.buffer);
  };
  std::vector<bool> loaded(plan_.model().params().size());  // Masters.
  for (size_t e = 0; e < entries.size(); ++e) {
    if (!entries[e].is_state() || matches[e].kind == Kind::kNone) continue;
    const FlatBufferPlan& buffer = *buffer_of(entries[e]).plan;
    if (buffer.states[static_cast<size_t>(entries[e].state)].tensor.name ==
        kMasterState) {
      loaded[static_cast<size_t>(entries[e].param)] = true;
    }
  }
  for (size_t e = 0; e < entries.size(); ++e) {
    const StateEntry& entry = entries[e];
    if (!entry.is_param() || matches[e].kind == Kind::kNone) continue;
    const EngineBuffer& buffer = buffer_of(entry);
    if (!buffer.plan->trainable || !buffer.plan->has_masters) continue;
    if (loaded[static_cast<size_t>(entry.param)]) continue;
    const OwnedElements owned = OwnedBy(plan_, entry, rank_);
    if (owned.numel == 0) continue;
    stream_->Widen(
        buffer.plan->dtype, LocalData(plan_, memory_, entry, owned, rank_),
        reinterpret_cast<float*>(buffer.states.back()) + owned.offset,
        static_cast<size_t>(owned.numel));
  }
  return stream_->Synchronize(deadline_.Work());
}

}  // namespace shard
