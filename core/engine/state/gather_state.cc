// SPDX-License-Identifier: Apache-2.0

#include "core/engine/state/gather_state.h"

#include <algorithm>
#include <cstring>

#include "core/engine/state/local_state.h"
#include "core/engine/transfer/ok_or_abort.h"

namespace shard {

namespace {

constexpr const char* kPhase = "gather state";
constexpr size_t kRunBytes = size_t{16} << 20;

// A part of an entry that one rank sends, in bytes.
struct Piece {
  size_t entry;
  size_t begin;  // Position in the entry.
  size_t bytes;
  size_t owned_begin;  // Position in the owner's part.
};

// Pieces of one rank that follow each other, sent at once.
struct Run {
  int owner = -1;
  size_t bytes = 0;
  std::vector<Piece> pieces;
};

class Gatherer {
 public:
  Gatherer(const Plan& plan, const EngineMemory& memory,
           const std::vector<StateEntry>& entries, Communicator* comm,
           HostAccess* access, const TensorSink* sink, const Deadline& deadline)
      : plan_(plan),
        memory_(memory),
        entries_(entries),
        comm_(comm),
        access_(access),
        sink_(sink),
        deadline_(deadline) {}

  // Allocates room for a run, for copies of this rank's pieces, and on a
  // receiving rank for the largest tensor.
  Status Allocate(Device* device) {
    SHARD_RETURN_IF_ERROR(ReserveCopies());
    SHARD_ASSIGN_OR_RETURN(run_room_,
                           device->AllocateHost(kRunBytes, "a run of tensors"));
    if (sink_ == nullptr) return Status();
    size_t largest = 0;
    for (const StateEntry& entry : entries_) {
      if (entry.alias_of < 0) {
        largest = std::max(largest, EntryBytes(entry, entry.numel));
      }
    }
    SHARD_ASSIGN_OR_RETURN(tensor_,
                           device->AllocateHost(largest, "a gathered tensor"));
    return Status();
  }

  Status Gather() {
    for (size_t e = 0; e < entries_.size(); ++e) {
      if (entries_[e].alias_of >= 0) continue;
      SHARD_RETURN_IF_ERROR(AddPieces(e));
    }
    SHARD_RETURN_IF_ERROR(Send());
    // Delivers the entries without elements that follow the last one with
    // elements.
    DeliverUpTo(entries_.size());
    return Status();
  }

  const Status& sink_status() const { return sink_status_; }

 private:
  // A rank that sends nothing, or what is offloaded alone, copies by no stream.
  Status ReserveCopies() {
    const int rank = comm_->rank();
    for (const StateEntry& entry : entries_) {
      if (entry.alias_of >= 0) continue;
      const OwnedElements owned = OwnedBy(plan_, entry, rank);
      if (owned.numel == 0) continue;
      SHARD_RETURN_IF_ERROR(
          access_->ReserveFor(LocalData(plan_, memory_, entry, owned, rank)));
    }
    return Status();
  }

  Status AddPieces(size_t e) {
    const StateEntry& entry = entries_[e];
    for (const int owner : OwnersOf(plan_, entry)) {
      const OwnedElements owned = OwnedBy(plan_, entry, owner);
      const size_t begin = EntryBytes(entry, owned.begin);
      const size_t bytes = EntryBytes(entry, owned.numel);
      for (size_t at = 0; at < bytes;) {
        if (owner != run_.owner || run_.bytes == kRunBytes) {
          SHARD_RETURN_IF_ERROR(Send());
          run_.owner = owner;
        }
        const size_t some = std::min(bytes - at, kRunBytes - run_.bytes);
        run_.pieces.push_back({e, begin + at, some, at});
        run_.bytes += some;
        at += some;
      }
    }
    return Status();
  }

  Status Send() {
    if (run_.bytes == 0) return Status();
    if (comm_->rank() == run_.owner) {
      SHARD_RETURN_IF_ERROR(OkOrAbort(comm_, FetchRun()));
    }
    SHARD_RETURN_IF_ERROR(comm_->Broadcast(kPhase, run_.owner, run_room_.data(),
                                           run_.bytes, deadline_));
    if (sink_ != nullptr) TakeRun();
    run_ = Run();
    return Status();
  }

  // Copies this rank's pieces of the run, one behind the other.
  Status FetchRun() {
    std::vector<HostCopy> copies;
    copies.reserve(run_.pieces.size());
    std::byte* to = run_room_.data();
    for (const Piece& piece : run_.pieces) {
      const StateEntry& entry = entries_[piece.entry];
      const OwnedElements owned = OwnedBy(plan_, entry, run_.owner);
      const std::byte* const data =
          LocalData(plan_, memory_, entry, owned, run_.owner);
      copies.push_back({to, data + piece.owned_begin, piece.bytes});
      to += piece.bytes;
    }
    return access_->Fetch(copies, deadline_);
  }

  // Receives a run. Elements come in the order of the entries: a tensor is
  // whole when its last byte has arrived.
  void TakeRun() {
    const std::byte* from = run_room_.data();
    for (const Piece& piece : run_.pieces) {
      DeliverUpTo(piece.entry);
      const StateEntry& entry = entries_[piece.entry];
      std::memcpy(tensor_.data() + piece.begin, from, piece.bytes);
      from += piece.bytes;
      if (piece.begin + piece.bytes == EntryBytes(entry, entry.numel)) {
        Deliver(piece.entry, tensor_.data());
        next_ = piece.entry + 1;
      }
    }
  }

  // Delivers the aliases, and the entries without elements, before `entry`.
  void DeliverUpTo(size_t entry) {
    for (; next_ < entry; ++next_) Deliver(next_, nullptr);
  }

  void Deliver(size_t entry, const std::byte* data) {
    if (sink_ == nullptr || !sink_status_.ok()) return;
    sink_status_ = (*sink_)(entry, data);
  }

  const Plan& plan_;
  const EngineMemory& memory_;
  const std::vector<StateEntry>& entries_;
  Communicator* const comm_;
  HostAccess* const access_;
  const TensorSink* const sink_;  // Null: this rank gets nothing.
  const Deadline deadline_;
  DeviceMemory run_room_;
  DeviceMemory tensor_;
  Run run_;
  size_t next_ = 0;  // The first entry that was not delivered.
  Status sink_status_;
};

}  // namespace

Status GatherState(const Plan& plan, const EngineMemory& memory,
                   const std::vector<StateEntry>& entries, int rank,
                   Communicator* comm, Device* device, HostAccess* access,
                   const TensorSink& sink, const Deadline& deadline) {
  const bool here = rank < 0 || rank == comm->rank();
  Gatherer gatherer(plan, memory, entries, comm, access, here ? &sink : nullptr,
                    deadline);
  SHARD_RETURN_IF_ERROR(
      AgreeOnStatus(comm, kPhase, gatherer.Allocate(device), deadline));
  SHARD_RETURN_IF_ERROR(gatherer.Gather());
  return AgreeOnStatus(comm, kPhase, gatherer.sink_status(), deadline);
}

}  // namespace shard
