// SPDX-License-Identifier: Apache-2.0

#include "tests/fake_nccl/kernel.h"

#include <algorithm>
#include <cstring>

#include "tests/fake_nccl/state.h"

namespace shard::testing::fake_nccl {

namespace {

using fake_cuda::Progress;

// A sum waits until all ranks have sent this much, which fits in a channel.
constexpr size_t kPartBytes = Channel::kCapacity / 4;

}  // namespace

Kernel::Kernel(std::shared_ptr<Comm> comm, uint64_t number,
               std::vector<Work> works, const Options& options, bool is_stuck)
    : comm_(std::move(comm)),
      number_(number),
      works_(std::move(works)),
      slice_elements_(options.slice_elements),
      sums_in_rank_order_(options.sums_in_rank_order),
      is_stuck_(is_stuck) {
  for (const Work& work : works_) Add(work);
}

void Kernel::Add(const Work& work) {
  const int me = comm_->rank;
  const size_t bytes = work.bytes();
  Header header = {};
  header.kind = work.is_collective() ? work.kind : WorkKind::kSend;
  header.type = work.type;
  header.op = work.op;
  header.root = work.kind == WorkKind::kBroadcast ? work.peer : -1;
  header.count = work.count;
  header.send_is_registered = work.send_is_registered;
  header.recv_is_registered = work.recv_is_registered;
  header.window = work.window;
  header.window_offset = work.window_offset;
  if (work.kind == WorkKind::kBroadcast) header.send_is_registered = false;
  if (work.kind == WorkKind::kRecv) {
    std::swap(header.send_is_registered, header.recv_is_registered);
  }
  const auto send = [&](int to, size_t offset) {
    const auto made = std::make_shared<Sending>();
    made->header = header;
    made->data = work.send + offset;
    made->bytes = bytes;
    sends_[{work.is_collective(), to}].push_back(made);
    return made;
  };
  const auto receive = [&](int from, const std::shared_ptr<Receiving>& into) {
    receives_[{work.is_collective(), from}].push_back(into);
  };
  const auto copy_to = [&](size_t offset) {
    const auto made = std::make_shared<Receiving>();
    made->header = header;
    made->into = work.recv + offset;
    made->bytes = bytes;
    return made;
  };
  if (work.kind == WorkKind::kSend) send(work.peer, 0);
  if (work.kind == WorkKind::kRecv) receive(work.peer, copy_to(0));
  const bool scatters = work.kind == WorkKind::kReduceScatter;
  std::shared_ptr<Receiving> sum;
  if (scatters || work.kind == WorkKind::kAllReduce) {
    sum = copy_to(0);
    sum->block = scatters ? me : 0;
    sum->own = work.send + (scatters ? static_cast<size_t>(me) * bytes : 0);
  }
  for (int rank = 0; rank < comm_->size && work.is_collective(); ++rank) {
    if (rank == me) continue;
    const size_t offset = static_cast<size_t>(rank) * bytes;
    switch (work.kind) {
      case WorkKind::kReduceScatter:
        send(rank, offset);
        receive(rank, sum);
        break;
      case WorkKind::kAllReduce:
        sum->sent_before.push_back(send(rank, 0));
        receive(rank, sum);
        break;
      case WorkKind::kAllGather:
        send(rank, 0);
        receive(rank, copy_to(offset));
        break;
      case WorkKind::kBroadcast:
        if (work.peer == me) send(rank, 0);
        if (work.peer == rank) receive(rank, copy_to(0));
        break;
      case WorkKind::kSend:
      case WorkKind::kRecv:
        break;
    }
  }
}

void Kernel::CopyOwn(const Work& work) const {
  std::byte* to = work.recv;
  switch (work.kind) {
    case WorkKind::kAllGather:
      to += static_cast<size_t>(comm_->rank) * work.bytes();
      break;
    case WorkKind::kBroadcast:
      if (work.peer != comm_->rank) return;
      break;
    case WorkKind::kReduceScatter:
    case WorkKind::kAllReduce:
      if (comm_->size != 1) return;
      break;
    case WorkKind::kSend:
    case WorkKind::kRecv:
      return;
  }
  if (to != work.send) std::memmove(to, work.send, work.bytes());
}

Progress Kernel::Attempt() {
  comm_->is_in_kernel = true;
  const Progress progress = AttemptNow();
  comm_->is_in_kernel = false;
  return progress;
}

Progress Kernel::AttemptNow() {
  if (comm_->is_stopped) return Progress::kDone;
  // The kernels of a communicator come one after another.
  if (comm_->ended != number_) return Progress::kWaits;
  if (is_stuck_ || is_mismatched_ || TheState()->IsDead(*comm_)) {
    return Progress::kWaits;
  }
  if (!is_begun_) {
    is_begun_ = true;
    for (const Work& work : works_) CopyOwn(work);
  }
  bool moved = false;
  for (auto& [route, queue] : sends_) moved |= Send(route, &queue);
  for (auto& [route, queue] : receives_) {
    if (!queue.empty()) moved |= Receive(route, queue.front().get());
  }
  PopReceived();
  const auto is_empty = [](const auto& it) { return it.second.empty(); };
  if (!std::all_of(sends_.begin(), sends_.end(), is_empty) ||
      !std::all_of(receives_.begin(), receives_.end(), is_empty) ||
      !IsReceived()) {
    return moved ? Progress::kMore : Progress::kWaits;
  }
  ++comm_->ended;
  TheState()->CountEnd(*comm_);
  return Progress::kDone;
}

bool Kernel::Send(const Route& route,
                  std::deque<std::shared_ptr<Sending>>* queue) {
  Channel* const channel = To(route);
  bool moved = false;
  while (!queue->empty()) {
    Sending& next = *queue->front();
    if (!next.has_sent_header) {
      if (channel->CanWrite() < sizeof(Header)) break;
      channel->Write(&next.header, sizeof(Header));
      next.has_sent_header = true;
      moved = true;
    }
    const size_t part = std::min(channel->CanWrite(), next.bytes - next.done);
    if (part != 0) {
      channel->Write(next.data + next.done, part);
      next.done += part;
      moved = true;
    }
    if (next.done < next.bytes) break;
    sent_[route] = channel->written();
    queue->pop_front();
  }
  return moved;
}

bool Kernel::Receive(const Route& route, Receiving* receiving) {
  if (receiving->own != nullptr) {
    bool moved = ReceiveHeader(route, receiving);
    if (is_mismatched_ || !IsFirstEverywhere(*receiving)) return moved;
    while (SumPart(receiving)) moved = true;
    return moved;
  }
  const bool moved = ReceiveHeader(route, receiving);
  if (is_mismatched_ || receiving->headers.empty()) return moved;
  Channel* const channel = From(route);
  const size_t part =
      std::min(channel->CanRead(), receiving->bytes - receiving->done);
  if (part == 0) return moved;
  channel->Read(receiving->into + receiving->done, part);
  receiving->done += part;
  return true;
}

bool Kernel::ReceiveHeader(const Route& route, Receiving* receiving) {
  if (receiving->headers.count(route.second) != 0) return false;
  Channel* const channel = From(route);
  if (channel->CanRead() < sizeof(Header)) return false;
  Header header = {};
  channel->Read(&header, sizeof(Header));
  receiving->headers.insert(route.second);
  if (header == receiving->header) return true;
  is_mismatched_ = true;
  TheState()->Add(ViolationKind::kMismatch,
                  comm_->Describe() + " is in " + Describe(receiving->header) +
                      ", but rank " + std::to_string(route.second) + " in " +
                      Describe(header));
  return true;
}

bool Kernel::IsFirstEverywhere(const Receiving& receiving) const {
  for (const auto& [route, queue] : receives_) {
    if (!route.first) continue;
    if (queue.empty() || queue.front().get() != &receiving) return false;
  }
  return receiving.headers.size() == static_cast<size_t>(comm_->size) - 1;
}

bool Kernel::SumPart(Receiving* receiving) {
  const size_t size = SizeOf(receiving->header.type);
  const size_t element = receiving->done / size;
  const size_t left = (receiving->bytes - receiving->done) / size;
  const size_t part = std::min(
      {left, slice_elements_ - element % slice_elements_, kPartBytes / size});
  const size_t bytes = part * size;
  if (part == 0) return false;
  for (const auto& sending : receiving->sent_before) {
    if (sending->done < receiving->done + bytes) return false;
  }
  for (int rank = 0; rank < comm_->size; ++rank) {
    if (rank != comm_->rank && From({true, rank})->CanRead() < bytes) {
      return false;
    }
  }
  const int first =
      sums_in_rank_order_
          ? 0
          : FirstRank(receiving->block, element, slice_elements_, comm_->size);
  std::vector<std::byte> sum(bytes);
  std::vector<std::byte> addends(bytes);
  for (int i = 0; i < comm_->size; ++i) {
    const int rank = (first + i) % comm_->size;
    std::byte* const to = i == 0 ? sum.data() : addends.data();
    if (rank == comm_->rank) {
      std::memcpy(to, receiving->own + receiving->done, bytes);
    } else {
      From({true, rank})->Read(to, bytes);
    }
    if (i != 0) {
      AddTo(sum.data(), addends.data(), part, receiving->header.type);
    }
  }
  std::memcpy(receiving->into + receiving->done, sum.data(), bytes);
  receiving->done += bytes;
  return true;
}

void Kernel::PopReceived() {
  for (auto& [route, queue] : receives_) {
    while (!queue.empty()) {
      const Receiving& first = *queue.front();
      if (first.done < first.bytes || first.headers.count(route.second) == 0) {
        break;
      }
      queue.pop_front();
    }
  }
}

bool Kernel::IsReceived() const {
  return std::all_of(sent_.begin(), sent_.end(), [this](const auto& it) {
    return To(it.first)->read() >= it.second;
  });
}

std::string Kernel::Describe(const Header& header) const {
  Work work = {};
  work.kind = header.kind;
  std::string text = std::string(work.symbol()) + " of " +
                     std::to_string(header.count) + " " + NameOf(header.type);
  if (header.root >= 0) text += " from rank " + std::to_string(header.root);
  if (header.send_is_registered) text += ", what it reads is registered";
  if (header.recv_is_registered) text += ", what it writes is registered";
  if (header.window != 0) {
    text += ", at " + std::to_string(header.window_offset) + " of window " +
            std::to_string(header.window);
  }
  return text;
}

}  // namespace shard::testing::fake_nccl
