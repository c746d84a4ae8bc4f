// SPDX-License-Identifier: Apache-2.0

#include "core/comm/thread/thread_communicator.h"

#include <utility>

#include "core/base/host_memory.h"
#include "core/base/strings.h"
#include "core/comm/direct/direct_communicator.h"
#include "core/comm/direct/membership.h"
#include "core/comm/thread/registry.h"

namespace shard::threads {

namespace {

// Shares memory through the handover: rank 0 leaves it there, and the others
// take it.
class ThreadRegions final : public direct::RegionSource {
 public:
  ThreadRegions(std::shared_ptr<Handover> handover, int rank)
      : handover_(std::move(handover)), rank_(rank) {}

  Status Create(const direct::RegionRequest& request) override {
    SHARD_RETURN_IF_ERROR(CheckHostMemory(request.bytes, kShardFurther));
    SHARD_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Anonymous(request.bytes));
    const std::lock_guard<std::mutex> lock(handover_->mutex);
    handover_->region = std::make_shared<Mapping>(std::move(mapping));
    return Status();
  }

  Status Exchange(const direct::RegionRequest&, const direct::Group&,
                  const Deadline&) override {
    return Status();
  }

  // Commits nothing: each rank touches its region first, which places the pages
  // on its NUMA node. Until then pages are not committed: Create rejects one
  // allocation that cannot fit, but several that each fit may together cause
  // the kernel's OOM killer, as CheckHostMemory says.
  StatusOr<std::shared_ptr<Mapping>> Take(
      const direct::RegionRequest&) override {
    const std::lock_guard<std::mutex> lock(handover_->mutex);
    if (handover_->region == nullptr) {
      return Internal("rank 0 withdrew the memory");
    }
    return handover_->region;
  }

  Status CreateDuplicate() override {
    const std::lock_guard<std::mutex> lock(handover_->mutex);
    handover_->duplicate = std::make_shared<Handover>();
    return Status();
  }

  StatusOr<std::unique_ptr<direct::RegionSource>> ExchangeDuplicate(
      const direct::Group&, const Deadline&) override {
    const std::lock_guard<std::mutex> lock(handover_->mutex);
    return std::unique_ptr<direct::RegionSource>(
        std::make_unique<ThreadRegions>(handover_->duplicate, rank_));
  }

  void Forget() override {
    if (rank_ != 0) return;
    const std::lock_guard<std::mutex> lock(handover_->mutex);
    handover_->region.reset();
    handover_->duplicate.reset();
  }

 private:
  const std::shared_ptr<Handover> handover_;
  const int rank_;
};

// Makes a communicator. `membership` is this rank's in `shared`.
std::shared_ptr<Communicator> Make(const std::shared_ptr<SharedGroup>& shared,
                                   direct::Membership membership,
                                   const std::string& description,
                                   const CommOptions& options,
                                   const direct::Link& link) {
  const std::shared_ptr<direct::ControlBlock> block(shared, shared->block());
  const std::shared_ptr<Handover> handover(shared, &shared->handover);
  return std::make_shared<direct::DirectCommunicator>(
      std::make_shared<direct::Group>(block, std::move(membership),
                                      options.world_size, nullptr,
                                      options.find_deadlocks_at_once),
      std::make_unique<ThreadRegions>(handover, options.rank), description,
      options, link, direct::Hosts(options.world_size));
}

}  // namespace

StatusOr<std::shared_ptr<Communicator>> Open(const std::string& name,
                                             const std::string& description,
                                             const CommOptions& options,
                                             const direct::Link& link) {
  SHARD_ASSIGN_OR_RETURN(const auto shared,
                         JoinGroup(name, options.rank, options.world_size,
                                   Deadline::After(options.timeout)));
  return Make(shared, direct::Membership(shared->block(), options.rank),
              description, options, link);
}

StatusOr<std::shared_ptr<Communicator>> OpenLocal(
    const std::string& description, const CommOptions& options,
    const direct::Link& link) {
  SHARD_ASSIGN_OR_RETURN(Mapping control,
                         Mapping::Anonymous(direct::ControlBlock::Bytes(1)));
  auto shared = std::make_shared<SharedGroup>();
  shared->control = std::move(control);
  CommOptions alone = options;
  alone.rank = 0;
  alone.world_size = 1;
  return Make(shared, direct::Membership(shared->block(), 0), description,
              alone, link);
}

}  // namespace shard::threads
