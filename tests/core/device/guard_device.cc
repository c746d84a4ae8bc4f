// SPDX-License-Identifier: Apache-2.0

#include "tests/core/device/guard_device.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/comm/exchange.h"
#include "core/device/forwarding_device.h"
#include "core/device/stream.h"
#include "tests/core/device/guard_memory.h"

namespace shard::testing {

namespace {

// Returns the kernels' address of memory of which a kernel uses `count`
// elements.
template <typename T>
T* Kernel(T* address, size_t count = 1) {
  if (count == 0) return address;
  return static_cast<T*>(const_cast<void*>(KernelMemory(address)));
}

// Returns the kernels' address of a block or of sums, which each thread of a
// kernel reads: memory of the host would be slow.
template <typename T>
T* KernelTensor(T* address) {
  return static_cast<T*>(const_cast<void*>(GuardedKernelMemory(address)));
}

// Gradients at their kernels' addresses.
class Sources {
 public:
  Sources(const GradientSources& sources, size_t count)
      : dtype_(sources.dtype) {
    for (size_t i = 0; i < sources.count; ++i) {
      data_.push_back(Kernel(sources.data[i], count));
    }
  }
  GradientSources get() const { return {data_.data(), data_.size(), dtype_}; }

 private:
  std::vector<const void*> data_;
  const DType dtype_;
};

// Returns a list of one range, at its kernels' addresses.
UpdateList KernelList(const UpdateList& list, size_t range) {
  UpdateList given = list;
  given.ranges = {list.ranges[range]};
  UpdateRange& only = given.ranges[0];
  const size_t count = only.count;
  for (size_t i = 0; i < only.num_sources; ++i) {
    const void*& source = given.sources[only.first_source + i];
    source = Kernel(source, count);
  }
  only.own_grads = Kernel(only.own_grads, count);
  only.param = Kernel(only.param, count);
  only.master = Kernel(only.master, count);
  for (size_t s = 0; s < only.num_states; ++s) {
    // States of tensor formulas may have no elements, and lie nowhere.
    only.states[s] = only.is_tensor ? KernelView(only.states[s])
                                    : Kernel(only.states[s], count);
    only.scales[s] = Kernel(only.scales[s], count);
  }
  // So may a workspace that no formula uses.
  given.workspace = KernelView(list.workspace);
  return given;
}

class GuardStream final : public Stream {
 public:
  GuardStream(std::shared_ptr<Stream> stream,
              std::function<Status()> before_copy)
      : stream_(std::move(stream)), before_copy_(std::move(before_copy)) {}

  std::string_view name() const override { return stream_->name(); }
  bool IsInline() const override { return stream_->IsInline(); }

  void FillZeros(void* to, size_t bytes) override {
    stream_->FillZeros(KernelView(to), bytes);
  }
  void Copy(void* to, const void* from, size_t bytes) override {
    if (before_copy_) stream_->Call("before a copy", before_copy_);
    stream_->Copy(KernelView(to), KernelView(from), bytes);
  }
  void Fill(std::vector<MemoryFill> parts) override {
    for (MemoryFill& part : parts) {
      part.to = KernelView(part.to);
      part.from = KernelView(part.from);
    }
    stream_->Fill(std::move(parts));
  }

  void Count(uint32_t* count, uint32_t* copy) override {
    stream_->Count(Kernel(count, 1), Kernel(copy, 1));
  }

  void SumGradients(const GradientSources& sources, size_t begin, size_t count,
                    double scale, double clip_value, float* out) override {
    stream_->SumGradients(Sources(sources, count).get(), begin, count, scale,
                          clip_value, Kernel(out, count));
  }

  void Widen(DType dtype, const void* from, float* to, size_t count) override {
    stream_->Widen(dtype, Kernel(from, count), Kernel(to, count), count);
  }

  void Narrow(DType dtype, const float* from, void* to, size_t count,
              const RandomStream* random) override {
    stream_->Narrow(dtype, Kernel(from, count), Kernel(to, count), count,
                    random);
  }

  void EncodeQ8(StateKind kind, const float* from, size_t count,
                const RandomStream* random, uint32_t tensor, uint8_t* codes,
                float* scales) override {
    stream_->EncodeQ8(kind, Kernel(from, count), count, random, tensor,
                      Kernel(codes, count), Kernel(scales, count));
  }

  void SumBlocks(const BlockSum& sum) override {
    const size_t bytes = sum.count * DTypeSize(sum.dtype);
    BlockSum seen = sum;
    seen.own = Kernel(sum.own, bytes);
    seen.peers = Kernel(sum.peers, bytes * static_cast<size_t>(sum.ranks - 1));
    seen.recv = Kernel(sum.recv, sum.count * DTypeSize(sum.recv_dtype));
    stream_->SumBlocks(seen);
  }

  void AddToNorm(const UpdateList& list, size_t range, NormPass pass,
                 const StepBlock* block, NormSum* sum) override {
    stream_->AddToNorm(Keep(list, range), 0, pass, KernelTensor(block),
                       KernelTensor(sum));
    EndKept();
  }

  void FinishNorm(NormPass pass, const NormSum* sums, size_t count,
                  StepBlock* block) override {
    stream_->FinishNorm(pass, KernelTensor(sums), count, KernelTensor(block));
  }

  void Update(const UpdateList& list, size_t range, const StepBlocks& step,
              const GradientSources* gradients) override {
    const UpdateList& kept = Keep(list, range);
    const StepBlocks seen = {step.host, KernelTensor(step.kernels)};
    if (gradients == nullptr) {
      stream_->Update(kept, 0, seen, nullptr);
    } else {
      const Sources sources(*gradients, list.ranges[range].count);
      const GradientSources given = sources.get();
      stream_->Update(kept, 0, seen, &given);
    }
    EndKept();
  }

  void OnError(std::function<void(const Status&)> handler) override {
    stream_->OnError(std::move(handler));
  }
  void Call(std::string_view what, std::function<Status()> work) override {
    stream_->Call(what, std::move(work));
  }
  Event Record() override { return stream_->Record(); }
  void Wait(const Event& event, const Deadline& deadline) override {
    stream_->Wait(event, deadline);
  }
  Status Synchronize(const Deadline& deadline) override {
    return stream_->Synchronize(deadline);
  }
  Status status() const override { return stream_->status(); }

 private:
  struct KeptList {
    UpdateList list;
    Event done;  // After the work that reads the list.
  };

  // Makes a list that lives until the work that is enqueued next is done.
  const UpdateList& Keep(const UpdateList& list, size_t range) {
    while (!kept_.empty() && kept_.front().done.IsDone()) kept_.pop_front();
    kept_.push_back({KernelList(list, range), Event()});
    return kept_.back().list;
  }
  void EndKept() { kept_.back().done = stream_->Record(); }

  // Outlives the stream, whose work reads them.
  std::deque<KeptList> kept_;
  const std::shared_ptr<Stream> stream_;
  const std::function<Status()> before_copy_;
};

// Memory, and the addresses that stand for it or let kernels reach it.
template <typename Addresses>
struct Held {
  template <typename... What>
  explicit Held(DeviceMemory given, const What&... what)
      : memory(std::move(given)),
        addresses(memory.data(), memory.size(), what...) {}

  const DeviceMemory memory;
  const Addresses addresses;
};

class GuardDevice final : public ForwardingDevice {
 public:
  GuardDevice(std::shared_ptr<Device> device,
              std::function<Status()> before_copy)
      : ForwardingDevice(std::move(device)),
        before_copy_(std::move(before_copy)) {}

  const std::string& name() const override { return name_; }

  StatusOr<DeviceMemory> Allocate(size_t bytes,
                                  std::string_view what) override {
    SHARD_ASSIGN_OR_RETURN(DeviceMemory memory, device().Allocate(bytes, what));
    if (bytes == 0) return memory;
    auto held = std::make_shared<Held<GuardedMemory>>(std::move(memory), what);
    return DeviceMemory(held->addresses.data(), bytes, held);
  }

  bool IsHostMemory() const override { return false; }

  StatusOr<DeviceMemory> AllocateHost(size_t bytes,
                                      std::string_view what) override {
    SHARD_ASSIGN_OR_RETURN(DeviceMemory memory,
                           device().AllocateHost(bytes, what));
    if (bytes == 0) return memory;
    auto held = std::make_shared<Held<SharedMemory>>(std::move(memory));
    return DeviceMemory(held->memory.data(), bytes, held);
  }

  StatusOr<std::unique_ptr<Stream>> CreateStream(StreamKind kind) override {
    SHARD_ASSIGN_OR_RETURN(auto stream, device().CreateStream(kind));
    return Guarded(std::move(stream));
  }

  StatusOr<std::shared_ptr<Stream>> WrapStream(void* native) override {
    SHARD_ASSIGN_OR_RETURN(auto stream, device().WrapStream(native));
    return std::shared_ptr<Stream>(Guarded(std::move(stream)));
  }

 private:
  std::unique_ptr<Stream> Guarded(std::shared_ptr<Stream> stream) const {
    return std::make_unique<GuardStream>(std::move(stream), before_copy_);
  }

  const std::string name_ = "guard";
  const std::function<Status()> before_copy_;
};

// Regions that ranks share, at guarded addresses.
class GuardedRegions final : public SymmetricBuffer {
 public:
  GuardedRegions(std::shared_ptr<SymmetricBuffer> buffer, int world_size,
                 std::string_view what)
      : buffer_(std::move(buffer)) {
    for (int rank = 0; rank < world_size; ++rank) {
      // All ranks of a host may have one region.
      const bool same = rank > 0 && buffer_->region(rank) == buffer_->region(0);
      regions_.push_back(
          same ? regions_[0]
               : std::make_shared<const GuardedMemory>(buffer_->region(rank),
                                                       buffer_->size(), what));
    }
  }

  size_t size() const override { return buffer_->size(); }
  std::byte* region(int rank) const override {
    return regions_[static_cast<size_t>(rank)]->data();
  }
  size_t resident_bytes() const override { return buffer_->resident_bytes(); }

 private:
  const std::shared_ptr<SymmetricBuffer> buffer_;
  std::vector<std::shared_ptr<const GuardedMemory>> regions_;  // By rank.
};

// Runs in the order of a stream, and so reaches tensors as kernels do.
class GuardExchange final : public Exchange {
 public:
  explicit GuardExchange(std::shared_ptr<Exchange> exchange)
      : exchange_(std::move(exchange)) {}

  Status ReduceScatter(std::string_view what, const RankSet& set,
                       const ReduceScatterArgs& args,
                       const Deadline& deadline) override {
    ReduceScatterArgs given = args;
    given.send = KernelView(args.send);
    given.recv = KernelView(args.recv);
    return exchange_->ReduceScatter(what, set, given, deadline);
  }

  Status AllGatherBlocks(std::string_view what, const RankSet& set,
                         const void* send, size_t bytes, void* recv,
                         const Deadline& deadline) override {
    return exchange_->AllGatherBlocks(what, set, KernelView(send), bytes,
                                      KernelView(recv), deadline);
  }

  Status GatherOnHosts(std::string_view what, const RankSet& set,
                       const void* send, size_t bytes, int block_groups,
                       void* recv, const Deadline& deadline) override {
    return exchange_->GatherOnHosts(what, set, KernelView(send), bytes,
                                    block_groups, KernelView(recv), deadline);
  }

  Status Broadcast(std::string_view what, int root, void* data, size_t bytes,
                   const Deadline& deadline) override {
    return exchange_->Broadcast(what, root, KernelView(data), bytes, deadline);
  }

  HostWaits* host_waits() override { return exchange_->host_waits(); }

 private:
  const std::shared_ptr<Exchange> exchange_;
};

class GuardCommunicator final : public Communicator {
 public:
  explicit GuardCommunicator(std::shared_ptr<Communicator> comm)
      : comm_(std::move(comm)) {}

  int rank() const override { return comm_->rank(); }
  int world_size() const override { return comm_->world_size(); }
  int local_rank() const override { return comm_->local_rank(); }
  int local_world_size() const override { return comm_->local_world_size(); }
  bool direct() const override { return comm_->direct(); }
  bool shares_host() const override { return comm_->shares_host(); }
  std::string Describe() const override { return comm_->Describe(); }
  Observer* observer() const override { return comm_->observer(); }
  double timeout() const override { return comm_->timeout(); }
  HostWaits* host_waits() override { return comm_->host_waits(); }

  Status Barrier(std::string_view what, const Deadline& deadline) override {
    return comm_->Barrier(what, deadline);
  }

  // Control data and broadcasts are the host's.
  Status AllGather(std::string_view what, const void* send, size_t bytes,
                   void* recv, const Deadline& deadline) override {
    return comm_->AllGather(what, send, bytes, recv, deadline);
  }

  StatusOr<std::shared_ptr<SymmetricBuffer>> Allocate(
      std::string_view what, size_t bytes, SymmetricKind kind,
      const Deadline& deadline) override {
    SHARD_ASSIGN_OR_RETURN(auto buffer,
                           comm_->Allocate(what, bytes, kind, deadline));
    if (bytes == 0) return buffer;
    return std::shared_ptr<SymmetricBuffer>(std::make_shared<GuardedRegions>(
        std::move(buffer), world_size(), what));
  }

  Status Broadcast(std::string_view what, int root, void* data, size_t bytes,
                   const Deadline& deadline) override {
    return comm_->Broadcast(what, root, data, bytes, deadline);
  }

  StatusOr<std::shared_ptr<Communicator>> Duplicate(
      std::string_view what, bool direct, const Deadline& deadline) override {
    SHARD_ASSIGN_OR_RETURN(auto made, comm_->Duplicate(what, direct, deadline));
    return GuardTensors(std::move(made));
  }

  StatusOr<std::shared_ptr<Exchange>> OpenExchange(
      std::string_view what, const Deadline& deadline) override {
    SHARD_ASSIGN_OR_RETURN(auto made, comm_->OpenExchange(what, deadline));
    return std::shared_ptr<Exchange>(
        std::make_shared<GuardExchange>(std::move(made)));
  }

  // Control data, too.
  StatusOr<std::unique_ptr<Notices>> OpenNotices(
      std::string_view what, size_t bytes, const Deadline& deadline) override {
    return comm_->OpenNotices(what, bytes, deadline);
  }

  void Abort(const Status& reason) override { comm_->Abort(reason); }
  void AbortUnlogged(const Status& reason) override {
    comm_->AbortUnlogged(reason);
  }
  Status Shutdown(const Deadline& deadline) override {
    return comm_->Shutdown(deadline);
  }

 private:
  const std::shared_ptr<Communicator> comm_;
};

}  // namespace

std::shared_ptr<Device> GuardTensors(std::shared_ptr<Device> device,
                                     std::function<Status()> before_copy) {
  return std::make_shared<GuardDevice>(std::move(device),
                                       std::move(before_copy));
}

std::shared_ptr<Communicator> GuardTensors(std::shared_ptr<Communicator> comm) {
  return std::make_shared<GuardCommunicator>(std::move(comm));
}

}  // namespace shard::testing
