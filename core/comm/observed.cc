// SPDX-License-Identifier: Apache-2.0

#include "core/comm/observed.h"

#include <cstdint>

#include "core/observe/observer.h"

namespace shard {

namespace {

// Returns the arguments of a collective in which a rank sends `blocks` blocks
// of `bytes`.
EventArguments Sending(std::string_view what, int blocks, size_t bytes) {
  return {.what = what, .bytes = static_cast<int64_t>(bytes) * int64_t{blocks}};
}

// Returns the arguments of a broadcast.
EventArguments Broadcasting(std::string_view what, int world_size,
                            size_t bytes) {
  return Sending(what, world_size > 1 ? 1 : 0, bytes);
}

}  // namespace

ObservedCommunicator::~ObservedCommunicator() {
  // The observer's last warnings are for the host too.
  comm_.reset();
  if (const auto host = host_.lock()) host->Close();
}

Status ObservedCommunicator::Barrier(std::string_view what,
                                     const Deadline& deadline) {
  return Observe(observer_, EventId::kBarrier, {.what = what},
                 [&] { return comm_->Barrier(what, deadline); });
}

Status ObservedCommunicator::AllGather(std::string_view what, const void* send,
                                       size_t bytes, void* recv,
                                       const Deadline& deadline) {
  return Observe(
      observer_, EventId::kAllGather, Sending(what, world_size() - 1, bytes),
      [&] { return comm_->AllGather(what, send, bytes, recv, deadline); });
}

StatusOr<std::shared_ptr<SymmetricBuffer>> ObservedCommunicator::Allocate(
    std::string_view what, size_t bytes, SymmetricKind kind,
    const Deadline& deadline) {
  return Observe(observer_, EventId::kAllocate, Sending(what, 1, bytes),
                 [&] { return comm_->Allocate(what, bytes, kind, deadline); });
}

Status ObservedCommunicator::Broadcast(std::string_view what, int root,
                                       void* data, size_t bytes,
                                       const Deadline& deadline) {
  return Observe(
      observer_, EventId::kBroadcast, Broadcasting(what, world_size(), bytes),
      [&] { return comm_->Broadcast(what, root, data, bytes, deadline); });
}

StatusOr<std::shared_ptr<Communicator>> ObservedCommunicator::Duplicate(
    std::string_view what, const Deadline& deadline) {
  using Made = StatusOr<std::shared_ptr<Communicator>>;
  return Observe(observer_, EventId::kDuplicate, {.what = what}, [&]() -> Made {
    SHARD_ASSIGN_OR_RETURN(auto made, comm_->Duplicate(what, deadline));
    return std::shared_ptr<Communicator>(
        std::make_shared<ObservedCommunicator>(std::move(made)));
  });
}

StatusOr<std::shared_ptr<Exchange>> ObservedCommunicator::OpenExchange(
    std::string_view what, const Deadline& deadline) {
  using Made = StatusOr<std::shared_ptr<Exchange>>;
  return Observe(observer_, EventId::kDuplicate, {.what = what}, [&]() -> Made {
    SHARD_ASSIGN_OR_RETURN(auto made, comm_->OpenExchange(what, deadline));
    return std::shared_ptr<Exchange>(std::make_shared<ObservedExchange>(
        std::move(made), world_size(), observer_));
  });
}

void ObservedCommunicator::Abort(const Status& reason) {
  // The other ranks wait to be told.
  comm_->Abort(reason);
  observer_->Log(EventId::kAbort, "the group ends here: ", reason.message());
}

Status ObservedCommunicator::Shutdown(const Deadline& deadline) {
  return Observe(observer_, EventId::kShutdown, {},
                 [&] { return comm_->Shutdown(deadline); });
}

Status ObservedExchange::ReduceScatter(std::string_view what,
                                       const RankSet& set,
                                       const ReduceScatterArgs& args,
                                       const Deadline& deadline) {
  return Observe(
      observer_, EventId::kReduceScatter,
      Sending(what, set.count - 1, args.count * DTypeSize(args.dtype)),
      [&] { return exchange_->ReduceScatter(what, set, args, deadline); });
}

Status ObservedExchange::AllGatherBlocks(std::string_view what,
                                         const RankSet& set, const void* send,
                                         size_t bytes, void* recv,
                                         const Deadline& deadline) {
  return Observe(observer_, EventId::kAllGatherBlocks,
                 Sending(what, set.count - 1, bytes), [&] {
                   return exchange_->AllGatherBlocks(what, set, send, bytes,
                                                     recv, deadline);
                 });
}

Status ObservedExchange::Broadcast(std::string_view what, int root, void* data,
                                   size_t bytes, const Deadline& deadline) {
  return Observe(
      observer_, EventId::kBroadcast, Broadcasting(what, world_size_, bytes),
      [&] { return exchange_->Broadcast(what, root, data, bytes, deadline); });
}

}  // namespace shard
