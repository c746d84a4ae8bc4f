// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/helper_regions.h"

#include "core/base/strings.h"

namespace shard::network {

namespace {

// Memory of a helper, which is told when this rank has left it.
struct Lease {
  std::shared_ptr<RegionKeeper> keeper;
  std::string key;
  Mapping memory;

  Lease(std::shared_ptr<RegionKeeper> from, std::string name, Mapping mapping)
      : keeper(std::move(from)),
        key(std::move(name)),
        memory(std::move(mapping)) {}
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() {
    memory = Mapping();
    keeper->Release(key);
  }
};

}  // namespace

Status HelperRegions::Exchange(const direct::RegionRequest& request,
                               const direct::Group&, const Deadline& deadline) {
  std::string key = StrCat(path_, ":", allocations_++);
  const bool is_staging = request.ring == nullptr && !request.of_host;
  auto mapping = keeper_->Request(
      key, request, is_staging ? std::string_view(block_) : "", deadline);
  if (!mapping.ok()) {
    // The helper may have it, and this rank no room for it.
    keeper_->Release(key);
    return mapping.status();
  }
  if (request.ring != nullptr) last_block_ = key;
  auto lease =
      std::make_shared<Lease>(keeper_, std::move(key), *std::move(mapping));
  Mapping* const memory = &lease->memory;
  memory_ = std::shared_ptr<Mapping>(std::move(lease), memory);
  return Status();
}

StatusOr<std::shared_ptr<Mapping>> HelperRegions::Take(
    const direct::RegionRequest& request) {
  if (memory_ == nullptr || memory_->size() != request.bytes) {
    return Internal("the network helper gave no memory of ", request.bytes,
                    " bytes");
  }
  return memory_;
}

StatusOr<std::unique_ptr<direct::RegionSource>>
HelperRegions::ExchangeDuplicate(const direct::Group&, const Deadline&) {
  return std::unique_ptr<direct::RegionSource>(new HelperRegions(
      keeper_, StrCat(path_, path_.empty() ? "" : "/", duplicates_++),
      last_block_));
}

}  // namespace shard::network
