// SPDX-License-Identifier: Apache-2.0
//
// HelperRegions: the memory of ranks on several hosts. The network helper of a
// host makes it, once for the ranks there (but for the host's own memory where
// one rank is alone), and keeps it like that of the other hosts
// (helper/mirror.h), unless it is the host's own. An allocation is named by a
// key, which all ranks count alike: "1/0:2" is the third one of the first
// duplicate of the second duplicate.

#ifndef SHARD_CORE_COMM_NETWORK_HELPER_REGIONS_H_
#define SHARD_CORE_COMM_NETWORK_HELPER_REGIONS_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/host_memory.h"
#include "core/base/mapping.h"
#include "core/base/status.h"
#include "core/comm/direct/region_source.h"

namespace shard::network {

// Asks the helper for memory. Thread-safe.
class RegionKeeper {
 public:
  virtual ~RegionKeeper() = default;

  // Returns the memory of `key`, the same to each rank of this host. `block`:
  // for staged tensors, the key of the block whose rounds ship them.
  virtual StatusOr<Mapping> Request(std::string_view key,
                                    const direct::RegionRequest& request,
                                    std::string_view block,
                                    const Deadline& deadline) = 0;
  // Tells the helper that this rank has left the memory of `key`.
  virtual void Release(std::string_view key) = 0;
};

class HelperRegions final : public direct::RegionSource {
 public:
  // The source of the communicator that was opened.
  explicit HelperRegions(std::shared_ptr<RegionKeeper> keeper)
      : HelperRegions(std::move(keeper), "", "") {}

  // The helper makes memory when the first rank of its host asks for it.
  Status Create(const direct::RegionRequest& request) override {
    return request.of_host ? CheckHostMemory(request.bytes, kShardFurther)
                           : Status();
  }
  Status Exchange(const direct::RegionRequest& request,
                  const direct::Group& group,
                  const Deadline& deadline) override;
  StatusOr<std::shared_ptr<Mapping>> Take(
      const direct::RegionRequest& request) override;
  Status CreateDuplicate() override { return Status(); }
  StatusOr<std::unique_ptr<direct::RegionSource>> ExchangeDuplicate(
      const direct::Group& group, const Deadline& deadline) override;
  void Forget() override { memory_.reset(); }

 private:
  HelperRegions(std::shared_ptr<RegionKeeper> keeper, std::string path,
                std::string block)
      : keeper_(std::move(keeper)),
        path_(std::move(path)),
        block_(std::move(block)) {}

  const std::shared_ptr<RegionKeeper> keeper_;
  const std::string path_;
  const std::string block_;  // Of the communicator that this is the source of.
  int allocations_ = 0;
  int duplicates_ = 0;
  std::string last_block_;  // The block that was allocated last.
  std::shared_ptr<Mapping> memory_;
};

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_HELPER_REGIONS_H_
