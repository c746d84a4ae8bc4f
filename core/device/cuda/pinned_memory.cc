// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/pinned_memory.h"

#include <unistd.h>

#include <cstring>
#include <utility>

#include "core/base/strings.h"
#include "core/device/work_queue/forked.h"

namespace shard::cuda {

namespace {

// Bytes that are kept: some engines' staging memory, and not a copy of a model.
constexpr size_t kMostKept = size_t{64} << 20;

}  // namespace

// Ends the use of a piece, but not in a child of fork.
class PinnedMemory::Piece {
 public:
  explicit Piece(std::shared_ptr<PinnedMemory> owner)
      : owner_(std::move(owner)) {}
  ~Piece() {
    if (!piece.empty()) owner_->Return(std::move(piece));
  }
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;

  Pieces::node_type piece;

 private:
  const std::shared_ptr<PinnedMemory> owner_;
};

std::shared_ptr<PinnedMemory> PinnedMemory::Create(
    std::shared_ptr<Context> context) {
  const pid_t owner = ::getpid();
  return std::shared_ptr<PinnedMemory>(new PinnedMemory(std::move(context)),
                                       [owner](PinnedMemory* it) {
                                         if (::getpid() == owner) delete it;
                                       });
}

PinnedMemory::~PinnedMemory() { FreeKept(); }

StatusOr<DeviceMemory> PinnedMemory::Allocate(size_t bytes,
                                              std::string_view what) {
  if (bytes == 0) return DeviceMemory();
  const auto owner = MakeSharedUnlessForked<Piece>(shared_from_this());
  SHARD_ASSIGN_OR_RETURN(owner->piece, Take(bytes, what));
  auto* const memory = static_cast<std::byte*>(owner->piece.mapped());
  std::memset(memory, 0, bytes);
  return DeviceMemory(memory, bytes, owner);
}

StatusOr<PinnedMemory::Pieces::node_type> PinnedMemory::Take(
    size_t bytes, std::string_view what) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = kept_.lower_bound(bytes);
    if (found != kept_.end() && found->first / 2 <= bytes) {
      kept_bytes_ -= found->first;
      return kept_.extract(found);
    }
  }
  // The node first, so that nothing fails once there is memory.
  Pieces made;
  made.emplace(bytes, nullptr);
  const Status status = Make(bytes, &made.begin()->second);
  if (status.ok()) return made.extract(made.begin());
  if (status.code() != StatusCode::kResourceExhausted) {
    return status.WithContext(what);
  }
  return ResourceExhausted(
      what, ": ", FormatBytes(bytes), " (", bytes,
      " bytes) of the host's memory that stays in place (pinned) for ",
      context_->name(), "; free memory, or raise the limit of the container");
}

Status PinnedMemory::Make(size_t bytes, void** memory) {
  return context_->Run([&] {
    const auto make = [&] {
      return context_->api().MemHostAlloc(
          memory, bytes, kHostAllocPortable | kHostAllocDeviceMap);
    };
    CuResult result = make();
    if (result == CuResult::kOutOfMemory) {
      FreeKept();
      result = make();
    }
    return context_->driver()->ToStatus(result, "cuMemHostAlloc");
  });
}

void PinnedMemory::Return(Pieces::node_type piece) noexcept {
  // Work that was left may still write it.
  if (context_->is_abandoned()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (kept_bytes_ + piece.key() <= kMostKept) {
      kept_bytes_ += piece.key();
      kept_.insert(std::move(piece));
      return;
    }
  }
  const Context::Current current(*context_);
  context_->api().MemFreeHost(piece.mapped());
}

void PinnedMemory::FreeKept() noexcept {
  Pieces pieces;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    pieces.swap(kept_);
    kept_bytes_ = 0;
  }
  if (context_->is_abandoned()) return;
  const Context::Current current(*context_);
  for (const auto& [bytes, memory] : pieces) {
    context_->api().MemFreeHost(memory);
  }
}

}  // namespace shard::cuda
