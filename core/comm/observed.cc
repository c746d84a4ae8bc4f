// SPDX-License-Identifier: Apache-2.0

#include "core/comm/observed.h"

#include <cstdint>
#include <utility>

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

// Records the next collective of `sequence`, which `run` makes, as an event and
// in the ring. `call`: without what and operation.
template <typename Run>
auto ObserveCollective(Observer* observer, CollectiveSequence* sequence,
                       EventId event, const EventArguments& arguments,
                       CollectiveCall call, Run&& run) {
  call.operation = event;
  call.what = arguments.what;
  sequence->Next();
  CollectiveRing& ring = observer->collectives();
  const uint64_t ticket = ring.Begin(*sequence, call, Observer::Now());
  try {
    auto result = Observe(observer, event, arguments, std::forward<Run>(run));
    const Status& status = internal::StatusOf(result);
    ring.End(ticket, Observer::Now(), status.code());
    if (!status.ok()) observer->DumpFailure(status);
    return result;
  } catch (...) {
    ring.End(ticket, Observer::Now(), StatusCode::kResourceExhausted);
    throw;
  }
}

// Returns the call of a collective over a set of ranks.
CollectiveCall CallOver(const RankSet& set, size_t bytes) {
  CollectiveCall call;
  call.bytes = bytes;
  call.set_first = set.first;
  call.set_stride = set.stride;
  call.set_ranks = set.count;
  return call;
}

// Records a meeting as the all-gather that it is.
class ObservedNotices final : public Notices {
 public:
  ObservedNotices(std::unique_ptr<Notices> notices, std::string what,
                  size_t bytes, EventArguments sending, Observer* observer,
                  std::shared_ptr<EndLog> end,
                  const CollectiveSequence& sequence)
      : notices_(std::move(notices)),
        what_(std::move(what)),
        bytes_(bytes),
        sending_(sending),
        observer_(observer),
        end_(std::move(end)),
        sequence_(sequence) {
    sending_.what = what_;
  }

  Status Post(const void* notice, const Compare& compare,
              const Deadline& deadline) override {
    CollectiveCall call{
        .operation = EventId::kAllGather, .what = what_, .bytes = bytes_};
    if (describe_) describe_(notice, &call);
    sequence_.Next();
    ++number_;
    posted_ = ring().Begin(sequence_, call, Observer::Now());
    const Status status = notices_->Post(notice, compare, deadline);
    if (status.ok()) {
      ring().Post(posted_);
    } else {
      End(status);
    }
    return status;
  }
  Status Meet(const void* notice, const Compare& compare, void* recv,
              const Deadline& deadline) override {
    ++number_;
    return ObserveCollective(
        observer_, &sequence_, EventId::kAllGather, sending_, {.bytes = bytes_},
        [&] { return notices_->Meet(notice, compare, recv, deadline); });
  }
  Status Await(uint64_t number, const Compare& compare, void* recv,
               const Deadline& deadline) override {
    const auto await = [&] {
      return Observe(observer_, EventId::kAllGather, sending_, [&] {
        return notices_->Await(number, compare, recv, deadline);
      });
    };
    // The record of an earlier notice stays that of one that was posted, and
    // that of a collective ends by RecordEnd.
    if (number != number_ || describe_) return await();
    ring().Await(posted_);
    const Status status = await();
    End(status);
    return status;
  }
  void DescribeBy(Describe describe) override {
    describe_ = std::move(describe);
  }
  void RecordEnd(uint64_t number, const Status& result) override {
    ring().EndPosted(sequence_, number, Observer::Now(), result.code());
  }
  Status Check(uint64_t number, std::string_view what,
               const Deadline& deadline) const override {
    return notices_->Check(number, what, deadline);
  }
  void Fail(const Status& error) override {
    notices_->Fail(error);
    end_->Log(error);
  }
  void FailUnlogged(const Status& error) override {
    notices_->Fail(error);
    end_->Keep(error);
  }
  Status failure() const override { return notices_->failure(); }

 private:
  CollectiveRing& ring() { return observer_->collectives(); }
  // Records the end of the collective that was posted last.
  void End(const Status& result) {
    ring().End(posted_, Observer::Now(), result.code());
    if (!result.ok()) observer_->DumpFailure(result);
  }

  const std::unique_ptr<Notices> notices_;
  const std::string what_;
  const size_t bytes_;
  EventArguments sending_;
  Observer* const observer_;
  const std::shared_ptr<EndLog> end_;
  Describe describe_;
  CollectiveSequence sequence_;
  uint64_t number_ = 0;  // Of this rank's last notice.
  uint64_t posted_ = 0;  // The ticket of the notice that was posted last.
};

}  // namespace

void EndLog::Log(const Status& reason) {
  if (ProcessId() != owner_) return;
  Status first = kept();
  if (first.ok()) first = reason;
  if (is_logged_.exchange(true)) return;
  observer_->Log(EventId::kAbort, "the group ends here: ", first.message());
  observer_->DumpFailure(first);
}

void EndLog::Keep(const Status& reason) {
  if (ProcessId() != owner_) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (kept_.ok()) kept_ = reason;
}

void EndLog::LogKept() {
  if (ProcessId() != owner_) return;
  const Status reason = kept();
  if (!reason.ok()) Log(reason);
}

ObservedCommunicator::~ObservedCommunicator() {
  try {
    // A call that fails does not log it, unless it aborts.
    end_->LogKept();
  } catch (...) {  // NOLINT: no memory for the text
  }
  // The observer's last warnings are for the host too.
  comm_.reset();
  if (const auto host = host_.lock()) host->Close();
}

Status ObservedCommunicator::Barrier(std::string_view what,
                                     const Deadline& deadline) {
  return ObserveCollective(observer_, &sequence_, EventId::kBarrier,
                           {.what = what}, {},
                           [&] { return comm_->Barrier(what, deadline); });
}

Status ObservedCommunicator::AllGather(std::string_view what, const void* send,
                                       size_t bytes, void* recv,
                                       const Deadline& deadline) {
  return ObserveCollective(
      observer_, &sequence_, EventId::kAllGather,
      Sending(what, world_size() - 1, bytes), {.bytes = bytes},
      [&] { return comm_->AllGather(what, send, bytes, recv, deadline); });
}

StatusOr<std::shared_ptr<SymmetricBuffer>> ObservedCommunicator::Allocate(
    std::string_view what, size_t bytes, SymmetricKind kind,
    const Deadline& deadline) {
  return ObserveCollective(
      observer_, &sequence_, EventId::kAllocate, Sending(what, 1, bytes),
      {.bytes = bytes},
      [&] { return comm_->Allocate(what, bytes, kind, deadline); });
}

Status ObservedCommunicator::Broadcast(std::string_view what, int root,
                                       void* data, size_t bytes,
                                       const Deadline& deadline) {
  return ObserveCollective(
      observer_, &sequence_, EventId::kBroadcast,
      Broadcasting(what, world_size(), bytes), {.bytes = bytes, .root = root},
      [&] { return comm_->Broadcast(what, root, data, bytes, deadline); });
}

StatusOr<std::shared_ptr<Communicator>> ObservedCommunicator::Duplicate(
    std::string_view what, bool direct, const Deadline& deadline) {
  using Made = StatusOr<std::shared_ptr<Communicator>>;
  return ObserveCollective(
      observer_, &sequence_, EventId::kDuplicate, {.what = what}, {},
      [&]() -> Made {
        SHARD_ASSIGN_OR_RETURN(auto made,
                               comm_->Duplicate(what, direct, deadline));
        return std::shared_ptr<Communicator>(
            std::make_shared<ObservedCommunicator>(
                std::move(made), std::weak_ptr<HostLog>(), end_,
                CollectiveSequence(sequence_, what)));
      });
}

StatusOr<std::shared_ptr<Exchange>> ObservedCommunicator::OpenExchange(
    std::string_view what, const Deadline& deadline) {
  using Made = StatusOr<std::shared_ptr<Exchange>>;
  return ObserveCollective(
      observer_, &sequence_, EventId::kDuplicate, {.what = what}, {},
      [&]() -> Made {
        SHARD_ASSIGN_OR_RETURN(auto made, comm_->OpenExchange(what, deadline));
        return std::shared_ptr<Exchange>(std::make_shared<ObservedExchange>(
            std::move(made), world_size(), observer_,
            CollectiveSequence(sequence_, what)));
      });
}

StatusOr<std::unique_ptr<Notices>> ObservedCommunicator::OpenNotices(
    std::string_view what, size_t bytes, const Deadline& deadline) {
  using Made = StatusOr<std::unique_ptr<Notices>>;
  const EventArguments sending = Sending(what, world_size() - 1, bytes);
  return ObserveCollective(
      observer_, &sequence_, EventId::kAllocate, Sending(what, 1, bytes),
      {.bytes = bytes}, [&]() -> Made {
        SHARD_ASSIGN_OR_RETURN(auto made,
                               comm_->OpenNotices(what, bytes, deadline));
        return std::unique_ptr<Notices>(std::make_unique<ObservedNotices>(
            std::move(made), std::string(what), bytes, sending, observer_, end_,
            CollectiveSequence(sequence_, what)));
      });
}

void ObservedCommunicator::Abort(const Status& reason) {
  comm_->Abort(reason);
  end_->Log(reason);
}

void ObservedCommunicator::AbortUnlogged(const Status& reason) {
  comm_->Abort(reason);
  end_->Keep(reason);
}

Status ObservedCommunicator::Shutdown(const Deadline& deadline) {
  return ObserveCollective(observer_, &sequence_, EventId::kShutdown, {}, {},
                           [&] { return comm_->Shutdown(deadline); });
}

Status ObservedExchange::ReduceScatter(std::string_view what,
                                       const RankSet& set,
                                       const ReduceScatterArgs& args,
                                       const Deadline& deadline) {
  const size_t bytes = args.count * DTypeSize(args.dtype);
  CollectiveCall call = CallOver(set, bytes);
  call.dtype = static_cast<int8_t>(args.dtype);
  call.recv_dtype = static_cast<int8_t>(args.recv_dtype);
  return ObserveCollective(
      observer_, &sequence_, EventId::kReduceScatter,
      Sending(what, set.count - 1, bytes), call,
      [&] { return exchange_->ReduceScatter(what, set, args, deadline); });
}

Status ObservedExchange::AllGatherBlocks(std::string_view what,
                                         const RankSet& set, const void* send,
                                         size_t bytes, void* recv,
                                         const Deadline& deadline) {
  return ObserveCollective(observer_, &sequence_, EventId::kAllGatherBlocks,
                           Sending(what, set.count - 1, bytes),
                           CallOver(set, bytes), [&] {
                             return exchange_->AllGatherBlocks(
                                 what, set, send, bytes, recv, deadline);
                           });
}

Status ObservedExchange::GatherOnHosts(std::string_view what,
                                       const RankSet& set, const void* send,
                                       size_t bytes, int block_groups,
                                       void* recv, const Deadline& deadline) {
  return ObserveCollective(
      observer_, &sequence_, EventId::kAllGatherBlocks,
      Sending(what, set.count - 1, bytes), CallOver(set, bytes), [&] {
        return exchange_->GatherOnHosts(what, set, send, bytes, block_groups,
                                        recv, deadline);
      });
}

Status ObservedExchange::Broadcast(std::string_view what, int root, void* data,
                                   size_t bytes, const Deadline& deadline) {
  return ObserveCollective(
      observer_, &sequence_, EventId::kBroadcast,
      Broadcasting(what, world_size_, bytes), {.bytes = bytes, .root = root},
      [&] { return exchange_->Broadcast(what, root, data, bytes, deadline); });
}

}  // namespace shard
