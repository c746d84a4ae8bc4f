// SPDX-License-Identifier: Apache-2.0

#include "core/comm/direct/direct_communicator.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "core/base/out_of_memory.h"
#include "core/base/strings.h"
#include "core/comm/direct/direct_notices.h"

namespace shard::direct {

namespace {

class MappedBuffer final : public SymmetricBuffer {
 public:
  MappedBuffer(std::shared_ptr<Mapping> mapping, size_t size, size_t step,
               size_t resident_bytes)
      : mapping_(std::move(mapping)),
        size_(size),
        step_(step),
        resident_bytes_(resident_bytes) {}

  size_t size() const override { return size_; }
  std::byte* region(int rank) const override {
    return mapping_->data() + step_ * static_cast<size_t>(rank);
  }
  size_t resident_bytes() const override { return resident_bytes_; }

 private:
  const std::shared_ptr<Mapping> mapping_;
  const size_t size_;
  const size_t step_;  // From one rank's region to the next; 0 per host.
  const size_t resident_bytes_;
};

// Forgets the allocation when the scope ends.
class Forgetting {
 public:
  explicit Forgetting(RegionSource* regions) : regions_(regions) {}
  ~Forgetting() { regions_->Forget(); }

 private:
  RegionSource* const regions_;
};

// Returns the begin of the share of `pages` of the `index`-th of `ranks` ranks.
size_t ShareBegin(size_t pages, int index, int ranks) {
  const auto i = static_cast<size_t>(index);
  const auto n = static_cast<size_t>(ranks);
  return pages / n * i + std::min(i, pages % n);
}

// Begins the call `what` of the host on a communicator.
Status EnterCall(const Group& group,
                 const std::function<void(std::string_view)>& hook,
                 std::string_view description, std::string_view what) {
  if (hook) hook(what);
  if (!group.is_shut_down()) return Status();
  return FailedPrecondition("'", what, "' on ", description,
                            ", which was shut down");
}

Status AbortedWith(const Status& reason, int rank) {
  return Status(
      StatusCode::kPoisoned,
      StrCat("rank ", rank, " aborted the group: ",
             reason.ok() ? std::string("no reason given") : reason.ToString()),
      rank);
}

}  // namespace

DirectCommunicator::DirectCommunicator(std::shared_ptr<Group> group,
                                       std::unique_ptr<RegionSource> regions,
                                       std::string description,
                                       const CommOptions& options,
                                       const Link& link, const Hosts& hosts)
    : group_(std::move(group)),
      regions_(std::move(regions)),
      description_(std::move(description)),
      options_(options),
      link_(link),
      hosts_(hosts),
      out_of_memory_(AbortedWith(OutOfMemoryStatus(), group_->rank())),
      exchange_(
          group_.get(), link, hosts_, options_.observer.get(),
          [this](std::string_view what, size_t bytes,
                 const Deadline& deadline) {
            return MakeRegions(what, bytes, SymmetricKind::kPerRank, nullptr,
                               deadline);
          },
          [this](std::string_view what) { return Enter(what); }) {}

Status DirectCommunicator::Enter(std::string_view what) const {
  return EnterCall(*group_, options_.phase_hook, description_, what);
}

Status DirectCommunicator::Barrier(std::string_view what,
                                   const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(Enter(what));
  return group_->Begin({Operation::kBarrier, what, 0, link_.direct}, nullptr, 0,
                       deadline);
}

Status DirectCommunicator::AllGather(std::string_view what, const void* send,
                                     size_t bytes, void* recv,
                                     const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(Enter(what));
  const Call call{Operation::kAllGather, what, bytes, link_.direct};
  const auto* from = static_cast<const std::byte*>(send);
  auto* to = static_cast<std::byte*>(recv);
  size_t done = 0;
  do {
    const size_t part = std::min(bytes - done, kPayloadBytes);
    SHARD_RETURN_IF_ERROR(
        done == 0 ? group_->Begin(call, from, part, deadline)
                  : group_->Continue(call, from + done, part, deadline));
    for (int r = 0; r < world_size() && part > 0; ++r) {
      std::memcpy(to + static_cast<size_t>(r) * bytes + done,
                  group_->payload(r), part);
    }
    done += part;
  } while (done < bytes);
  return Status();
}

StatusOr<std::shared_ptr<SymmetricBuffer>> DirectCommunicator::Allocate(
    std::string_view what, size_t bytes, SymmetricKind kind,
    const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(Enter(what));
  const bool per_rank = kind == SymmetricKind::kPerRank;
  const Call call{
      per_rank ? Operation::kAllocatePerRank : Operation::kAllocatePerHost,
      what, bytes, link_.direct};
  SHARD_RETURN_IF_ERROR(group_->Begin(call, nullptr, 0, deadline));
  if (per_rank ? !direct() : !shares_host()) {
    return Unimplemented("'", what, "' on ", description_,
                         ": with direct=0 there is no memory that the ranks "
                         "share; leave direct=0 out, or use an exchange");
  }
  return MakeRegions(what, bytes, kind, nullptr, deadline);
}

StatusOr<std::shared_ptr<SymmetricBuffer>> DirectCommunicator::MakeRegions(
    std::string_view what, size_t bytes, SymmetricKind kind,
    const CellRing* ring, const Deadline& deadline) {
  const bool per_rank = kind == SymmetricKind::kPerRank;
  // An empty region still has an address of its own. All ranks compute the same
  // size here, so that all return early or none does.
  size_t step = 0;
  size_t total = 0;
  const auto regions = static_cast<size_t>(per_rank ? world_size() : 1);
  if (__builtin_add_overflow(std::max<size_t>(bytes, 1),
                             kSymmetricAlignment - 1, &step) ||
      __builtin_mul_overflow(step / kSymmetricAlignment * kSymmetricAlignment,
                             regions, &total)) {
    return ResourceExhausted("'", what, "': ", regions, " regions of ", bytes,
                             " bytes are more than there are addresses");
  }
  step = total / regions;

  const Forgetting forgetting(regions_.get());
  RegionRequest request{.bytes = total, .ring = ring};
  request.of_host = !per_rank && ring == nullptr;
  // The ranks that have the region.
  const int index = request.of_host ? local_rank() : rank();
  const int ranks = request.of_host ? local_world_size() : world_size();
  const size_t pages = total / kSymmetricAlignment;
  request.commit_begin = ShareBegin(pages, index, ranks) * kSymmetricAlignment;
  request.commit_bytes =
      ShareBegin(pages, index + 1, ranks) * kSymmetricAlignment -
      request.commit_begin;
  Status local;
  if (rank() == 0 || (request.of_host && index == 0)) {
    local = regions_->Create(request);
  }
  SHARD_RETURN_IF_ERROR(
      AgreeOnStatus(this, StrCat(what, ": memory created"), local, deadline));

  local = regions_->Exchange(request, *group_, deadline);
  std::shared_ptr<Mapping> mapping;
  if (local.ok()) {
    auto taken = regions_->Take(request);
    local = taken.status();
    if (taken.ok()) mapping = *std::move(taken);
  }
  SHARD_RETURN_IF_ERROR(
      AgreeOnStatus(this, StrCat(what, ": memory mapped"), local, deadline));
  const size_t resident = per_rank || index == 0 ? step : 0;
  return std::shared_ptr<SymmetricBuffer>(std::make_shared<MappedBuffer>(
      std::move(mapping), bytes, per_rank ? step : 0, resident));
}

Status DirectCommunicator::Broadcast(std::string_view what, int root,
                                     void* data, size_t bytes,
                                     const Deadline& deadline) {
  return exchange_.Broadcast(what, root, data, bytes, deadline);
}

StatusOr<std::shared_ptr<Communicator>> DirectCommunicator::Duplicate(
    std::string_view what, bool direct, const Deadline& deadline) {
  SHARD_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> made,
                         MakeDuplicate(Operation::kDuplicate, "duplicate", what,
                                       direct, deadline));
  return made;
}

StatusOr<std::shared_ptr<Exchange>> DirectCommunicator::OpenExchange(
    std::string_view what, const Deadline& deadline) {
  SHARD_ASSIGN_OR_RETURN(
      auto made, MakeDuplicate(Operation::kOpenExchange, "exchange", what,
                               link_.direct, deadline));
  DirectExchange* const exchange = &made->exchange_;
  return std::shared_ptr<Exchange>(std::move(made), exchange);
}

StatusOr<std::shared_ptr<DirectCommunicator>> DirectCommunicator::MakeDuplicate(
    Operation operation, std::string_view kind, std::string_view what,
    bool direct, const Deadline& deadline) {
  Link link = link_;
  link.direct = link.direct && direct;
  link.shares_host = link.shares_host && direct;
  SHARD_RETURN_IF_ERROR(Enter(what));
  SHARD_RETURN_IF_ERROR(
      group_->Begin({operation, what, 0, link.direct}, nullptr, 0, deadline));
  const bool is_exchange = operation == Operation::kOpenExchange;
  const CellRing& ring = is_exchange ? kExchangeCells : kRoundCells;
  // The ranks share memory, even where the link hides it from callers.
  SHARD_ASSIGN_OR_RETURN(auto memory,
                         MakeRegions(StrCat(what, ": control"),
                                     ControlBlock::Bytes(world_size(), ring),
                                     SymmetricKind::kPerHost, &ring, deadline));

  const Forgetting forgetting(regions_.get());
  Status local;
  if (rank() == 0) local = regions_->CreateDuplicate();
  SHARD_RETURN_IF_ERROR(
      AgreeOnStatus(this, StrCat(what, ": source created"), local, deadline));
  auto regions = regions_->ExchangeDuplicate(*group_, deadline);
  SHARD_RETURN_IF_ERROR(AgreeOnStatus(this, StrCat(what, ": source received"),
                                      regions.status(), deadline));

  auto* block = reinterpret_cast<ControlBlock*>(memory->region(0));
  std::shared_ptr<ControlBlock> owned(std::move(memory), block);
  return std::make_shared<DirectCommunicator>(
      is_exchange ? std::make_shared<Group>(std::move(owned), group_, ring)
                  : std::make_shared<Group>(std::move(owned), group_),
      *std::move(regions), StrCat(description_, ", ", kind, " '", what, "'"),
      options_, link, hosts_);
}

StatusOr<std::unique_ptr<Notices>> DirectCommunicator::OpenNotices(
    std::string_view what, size_t bytes, const Deadline& deadline) {
  SHARD_RETURN_IF_ERROR(Enter(what));
  SHARD_RETURN_IF_ERROR(
      group_->Begin({Operation::kOpenNotices, what, bytes, link_.direct},
                    nullptr, 0, deadline));
  const CellRing ring = NoticeCells(bytes);
  SHARD_ASSIGN_OR_RETURN(auto memory,
                         MakeRegions(StrCat(what, ": notices"),
                                     ControlBlock::Bytes(world_size(), ring),
                                     SymmetricKind::kPerHost, &ring, deadline));
  auto* block = reinterpret_cast<ControlBlock*>(memory->region(0));
  auto group = std::make_unique<Group>(
      std::shared_ptr<ControlBlock>(std::move(memory), block), group_, ring);
  // The notices may outlive this communicator, and use its observer.
  auto enter = [group = group_, options = options_,
                description = description_](std::string_view call) {
    return EnterCall(*group, options.phase_hook, description, call);
  };
  return std::unique_ptr<Notices>(
      std::make_unique<DirectNotices>(std::move(group), std::string(what),
                                      bytes, link_.direct, std::move(enter)));
}

void DirectCommunicator::Abort(const Status& reason) {
  try {
    group_->Fail(AbortedWith(reason, rank()));
  } catch (const std::bad_alloc&) {
    // The other ranks wait for this one, and must get an error even where
    // memory has run out.
    group_->Fail(out_of_memory_);
  }
}

Status DirectCommunicator::Shutdown(const Deadline& deadline) {
  if (group_->is_shut_down()) return Status();
  constexpr std::string_view kWhat = "shutdown";
  SHARD_RETURN_IF_ERROR(Enter(kWhat));
  SHARD_RETURN_IF_ERROR(group_->Begin(
      {Operation::kShutdown, kWhat, 0, link_.direct}, nullptr, 0, deadline));
  group_->ShutDown();
  return Status();
}

}  // namespace shard::direct
