// SPDX-License-Identifier: Apache-2.0

#include "tests/fake_nccl/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

namespace shard::testing::fake_nccl {

void Channel::Write(const void* from, size_t bytes) {
  const auto* const data = static_cast<const std::byte*>(from);
  const size_t at = static_cast<size_t>(written_ % kCapacity);
  const size_t first = std::min(bytes, kCapacity - at);
  std::memcpy(bytes_ + at, data, first);
  if (first < bytes) std::memcpy(bytes_, data + first, bytes - first);
  written_ += bytes;
}

void Channel::Read(void* to, size_t bytes) {
  auto* const data = static_cast<std::byte*>(to);
  const size_t at = static_cast<size_t>(read_ % kCapacity);
  const size_t first = std::min(bytes, kCapacity - at);
  std::memcpy(data, bytes_ + at, first);
  if (first < bytes) std::memcpy(data + first, bytes_, bytes - first);
  read_ += bytes;
}

namespace {

// A process has one mapping of a segment, because the thread sanitizer knows
// addresses.
struct OpenSegments {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<Segment>> by_name;
};

OpenSegments* TheOpenSegments() {
  static auto* const open = new OpenSegments();
  return open;
}

}  // namespace

std::shared_ptr<Segment> Segment::Open(const std::string& name) {
  OpenSegments* const open = TheOpenSegments();
  const std::lock_guard<std::mutex> lock(open->mutex);
  std::shared_ptr<Segment> segment = open->by_name[name].lock();
  if (segment != nullptr) return segment;
  const int file = shm_open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return nullptr;
  void* memory = MAP_FAILED;
  if (ftruncate(file, sizeof(Layout)) == 0) {
    memory = mmap(nullptr, sizeof(Layout), PROT_READ | PROT_WRITE, MAP_SHARED,
                  file, 0);
  }
  close(file);
  if (memory == MAP_FAILED) return nullptr;
  segment.reset(new Segment(name, memory));
  open->by_name[name] = segment;
  return segment;
}

Segment::Segment(std::string name, void* memory)
    : name_(std::move(name)), layout_(static_cast<Layout*>(memory)) {}

Segment::~Segment() {
  Unlink();
  munmap(layout_, sizeof(Layout));
}

void Segment::Unlink() {
  if (is_unlinked_.exchange(true)) return;
  shm_unlink(name_.c_str());
  OpenSegments* const open = TheOpenSegments();
  const std::lock_guard<std::mutex> lock(open->mutex);
  open->by_name.erase(name_);
}

bool Segment::AgreeOnRanks(int nranks) {
  int none = 0;
  return layout_->nranks.compare_exchange_strong(none, nranks) ||
         none == nranks;
}

void Segment::Announce(uint64_t number, int rank, const Part& part) {
  Slot& slot = layout_->slots[number % 2][rank];
  slot.part = part;
  slot.number = number;
}

std::vector<Part> Segment::Round(uint64_t number, int nranks) const {
  std::vector<Part> parts;
  for (int rank = 0; rank < nranks; ++rank) {
    const Slot& slot = layout_->slots[number % 2][rank];
    if (slot.number != number) return {};
    parts.push_back(slot.part);
  }
  return parts;
}

}  // namespace shard::testing::fake_nccl
