// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/memory.h"

#include <unistd.h>

#include <array>
#include <utility>

#include "core/base/strings.h"

namespace shard::cuda {

namespace {

// Seconds that new memory may take to be filled; and the fewest before a device
// is given up: an event that was recorded just now is not done on an idle one
// either.
constexpr double kFillTimeout = 60;
constexpr double kLeastTimeout = 1;

CuPointer PointerOf(const void* memory) {
  return reinterpret_cast<CuPointer>(memory);
}

}  // namespace

// The pool of a device's memory, and the stream in whose order it is allocated
// and freed.
class Memory::Pool {
 public:
  explicit Pool(std::shared_ptr<Context> context)
      : context_(std::move(context)), owner_pid_(::getpid()) {}
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  ~Pool() {
    if (::getpid() != owner_pid_ || context_->is_abandoned()) return;
    const Context::Current current(*context_);
    if (pool_ != nullptr) context_->api().MemPoolDestroy(pool_);
    if (stream_ != nullptr) context_->api().StreamDestroy(stream_);
  }

  // REQUIRES, of this and the following: the context is current.
  Status Open() {
    const Driver* const driver = context_->driver();
    int pools = 0;
    SHARD_CUDA_CALL(driver, StreamCreate, &stream_, kStreamNonBlocking);
    SHARD_CUDA_CALL(driver, DeviceGetAttribute, &pools,
                    CuDeviceAttribute::kMemoryPoolsSupported,
                    context_->device());
    if (pools == 0) return Status();
    // A pool of our own: the host may have set up the device's for itself.
    CuMemoryPoolProps props;
    props.location_id = context_->device();
    SHARD_CUDA_CALL(driver, MemPoolCreate, &pool_, &props);
    return Status();
  }

  Status Allocate(size_t bytes, CuPointer* memory) const {
    const Driver* const driver = context_->driver();
    if (pool_ == nullptr) {
      SHARD_CUDA_CALL(driver, MemAlloc, memory, bytes);
    } else {
      SHARD_CUDA_CALL(driver, MemAllocFromPoolAsync, memory, bytes, pool_,
                      stream_);
    }
    return Status();
  }

  // Frees memory that no work uses any more. Anywhere, but not in a child of
  // fork.
  void Free(CuPointer memory) const noexcept {
    if (::getpid() != owner_pid_ || context_->is_abandoned()) return;
    const Context::Current current(*context_);
    if (pool_ == nullptr) {
      context_->api().MemFree(memory);
      return;
    }
    context_->api().MemFreeAsync(memory, stream_);
    // A pool keeps what is free until the host waits for the driver, which
    // nothing here does; others use the device, too. This gives back what was
    // freed before.
    context_->api().MemPoolTrimTo(pool_, 0);
  }

  // Fills memory, and waits for that.
  Status Fill(CuPointer to, const void* from, size_t bytes) const {
    SHARD_ASSIGN_OR_RETURN(const CuEvent event, context_->TakeEvent());
    Status filled = Enqueue(to, from, bytes);
    if (filled.ok()) {
      filled = Finish(event);
      // A failed call does not say that the copy is over, and the owner of what
      // it reads may free that now.
      if (!filled.ok() && !context_->is_abandoned()) (void)Finish(event).ok();
    }
    context_->ReturnEvent(event);
    return filled;
  }

  // Gives back what the pool keeps of memory that was freed. Pieces that were
  // freed last are among it only once the host knows that they are free. A
  // device that does not come to that by `deadline`, and in a second, fills no
  // new memory either, and is found here, before anything waits for that.
  Status Trim(const Deadline& deadline) const {
    const Deadline least = Deadline::After(kLeastTimeout);
    const Deadline end =
        deadline.Remaining() < least.Remaining() ? least : deadline;
    SHARD_ASSIGN_OR_RETURN(const CuEvent event, context_->TakeEvent());
    const auto freed = Await(event, end);
    context_->ReturnEvent(event);
    SHARD_RETURN_IF_ERROR(freed.status());
    if (!*freed) {
      // The end of the context would wait for the device without a limit.
      context_->Abandon();
      return DeadlineExceeded(context_->name(), " did no work within ",
                              end.seconds(),
                              " s; look at what else it does (nvidia-smi), or "
                              "give it a longer timeout");
    }
    if (pool_ == nullptr) return Status();
    SHARD_CUDA_CALL(context_->driver(), MemPoolTrimTo, pool_, 0);
    return Status();
  }

  const std::shared_ptr<Context>& context() const { return context_; }

 private:
  Status Enqueue(CuPointer to, const void* from, size_t bytes) const {
    const Driver* const driver = context_->driver();
    if (from == nullptr) {
      SHARD_CUDA_CALL(driver, MemsetD8Async, to, 0, bytes, stream_);
    } else {
      SHARD_CUDA_CALL(driver, MemcpyAsync, to, PointerOf(from), bytes, stream_);
    }
    return Status();
  }
  // Waits for the stream. Returns whether that was in time.
  StatusOr<bool> Await(CuEvent event, const Deadline& deadline) const {
    SHARD_CUDA_CALL(context_->driver(), EventRecord, event, stream_);
    return context_->Await(event, deadline, nullptr);
  }
  Status Finish(CuEvent event) const {
    SHARD_ASSIGN_OR_RETURN(const bool done,
                           Await(event, Deadline::After(kFillTimeout)));
    if (done) return Status();
    context_->Abandon();
    return DeadlineExceeded(context_->name(), " did not fill new memory in ",
                            kFillTimeout, " s; look at what else it does");
  }

  const std::shared_ptr<Context> context_;
  const pid_t owner_pid_;
  CuMemoryPool pool_ = nullptr;  // Null: the driver has none.
  CuStream stream_ = nullptr;
};

StatusOr<Memory> Memory::Open(std::shared_ptr<Context> context) {
  Memory memory;
  memory.pinned_ = PinnedMemory::Create(context);
  memory.pool_ = std::make_shared<Pool>(std::move(context));
  Pool& pool = *memory.pool_;
  SHARD_RETURN_IF_ERROR(pool.context()->Run([&] { return pool.Open(); }));
  return memory;
}

StatusOr<DeviceMemory> Memory::Allocate(size_t bytes,
                                        std::string_view what) const {
  return AllocateFilled(bytes, nullptr, what);
}

StatusOr<MemoryRoom> Memory::FindRoom(const Deadline& deadline) const {
  const Context& context = *pool_->context();
  MemoryRoom room;
  SHARD_RETURN_IF_ERROR(context.Run([&] {
    SHARD_RETURN_IF_ERROR(pool_->Trim(deadline));
    size_t free = 0;
    size_t total = 0;
    CuUuid uuid = {};
    SHARD_CUDA_CALL(context.driver(), MemGetInfo, &free, &total);
    SHARD_CUDA_CALL(context.driver(), DeviceGetUuid, &uuid, context.device());
    room = {free, total, std::to_array(uuid.bytes)};
    return Status();
  }));
  return room;
}

StatusOr<DeviceMemory> Memory::Upload(const void* from, size_t bytes,
                                      std::string_view what) const {
  return AllocateFilled(bytes, from, what);
}

StatusOr<DeviceMemory> Memory::AllocateFilled(size_t bytes, const void* from,
                                              std::string_view what) const {
  if (bytes == 0) return DeviceMemory();
  class Piece {
   public:
    explicit Piece(std::shared_ptr<Pool> pool) : pool_(std::move(pool)) {}
    ~Piece() {
      if (memory != 0) pool_->Free(memory);
    }
    Piece(const Piece&) = delete;
    Piece& operator=(const Piece&) = delete;

    CuPointer memory = 0;

   private:
    const std::shared_ptr<Pool> pool_;
  };
  const Context& context = *pool_->context();
  const auto piece = std::make_shared<Piece>(pool_);
  SHARD_RETURN_IF_ERROR(context.Run([&] {
    const Status allocated = pool_->Allocate(bytes, &piece->memory);
    if (allocated.code() == StatusCode::kResourceExhausted) {
      return context.OutOfMemory(what, bytes);
    }
    SHARD_RETURN_IF_ERROR(allocated.WithContext(what));
    return pool_->Fill(piece->memory, from, bytes).WithContext(what);
  }));
  return DeviceMemory(reinterpret_cast<std::byte*>(piece->memory), bytes,
                      piece);
}

}  // namespace shard::cuda
