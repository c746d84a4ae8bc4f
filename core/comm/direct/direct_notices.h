// SPDX-License-Identifier: Apache-2.0
//
// DirectNotices: the Notices of ranks that share memory. A notice is a round of
// a Group whose ring has kMostAhead + 1 cells; to post is to enter the round,
// and to await is to wait until it is complete.

#ifndef SHARD_CORE_COMM_DIRECT_DIRECT_NOTICES_H_
#define SHARD_CORE_COMM_DIRECT_DIRECT_NOTICES_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/comm/direct/group.h"
#include "core/comm/notices.h"

namespace shard::direct {

// The cells of notices of `bytes` bytes.
constexpr CellRing NoticeCells(size_t bytes) {
  return {Notices::kMostAhead + 1, bytes};
}

class DirectNotices final : public Notices {
 public:
  // `enter` is called at the entry of Post and Meet, and returns an error where
  // the communicator was shut down. REQUIRES: `group` has NoticeCells(bytes).
  DirectNotices(std::unique_ptr<Group> group, std::string what, size_t bytes,
                bool direct, std::function<Status(std::string_view)> enter)
      : group_(std::move(group)),
        what_(std::move(what)),
        bytes_(bytes),
        direct_(direct),
        enter_(std::move(enter)),
        compared_(static_cast<size_t>(group_->world_size())),
        theirs_(bytes) {}

  Status Post(const void* notice, const Compare& compare,
              const Deadline& deadline) override;
  Status Await(uint64_t number, const Compare& compare, void* recv,
               const Deadline& deadline) override;
  Status Meet(const void* notice, const Compare& compare, void* recv,
              const Deadline& deadline) override;
  Status Check(uint64_t number, std::string_view what,
               const Deadline& deadline) const override {
    return group_->Check({Operation::kNotice, what, bytes_, direct_}, number,
                         deadline);
  }
  void Fail(const Status& error) override { group_->Fail(error); }
  Status failure() const override { return group_->failure(); }

 private:
  // Compares the notices that are there, up to this rank's `last`.
  void CompareArrived(uint64_t last, const Compare& compare);
  // Copies the notices of a number, which all ranks have posted.
  void CopyTo(uint64_t number, void* recv) const;
  Call call() const { return {Operation::kNotice, what_, bytes_, direct_}; }

  const std::unique_ptr<Group> group_;
  const std::string what_;
  const size_t bytes_;
  const bool direct_;
  const std::function<Status(std::string_view)> enter_;
  std::vector<uint64_t> compared_;  // By rank: the last notice.
  std::vector<std::byte> theirs_;
};

}  // namespace shard::direct

#endif  // SHARD_CORE_COMM_DIRECT_DIRECT_NOTICES_H_
