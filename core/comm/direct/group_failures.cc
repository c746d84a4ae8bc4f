// SPDX-License-Identifier: Apache-2.0
//
// The end of a Group: one recorded error, which becomes that of its origin.

#include <mutex>
#include <string>

#include "core/comm/direct/call.h"
#include "core/comm/direct/group.h"

namespace shard::direct {

Status Group::FailRound(uint64_t round, const Status& error) {
  State now;
  {
    const std::lock_guard<std::mutex> lock(record_mutex_);
    // Read under the lock: another thread of this rank may have failed the
    // group meanwhile, and its record is being read.
    now = state();
    while (now.completed < round && now.failer < 0) {
      Record(ReasonOf(error));
      uint64_t expected = now.Pack();
      if (block_->state.compare_exchange_strong(
              expected, State{now.completed, rank_}.Pack())) {
        Announce();
      }
      now = state();
    }
  }
  return now.completed >= round ? Status() : Failure(now);
}

void Group::Fail(const Status& error) {
  FailThis(ReasonOf(error));
  if (origin_ != nullptr) origin_->FailThis(RecordedReason(state()));
}

void Group::FailThis(const Reason& reason) {
  const std::lock_guard<std::mutex> lock(record_mutex_);
  State now = state();
  while (now.failer < 0) {
    Record(reason);
    uint64_t expected = now.Pack();
    if (block_->state.compare_exchange_strong(
            expected, State{now.completed, rank_}.Pack())) {
      Announce();
      return;
    }
    now = State::Unpack(expected);
  }
}

void Group::Record(const Reason& reason) {
  FailureRecord& record = slot(rank_).failure;
  record.code = static_cast<int32_t>(reason.code);
  record.rank = reason.rank;
  record.message_bytes = CopyText(reason.message, record.message);
}

Group::Reason Group::RecordedReason(const State& state) const {
  const FailureRecord& record = slot(state.failer).failure;
  return {static_cast<StatusCode>(record.code), record.rank,
          TextOf(record.message, record.message_bytes)};
}

Status Group::Recorded(const State& state) const {
  const Reason reason = RecordedReason(state);
  return Status(reason.code, std::string(reason.message), reason.rank);
}

Status Group::Failure(const State& state) {
  // Any rank that sees the failure reports it: the rank that failed this group
  // may have died before it could do so.
  if (origin_ != nullptr) origin_->FailThis(RecordedReason(state));
  return Recorded(state);
}

Status Group::OriginFailure() const {
  if (origin_ == nullptr) return Status();
  const State state = origin_->state();
  return state.failer >= 0 ? origin_->Recorded(state) : Status();
}

}  // namespace shard::direct
