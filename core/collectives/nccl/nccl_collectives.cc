// SPDX-License-Identifier: Apache-2.0

#include "core/collectives/nccl/nccl_collectives.h"

#include <algorithm>
#include <cstring>

#include "core/base/dtype.h"
#include "core/base/rounding.h"
#include "core/base/strings.h"
#include "core/collectives/nccl/peer_memory.h"
#include "core/collectives/nccl/windows.h"

namespace shard::nccl {

namespace {

std::byte* At(const void* begin, size_t offset) {
  return static_cast<std::byte*>(const_cast<void*>(begin)) + offset;
}

NcclType TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return NcclType::kBfloat16;
    case DType::kF16:
      return NcclType::kFloat16;
    default:
      return NcclType::kFloat32;
  }
}

Announcement Announce(Announcement::Kind kind, std::string_view tag,
                      const RankSet& set, size_t count) {
  Announcement announced;
  announced.kind = kind;
  announced.stride = set.stride;
  announced.ranks = set.count;
  announced.count = count;
  std::memcpy(announced.tag, tag.data(),
              std::min(tag.size(), Announcement::kTagBytes));
  return announced;
}

Announcement Announce(Announcement::Kind kind, std::string_view tag,
                      const RankSet& set, size_t count,
                      const ReduceScatterArgs& args) {
  Announcement announced = Announce(kind, tag, set, count);
  announced.dtype = static_cast<int32_t>(args.dtype);
  announced.recv_dtype = static_cast<int32_t>(args.recv_dtype);
  announced.add = args.add ? 1 : 0;
  announced.block_groups = args.block_groups;
  return announced;
}

// Makes calls one after the other, and returns the first error.
class CallChain {
 public:
  void Add(NcclResult result) {
    const bool is_error =
        result != NcclResult::kSuccess && result != NcclResult::kInProgress;
    if (is_error && result_ == NcclResult::kSuccess) result_ = result;
  }
  NcclResult result() const { return result_; }

 private:
  NcclResult result_ = NcclResult::kSuccess;
};

}  // namespace

std::string NcclCollectives::Launch::Name() const {
  std::string name;
  for (const std::string_view tag : tags) {
    StrAppend(&name, name.empty() ? "" : ", ", tag);
  }
  return name;
}

std::string NcclCollectives::transport() const {
  return StrCat("nccl ", VersionText(parts_.comms->library().version));
}

StatusOr<DeviceMemory> NcclCollectives::Allocate(Device* device, size_t bytes,
                                                 std::string_view what) {
  return parts_.registration->Allocate(
      device, bytes, what, deadline_.value_or(Deadline::After(parts_.timeout)));
}

std::optional<RegisteredMemory> NcclCollectives::registered() const {
  return RegisteredMemory{parts_.comms->registered_bytes(),
                          parts_.registration->why_not(),
                          parts_.comms->window_bytes(), why_not_shared_};
}

StatusOr<bool> NcclCollectives::ShareMemory(
    Communicator* control, std::span<const DeviceMemory* const> memory,
    const Deadline& deadline) {
  if (!why_not_shared_.empty()) return true;
  const auto opened = OpenWindows(control, parts_.comms.get(),
                                  *parts_.registration, memory, deadline);
  if (!opened.ok()) {
    parts_.watchdog->Report(opened.status());
    return opened.status();
  }
  why_not_shared_ = opened->why_not.message();
  const NcclLibrary& library = parts_.comms->library();
  if (parts_.rank == 0 && library.version >= kMakesWindowsFrom) {
    parts_.observer->Log(
        EventId::kTransport, "parameters and gradients are in ",
        why_not_shared_.empty() ? "windows of NCCL" : "no windows of NCCL: ",
        why_not_shared_);
  }
  return !opened->has_aborted;
}

StatusOr<PeerMemory> NcclCollectives::FindPeerMemory(
    Communicator* control, std::span<const DeviceMemory* const> memory,
    const Deadline& deadline) {
  if (!why_not_shared_.empty()) return PeerMemory{{}, why_not_shared_};
  return nccl::FindPeerMemory(control, parts_.comms.get(),
                              parts_.watchdog.get(), *parts_.registration,
                              memory, deadline);
}

void NcclCollectives::RunTogether(std::string_view tag, Stream* stream,
                                  const std::function<void()>& enqueue) {
  Watchdog* const watchdog = parts_.watchdog.get();
  const Status status =
      watchdog->Announce(Announce(Announcement::Kind::kTogether, tag,
                                  RankSet::All(parts_.comms->world_size()), 0),
                         deadline_.value_or(Deadline::After(parts_.timeout)));
  if (!status.ok()) {
    stream->Native(tag, [status](void*) { return status; });
    return;
  }
  const auto end =
      watchdog->Watch(std::string(tag), stream->Record(), deadline_);
  enqueue();
  end->Set(stream->Record());
}

bool NcclCollectives::IsOpened(std::string_view tag, const RankSet& set,
                               Stream* stream) const {
  const auto& sets = parts_.sets;
  if (std::find(sets.begin(), sets.end(), set) != sets.end()) return true;
  stream->Native(tag, [tag, set](void*) {
    return InvalidArgument("'", tag, "': ", set.count, " ranks from ",
                           set.first, " in steps of ", set.stride,
                           ", which OpenCollectives was not given; open every "
                           "set that is used");
  });
  return false;
}

void NcclCollectives::Add(std::string_view tag, const RankSet& set,
                          const Announcement& announced, size_t bytes,
                          Call call, Stream* stream) {
  if (!captures_) {
    const Deadline deadline =
        deadline_.value_or(Deadline::After(parts_.timeout));
    const Status status = parts_.watchdog->Announce(announced, deadline);
    if (!status.ok()) {
      launch_ = {};
      stream->Native(tag, [status](void*) { return status; });
      return;
    }
    parts_.observer->Count(announced.event(), bytes);
  }
  std::vector<std::string_view>& tags = launch_.tags;
  if (std::find(tags.begin(), tags.end(), tag) == tags.end()) {
    tags.push_back(tag);
  }
  launch_.set = set;
  launch_.calls.push_back(std::move(call));
  if (!in_group_) Flush(stream);
}

void NcclCollectives::Flush(Stream* stream) {
  Launch launch = std::exchange(launch_, {});
  if (launch.calls.empty()) return;
  std::vector<BlockSum> sums;
  for (const Call& call : launch.calls) {
    if (call.sum) sums.push_back(*call.sum);
  }
  Watchdog* const watchdog = parts_.watchdog.get();
  const std::string_view tag = launch.tags.front();
  std::string name = launch.Name();
  const auto check = watchdog->Checks(name, deadline_);
  // A replay is watched as a whole.
  const auto end =
      captures_ ? nullptr : watchdog->Watch(name, stream->Record(), deadline_);
  stream->Native(tag,
                 [watchdog, comms = parts_.comms, launch = std::move(launch),
                  name = std::move(name), check, end](void* native) {
                   const Status given = comms->Enqueue(
                       name, launch.set,
                       [&](const NcclApi& api, NcclComm comm) {
                         CallChain chain;
                         for (const Call& call : launch.calls) {
                           chain.Add(call.calls(api, comm, native));
                         }
                         return chain.result();
                       },
                       check(), end == nullptr ? nullptr : end->calling());
                   if (!given.ok()) watchdog->Report(given);
                   return given;
                 });
  if (end != nullptr) end->Set(stream->Record());
  for (const BlockSum& sum : sums) stream->SumBlocks(sum);
}

void NcclCollectives::EndGroup(Stream* stream) {
  in_group_ = false;
  Flush(stream);
}

void NcclCollectives::DropGroup() noexcept {
  in_group_ = false;
  launch_ = {};
}

void NcclCollectives::ReduceScatter(std::string_view tag, const RankSet& set,
                                    const ReduceScatterArgs& args,
                                    Stream* stream) {
  if (!IsOpened(tag, set, stream)) return;
  FlushOthers(set, stream);
  const auto own_number =
      static_cast<size_t>(args.BlockOf(set.IndexOf(parts_.rank), set.count));
  void* const own =
      args.send == nullptr
          ? nullptr
          : At(args.send, own_number * args.count * DTypeSize(args.dtype));
  if (set.count > 1 && args.count > 0 && IsSummedByNccl(args, own)) {
    SumByNccl(tag, set, args, own, stream);
    return;
  }
  size_t count = 0;
  for (size_t begin = 0; begin < args.count; begin += count) {
    count = set.count == 1 ? args.count
                           : MakeRoom(set, args, args.count - begin, stream);
    if (count == 0) {
      stream->Native(tag, [tag](void*) {
        return InvalidArgument("'", tag,
                               "': there is no memory for blocks of the other "
                               "ranks; open collectives with more of it");
      });
      return;
    }
    SumInOrder(tag, set, args, begin, count, stream);
  }
}

bool NcclCollectives::IsSummedByNccl(const ReduceScatterArgs& args,
                                     const void* own) const {
  // Blocks of groups are not in the order of ranks, and an old value in the
  // place of the block would be lost.
  return order(args.dtype) == SumOrder::kLibrary &&
         args.dtype == args.recv_dtype && args.all_send &&
         args.block_groups == 1 && !(args.add && args.recv == own);
}

void NcclCollectives::SumByNccl(std::string_view tag, const RankSet& set,
                                const ReduceScatterArgs& args, void* own,
                                Stream* stream) {
  Call call;
  void* const to = args.add ? own : args.recv;
  call.calls = [send = args.send, to, count = args.count,
                type = TypeOf(args.dtype)](const NcclApi& api, NcclComm comm,
                                           void* native) {
    return api.ReduceScatter(send, to, count, type, NcclOp::kSum, comm, native);
  };
  if (args.add) {
    BlockSum& sum = call.sum.emplace();
    sum.own = own;
    sum.dtype = args.dtype;
    sum.count = args.count;
    sum.recv = args.recv;
    sum.recv_dtype = args.recv_dtype;
    sum.add = true;
  }
  const size_t bytes =
      static_cast<size_t>(set.count - 1) * args.count * DTypeSize(args.dtype);
  Add(tag, set,
      Announce(Announcement::Kind::kReduceScatter, tag, set, args.count, args),
      bytes, std::move(call), stream);
}

size_t NcclCollectives::MakeRoom(const RankSet& set,
                                 const ReduceScatterArgs& args, size_t left,
                                 Stream* stream) {
  const size_t size = DTypeSize(args.dtype);
  const size_t all = left;
  if (!args.all_send) left = std::min(left, parts_.zeros.size() / size);
  const size_t each = static_cast<size_t>(set.count - 1) * size;
  const auto room = [&] {
    return std::min(left, (parts_.blocks.size() - launch_.blocks) / each);
  };
  if (room() < left) Flush(stream);
  // The kernel of the sums reads several elements at once, so the next part
  // begins at a multiple of them.
  constexpr size_t kAtOnce = 16;
  const size_t fits = room();
  return fits < all && fits > kAtOnce ? fits / kAtOnce * kAtOnce : fits;
}

void NcclCollectives::SumInOrder(std::string_view tag, const RankSet& set,
                                 const ReduceScatterArgs& args, size_t begin,
                                 size_t count, Stream* stream) {
  const size_t size = DTypeSize(args.dtype);
  const int own = set.IndexOf(parts_.rank);
  const auto block = [=, ranks = set.count](int index) -> const void* {
    if (args.send == nullptr) return nullptr;
    const auto number = static_cast<size_t>(args.BlockOf(index, ranks));
    return At(args.send, (number * args.count + begin) * size);
  };
  std::byte* const blocks = parts_.blocks.data() + launch_.blocks;
  BlockSum sum;
  sum.own = block(own);
  sum.own_index = own;
  sum.peers = blocks;
  sum.ranks = set.count;
  sum.dtype = args.dtype;
  sum.count = count;
  sum.recv = At(args.recv, begin * DTypeSize(args.recv_dtype));
  sum.recv_dtype = args.recv_dtype;
  sum.add = args.add;
  if (set.count == 1) {
    const bool stays = sum.own == sum.recv && !sum.add;
    if (!stays) stream->SumBlocks(sum);
    return;
  }
  Call call;
  call.sum = sum;
  call.calls = [=, zeros = parts_.zeros.data(), ranks = set.count,
                type = TypeOf(args.dtype)](const NcclApi& api, NcclComm comm,
                                           void* native) {
    CallChain chain;
    std::byte* to = blocks;
    for (int i = 0; i < ranks; ++i) {
      if (i == own) continue;
      const void* const from = block(i);
      chain.Add(api.Send(from == nullptr ? zeros : from, count, type, i, comm,
                         native));
      chain.Add(api.Recv(to, count, type, i, comm, native));
      to += count * size;
    }
    return chain.result();
  };
  const size_t bytes = static_cast<size_t>(set.count - 1) * count * size;
  launch_.blocks =
      std::min(parts_.blocks.size(),
               RoundUp(launch_.blocks + bytes, ReduceMemory::kAlignment));
  Add(tag, set, Announce(Announcement::Kind::kAllToAll, tag, set, count, args),
      bytes, std::move(call), stream);
}

void NcclCollectives::AllGatherBlocks(std::string_view tag, const RankSet& set,
                                      const void* send, size_t bytes,
                                      void* recv, Stream* stream) {
  if (!IsOpened(tag, set, stream)) return;
  if (set.count == 1) {
    if (send != recv) stream->Copy(recv, send, bytes);
    return;
  }
  if (bytes == 0) return;
  FlushOthers(set, stream);
  Add(tag, set, Announce(Announcement::Kind::kAllGather, tag, set, bytes),
      static_cast<size_t>(set.count - 1) * bytes,
      {[=](const NcclApi& api, NcclComm comm, void* native) {
         return api.AllGather(send, recv, bytes, NcclType::kInt8, comm, native);
       },
       std::nullopt},
      stream);
}

void NcclCollectives::Broadcast(std::string_view tag, int root, void* data,
                                size_t bytes, Stream* stream) {
  const RankSet all = RankSet::All(parts_.comms->world_size());
  if (all.count == 1 || bytes == 0) return;
  Announcement announced =
      Announce(Announcement::Kind::kBroadcast, tag, all, bytes);
  announced.root = root;
  FlushOthers(all, stream);
  Add(tag, all, announced, bytes,
      {[=](const NcclApi& api, NcclComm comm, void* native) {
         return api.Broadcast(data, data, bytes, NcclType::kInt8, root, comm,
                              native);
       },
       std::nullopt},
      stream);
}

}  // namespace shard::nccl
