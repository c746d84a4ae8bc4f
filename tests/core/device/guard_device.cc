// SPDX-License-Identifier: Apache-2.0

#include "tests/core/device/guard_device.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/comm/exchange.h"
#include "core/device/stream.h"
#include "kernels/formula/all.h"
#include "tests/core/device/guard_memory.h"

namespace shard::testing {

namespace {

constexpr size_t kNumStates[] = {
#define SHARD_NUM_STATES(Name) static_cast<size_t>(Name::kNumStates),
    SHARD_FORMULAS(SHARD_NUM_STATES)
#undef SHARD_NUM_STATES
};

size_t NumStates(Formula formula) {
  return kNumStates[static_cast<size_t>(formula)];
}

// Returns the kernels' address of memory of which a kernel uses `count`
// elements.
template <typename T>
T* Kernel(T* address, size_t count = 1) {
  if (count == 0) return address;
  return static_cast<T*>(const_cast<void*>(KernelMemory(address)));
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

class GuardStream final : public Stream {
 public:
  GuardStream(std::unique_ptr<Stream> stream,
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

  void FusedStep(Formula formula, const double* hypers, int64_t step,
                 const FusedStepArgs& args) override {
    const size_t count = args.count;
    const Sources sources(args.gradients, count);
    std::array<void*, kMaxStates> states = {};
    std::array<float*, kMaxStates> scales = {};
    for (size_t s = 0; s < NumStates(formula); ++s) {
      states[s] = Kernel(args.states[s], count);
      if (args.state_dtype != DType::kQ8) continue;
      scales[s] = Kernel(args.scales[s], count);
    }
    FusedStepArgs given = args;
    given.gradients = sources.get();
    given.param = Kernel(args.param, count);
    given.master = Kernel(args.master, count);
    given.states = states.data();
    given.scales = scales.data();
    stream_->FusedStep(formula, hypers, step, given);
  }

  void SumGradients(const GradientSources& sources, size_t begin, size_t count,
                    double scale, double clip_value, float* out) override {
    stream_->SumGradients(Sources(sources, count).get(), begin, count, scale,
                          clip_value, Kernel(out, count));
  }

  void AddToNorm(NormType type, double p, double reference, const float* values,
                 size_t count, NormSum* sum) override {
    stream_->AddToNorm(type, p, reference, Kernel(values, count), count,
                       Kernel(sum));
  }

  void AddGradientsToNorm(NormType type, double p, double reference,
                          const GradientSources& sources, size_t begin,
                          size_t count, float* out, NormSum* sum) override {
    stream_->AddGradientsToNorm(type, p, reference,
                                Sources(sources, count).get(), begin, count,
                                Kernel(out, count), Kernel(sum));
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

  void TensorStep(Formula formula, const double* hypers, int64_t step,
                  const TensorStepArgs& args) override {
    std::array<float*, kMaxStates> states = {};
    // Those without elements, and scratch memory of none, lie nowhere.
    for (size_t s = 0; s < NumStates(formula); ++s) {
      states[s] = KernelView(args.states[s]);
    }
    TensorStepArgs given = args;
    given.grad = Kernel(args.grad);
    given.param = Kernel(args.param);
    given.states = states.data();
    given.scratch = KernelView(args.scratch);
    stream_->TensorStep(formula, hypers, step, given);
  }

  void MuonMomentum(const double* hypers, float* gradient,
                    float* momentum_buffer, size_t count) override {
    stream_->MuonMomentum(hypers, Kernel(gradient, count),
                          Kernel(momentum_buffer, count), count);
  }

  void Orthogonalize(const MatrixBatch& batch, int steps, double eps,
                     float* workspace) override {
    MatrixBatch given = batch;
    given.first = Kernel(batch.first);
    stream_->Orthogonalize(given, steps, eps, Kernel(workspace));
  }

  void MuonApply(const double* hypers, int64_t rows, int64_t cols,
                 const float* direction, float* param, size_t count) override {
    stream_->MuonApply(hypers, rows, cols, Kernel(direction, count),
                       Kernel(param, count), count);
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
  const std::unique_ptr<Stream> stream_;
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

class GuardDevice final : public Device {
 public:
  GuardDevice(std::shared_ptr<Device> device,
              std::function<Status()> before_copy)
      : device_(std::move(device)), before_copy_(std::move(before_copy)) {}

  const std::string& name() const override { return name_; }

  StatusOr<DeviceMemory> Allocate(size_t bytes,
                                  std::string_view what) override {
    SHARD_ASSIGN_OR_RETURN(DeviceMemory memory, device_->Allocate(bytes, what));
    if (bytes == 0) return memory;
    auto held = std::make_shared<Held<GuardedMemory>>(std::move(memory), what);
    return DeviceMemory(held->addresses.data(), bytes, held);
  }

  bool IsHostMemory() const override { return false; }

  StatusOr<DeviceMemory> AllocateHost(size_t bytes,
                                      std::string_view what) override {
    SHARD_ASSIGN_OR_RETURN(DeviceMemory memory,
                           device_->AllocateHost(bytes, what));
    if (bytes == 0) return memory;
    auto held = std::make_shared<Held<SharedMemory>>(std::move(memory));
    return DeviceMemory(held->memory.data(), bytes, held);
  }

  StatusOr<std::unique_ptr<Stream>> CreateStream(StreamKind kind) override {
    SHARD_ASSIGN_OR_RETURN(auto stream, device_->CreateStream(kind));
    return Guarded(std::move(stream));
  }

  StatusOr<std::unique_ptr<Stream>> WrapStream(void* native) override {
    SHARD_ASSIGN_OR_RETURN(auto stream, device_->WrapStream(native));
    return Guarded(std::move(stream));
  }

  StatusOr<std::string> LoadBlas() override { return device_->LoadBlas(); }

 private:
  std::unique_ptr<Stream> Guarded(std::unique_ptr<Stream> stream) const {
    return std::make_unique<GuardStream>(std::move(stream), before_copy_);
  }

  const std::string name_ = "guard";
  const std::shared_ptr<Device> device_;
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
  bool direct() const override { return comm_->direct(); }
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
      std::string_view what, const Deadline& deadline) override {
    SHARD_ASSIGN_OR_RETURN(auto made, comm_->Duplicate(what, deadline));
    return GuardTensors(std::move(made));
  }

  StatusOr<std::shared_ptr<Exchange>> OpenExchange(
      std::string_view what, const Deadline& deadline) override {
    SHARD_ASSIGN_OR_RETURN(auto made, comm_->OpenExchange(what, deadline));
    return std::shared_ptr<Exchange>(
        std::make_shared<GuardExchange>(std::move(made)));
  }

  void Abort(const Status& reason) override { comm_->Abort(reason); }
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
