// SPDX-License-Identifier: Apache-2.0
//
// A kernel of the fake: the operations of one rank that a launch fuses. It
// sends and receives through channels in parts, and never blocks.

#ifndef SHARD_TESTS_FAKE_NCCL_KERNEL_H_
#define SHARD_TESTS_FAKE_NCCL_KERNEL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_nccl/comm.h"
#include "tests/fake_nccl/fake_nccl.h"
#include "tests/fake_nccl/work.h"

namespace shard::testing::fake_nccl {

class Kernel {
 public:
  // `number`: how many kernels of the communicator got a place before.
  // `is_stuck`: it never ends.
  Kernel(std::shared_ptr<Comm> comm, uint64_t number, std::vector<Work> works,
         const Options& options, bool is_stuck);

  // One attempt. Called by one thread at a time.
  fake_cuda::Progress Attempt();

 private:
  // Precedes the data in a channel, so that ranks see that they differ.
  struct Header {
    WorkKind kind;
    DataType type;
    RedOp op;
    int root;
    uint64_t count;
    // Whether the memory is registered: of a send and its receive, that of
    // either; of a broadcast, what is written.
    bool send_is_registered;
    bool recv_is_registered;
    uint64_t window;  // As Work's.
    uint64_t window_offset;

    bool operator==(const Header&) const = default;
  };
  // The way to another rank: whether it is for collectives, and the rank's
  // number.
  using Route = std::pair<bool, int>;

  struct Sending {
    Header header;
    const std::byte* data;
    size_t bytes;
    size_t done = 0;
    bool has_sent_header = false;
  };
  struct Receiving {
    Header header;
    std::byte* into;
    size_t bytes;
    // For a sum, this rank's addends, and its block. Null: a copy.
    const std::byte* own = nullptr;
    int block = 0;
    // The memory is overwritten after these have sent it.
    std::vector<std::shared_ptr<Sending>> sent_before = {};
    size_t done = 0;
    std::set<int> headers = {};  // The ranks that have sent theirs.
  };

  void Add(const Work& work);
  // Does what needs no other rank.
  void CopyOwn(const Work& work) const;
  fake_cuda::Progress AttemptNow();
  // Each returns whether something was done.
  bool Send(const Route& route, std::deque<std::shared_ptr<Sending>>* queue);
  bool Receive(const Route& route, Receiving* receiving);
  bool ReceiveHeader(const Route& route, Receiving* receiving);
  // Sums one part, if all ranks have sent it.
  bool SumPart(Receiving* receiving);
  bool IsFirstEverywhere(const Receiving& receiving) const;
  void PopReceived();
  // Returns whether all that was sent has been received.
  bool IsReceived() const;
  std::string Describe(const Header& header) const;
  Channel* To(const Route& route) const {
    return comm_->segment->channel(route.first, comm_->rank, route.second);
  }
  Channel* From(const Route& route) const {
    return comm_->segment->channel(route.first, route.second, comm_->rank);
  }

  const std::shared_ptr<Comm> comm_;
  const uint64_t number_;
  const std::vector<Work> works_;
  const size_t slice_elements_;
  const bool sums_in_rank_order_;
  const bool is_stuck_;
  bool is_begun_ = false;
  bool is_mismatched_ = false;
  std::map<Route, std::deque<std::shared_ptr<Sending>>> sends_;
  std::map<Route, std::deque<std::shared_ptr<Receiving>>> receives_;
  std::map<Route, uint64_t> sent_;  // The ends of what was sent.
};

}  // namespace shard::testing::fake_nccl

#endif  // SHARD_TESTS_FAKE_NCCL_KERNEL_H_
