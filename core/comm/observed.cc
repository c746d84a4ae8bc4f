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

// Records a meeting as the all-gather that it is.
class ObservedNotices final : public Notices {
 public:
  ObservedNotices(std::unique_ptr<Notices> notices, std::string what,
                  EventArguments sending, Observer* observer,
                  std::shared_ptr<EndLog> end)
      : notices_(std::move(notices)),
        what_(std::move(what)),
        sending_(sending),
        observer_(observer),
        end_(std::move(end)) {
    sending_.what = what_;
  }

  Status Post(const void* notice, const Compare& compare,
              const Deadline& deadline) override {
    return notices_->Post(notice, compare, deadline);
  }
  Status Meet(const void* notice, void* recv,
              const Deadline& deadline) override {
    return Observe(observer_, EventId::kAllGather, sending_,
                   [&] { return notices_->Meet(notice, recv, deadline); });
  }
  Status Await(void* recv, const Deadline& deadline) override {
    return Observe(observer_, EventId::kAllGather, sending_,
                   [&] { return notices_->Await(recv, deadline); });
  }
  Status Check(uint64_t number, std::string_view what,
               const Deadline& deadline) const override {
    return notices_->Check(number, what, deadline);
  }
  void Fail(const Status& error) override {
    notices_->Fail(error);
    end_->Log(error);
  }
  Status failure() const override { return notices_->failure(); }

 private:
  const std::unique_ptr<Notices> notices_;
  const std::string what_;
  EventArguments sending_;
  Observer* const observer_;
  const std::shared_ptr<EndLog> end_;
};

}  // namespace

void EndLog::Log(const Status& reason) {
  if (is_logged_.exchange(true)) return;
  observer_->Log(EventId::kAbort, "the group ends here: ", reason.message());
}

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
    std::string_view what, bool direct, const Deadline& deadline) {
  using Made = StatusOr<std::shared_ptr<Communicator>>;
  return Observe(observer_, EventId::kDuplicate, {.what = what}, [&]() -> Made {
    SHARD_ASSIGN_OR_RETURN(auto made, comm_->Duplicate(what, direct, deadline));
    return std::shared_ptr<Communicator>(std::make_shared<ObservedCommunicator>(
        std::move(made), std::weak_ptr<HostLog>(), end_));
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

StatusOr<std::unique_ptr<Notices>> ObservedCommunicator::OpenNotices(
    std::string_view what, size_t bytes, const Deadline& deadline) {
  using Made = StatusOr<std::unique_ptr<Notices>>;
  const EventArguments sending = Sending(what, world_size() - 1, bytes);
  return Observe(
      observer_, EventId::kAllocate, Sending(what, 1, bytes), [&]() -> Made {
        SHARD_ASSIGN_OR_RETURN(auto made,
                               comm_->OpenNotices(what, bytes, deadline));
        return std::unique_ptr<Notices>(std::make_unique<ObservedNotices>(
            std::move(made), std::string(what), sending, observer_, end_));
      });
}

void ObservedCommunicator::Abort(const Status& reason) {
  comm_->Abort(reason);
  end_->Log(reason);
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
