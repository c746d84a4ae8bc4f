// SPDX-License-Identifier: Apache-2.0

#include "core/collectives/nccl/nccl_collectives.h"

#include <algorithm>
#include <cstring>

#include "core/base/dtype.h"
#include "core/base/strings.h"

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

EventId EventOf(Announcement::Kind kind) {
  switch (kind) {
    case Announcement::Kind::kReduceScatter:
      return EventId::kReduceScatter;
    case Announcement::Kind::kAllGather:
      return EventId::kAllGatherBlocks;
    default:
      return EventId::kBroadcast;
  }
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

std::string NcclCollectives::transport() const {
  return StrCat("nccl ", VersionText(parts_.comms->library().version));
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

bool NcclCollectives::Enqueue(std::string_view tag, const RankSet& set,
                              const Announcement& announced, size_t bytes,
                              Stream* stream, NativeCalls calls) {
  Watchdog* const watchdog = parts_.watchdog.get();
  const Deadline deadline = deadline_.value_or(Deadline::After(parts_.timeout));
  const Status status = watchdog->Announce(announced, deadline);
  if (!status.ok()) {
    stream->Native(tag, [status](void*) { return status; });
    return false;
  }
  Event begin = stream->Record();
  stream->Native(
      tag, [watchdog, comms = parts_.comms, tag, set, calls = std::move(calls),
            check = watchdog->Checks(deadline_)](void* native) {
        const Status given = comms->Enqueue(
            tag, set,
            [&](const NcclApi& api, NcclComm comm) {
              return calls(api, comm, native);
            },
            check());
        if (!given.ok()) watchdog->Report(given);
        return given;
      });
  watchdog->Watch(tag, std::move(begin), stream->Record(), deadline_);
  parts_.observer->Count(EventOf(announced.kind), bytes);
  return true;
}

void NcclCollectives::ReduceScatter(std::string_view tag, const RankSet& set,
                                    const ReduceScatterArgs& args,
                                    Stream* stream) {
  if (!IsOpened(tag, set, stream)) return;
  const size_t size = DTypeSize(args.dtype);
  const auto peers = static_cast<size_t>(set.count - 1);
  size_t most = args.count;
  if (peers > 0) {
    most = std::min({most, parts_.blocks.size() / (peers * size),
                     parts_.zeros.size() / size});
  }
  for (size_t begin = 0; begin < args.count; begin += most) {
    SumInOrder(tag, set, args, begin, std::min(most, args.count - begin),
               stream);
  }
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
  BlockSum sum;
  sum.own = block(own);
  sum.own_index = own;
  sum.peers = parts_.blocks.data();
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
  Announcement announced =
      Announce(Announcement::Kind::kReduceScatter, tag, set, count);
  announced.dtype = static_cast<int32_t>(args.dtype);
  announced.recv_dtype = static_cast<int32_t>(args.recv_dtype);
  announced.add = args.add ? 1 : 0;
  announced.block_groups = args.block_groups;
  const auto exchange = [=, this, ranks = set.count, type = TypeOf(args.dtype)](
                            const NcclApi& api, NcclComm comm, void* native) {
    CallChain chain;
    std::byte* to = parts_.blocks.data();
    for (int i = 0; i < ranks; ++i) {
      if (i == own) continue;
      const void* const from = block(i);
      chain.Add(api.Send(from == nullptr ? parts_.zeros.data() : from, count,
                         type, i, comm, native));
      chain.Add(api.Recv(to, count, type, i, comm, native));
      to += count * size;
    }
    return chain.result();
  };
  const size_t bytes = static_cast<size_t>(set.count - 1) * count * size;
  if (Enqueue(tag, set, announced, bytes, stream, exchange)) {
    stream->SumBlocks(sum);
  }
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
  Enqueue(tag, set, Announce(Announcement::Kind::kAllGather, tag, set, bytes),
          static_cast<size_t>(set.count - 1) * bytes, stream,
          [=](const NcclApi& api, NcclComm comm, void* native) {
            return api.AllGather(send, recv, bytes, NcclType::kInt8, comm,
                                 native);
          });
}

void NcclCollectives::Broadcast(std::string_view tag, int root, void* data,
                                size_t bytes, Stream* stream) {
  const RankSet all = RankSet::All(parts_.comms->world_size());
  if (all.count == 1 || bytes == 0) return;
  Announcement announced =
      Announce(Announcement::Kind::kBroadcast, tag, all, bytes);
  announced.root = root;
  Enqueue(tag, all, announced, bytes, stream,
          [=](const NcclApi& api, NcclComm comm, void* native) {
            return api.Broadcast(data, data, bytes, NcclType::kInt8, root, comm,
                                 native);
          });
}

}  // namespace shard::nccl
