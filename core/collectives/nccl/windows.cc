// SPDX-License-Identifier: Apache-2.0

#include "core/collectives/nccl/windows.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/strings.h"
#include "core/collectives/nccl/conf_files.h"
#include "core/collectives/nccl/library.h"

namespace shard::nccl {

namespace {

constexpr std::string_view kMakeWindows = "make windows with NCCL";

// A rank that waits in NCCL asks the others in this interval.
constexpr std::chrono::milliseconds kInterval(20);

// The time for the ranks to tell each other that the deadline has passed.
constexpr std::chrono::milliseconds kGrace(500);

// How one rank gets on with a window.
enum class State : int32_t {
  kPending,
  kMade,
  kNone,    // NCCL has no windows on this rank.
  kFailed,  // Or another rank has.
};

// Returns whether NCCL reads a value as 0, as it does numbers of any base, and
// all that begins like none ("off").
bool IsZero(const std::string& value) {
  return !value.empty() && std::strtoll(value.c_str(), nullptr, 0) == 0;
}

// Returns why this rank makes no windows; OK where it may.
Status FindReason(const NcclLibrary& library,
                  const Registration& registration) {
  if (!library.api.HasWindows()) {
    return NotFound(library.WhyNoWindows());
  }
  if (!registration.why_not().empty()) {
    return NotFound("memory is not registered with NCCL: ",
                    registration.why_not());
  }
  for (const std::string_view variable :
       {"NCCL_WIN_ENABLE", "NCCL_CUMEM_ENABLE"}) {
    const auto setting = FindSetting(variable);
    if (!setting || !IsZero(setting->value)) continue;
    return NotFound(variable, "=", setting->value,
                    setting->file.empty() ? "" : StrCat(", in ", setting->file),
                    ", turns NCCL's windows off; unset it on all ranks");
  }
  return Status();
}

// Returns kDesync on all ranks where the memory of two of them differs.
Status CompareSizes(Communicator* control,
                    std::span<const DeviceMemory* const> memory,
                    const Deadline& deadline) {
  const auto ranks = static_cast<size_t>(control->world_size());
  const uint64_t count = memory.size();
  std::vector<uint64_t> counts(ranks);
  SHARD_RETURN_IF_ERROR(control->AllGather(kMakeWindows, &count, sizeof(count),
                                           counts.data(), deadline));
  for (size_t r = 1; r < ranks; ++r) {
    if (counts[r] == counts[0]) continue;
    return Desync(static_cast<int>(r), kMakeWindows, ": rank 0 has ", counts[0],
                  " allocations, rank ", r, " has ", counts[r]);
  }
  std::vector<uint64_t> sizes;
  for (const DeviceMemory* const it : memory) sizes.push_back(it->size());
  std::vector<uint64_t> all(ranks * count);
  SHARD_RETURN_IF_ERROR(control->AllGather(kMakeWindows, sizes.data(),
                                           count * sizeof(sizes[0]), all.data(),
                                           deadline));
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] == all[i % count]) continue;
    return Desync(static_cast<int>(i / count), kMakeWindows, ": allocation ",
                  i % count, " of rank 0 has ", all[i % count],
                  " bytes, that of rank ", i / count, " has ", all[i]);
  }
  return Status();
}

// Makes the windows of one rank.
class Opener {
 public:
  Opener(Communicator* control, RankComms* comms, const Deadline& deadline)
      : control_(control),
        comms_(comms),
        deadline_(deadline),
        meeting_(deadline.Later(kGrace)) {}

  StatusOr<OpenedWindows> Open(std::span<const DeviceMemory* const> memory) {
    SHARD_ASSIGN_OR_RETURN(const State all, OpenAll(memory));
    OpenedWindows opened;
    if (all == State::kMade) return opened;
    SHARD_RETURN_IF_ERROR(Agree(mine_, &opened.why_not));
    if (all == State::kNone) {
      Status failed;
      SHARD_RETURN_IF_ERROR(Agree(Close(memory), &failed));
      if (failed.ok()) return opened;
      opened.why_not = failed;
    }
    // A rank that is late, or hangs, would be late for new communicators, too.
    if (opened.why_not.code() == StatusCode::kDeadlineExceeded) {
      return opened.why_not;
    }
    opened.has_aborted = true;
    const bool has_ended = comms_->Abort();
    SHARD_RETURN_IF_ERROR(AgreeOnStatus(
        control_, kMakeWindows,
        has_ended ? Status()
                  : Internal("NCCL does not end its communicators after: ",
                             opened.why_not.message()),
        Deadline::After(2 * RankComms::kAbortSeconds)));
    return opened;
  }

 private:
  StatusOr<State> OpenAll(std::span<const DeviceMemory* const> memory) {
    for (const DeviceMemory* const it : memory) {
      for (size_t comm = 0; comm < comms_->num_comms(); ++comm) {
        SHARD_ASSIGN_OR_RETURN(const State all, OpenOne(comm, it->data()));
        if (all != State::kMade) return all;
      }
    }
    return State::kMade;
  }

  // Makes one window. Returns how it has ended, the same on all ranks, whose
  // meetings come in lockstep: all ranks are in each of them.
  StatusOr<State> OpenOne(size_t comm, std::byte* data) {
    Status ended;
    State all = State::kPending;
    auto next = Clock::now() + kInterval;
    const auto check = [&]() -> Status {
      if (deadline_.Expired()) {
        return DeadlineExceeded(
            "NCCL has not made its windows within ", deadline_.seconds(),
            " s; give a longer timeout, or run with NCCL_DEBUG=INFO");
      }
      if (Clock::now() < next) return Status();
      ended = Meet(State::kPending, &all);
      SHARD_RETURN_IF_ERROR(ended);
      next = Clock::now() + kInterval;
      if (all == State::kPending) return Status();
      return Cancelled("another rank has no window");
    };
    const auto made = comms_->OpenWindow(comm, data, check);
    SHARD_RETURN_IF_ERROR(ended);
    if (all != State::kPending) return all;
    State mine = State::kMade;
    if (!made.ok()) {
      mine = State::kFailed;
      mine_ = made.status();
    } else if (*made == nullptr) {
      mine = State::kNone;
      mine_ = NotFound(
          "NCCL makes no windows of this memory, as where a GPU does not reach "
          "that of another rank; look at NCCL_WIN_ENABLE, NCCL_CUMEM_ENABLE "
          "and NCCL_LSA_TEAM_SIZE, and on several hosts NCCL_GIN_ENABLE, and "
          "run with NCCL_DEBUG=INFO");
    }
    while (all == State::kPending) {
      SHARD_RETURN_IF_ERROR(Meet(mine, &all));
    }
    return all;
  }

  // Tells the other ranks how this one gets on. Sets `all` to how the window
  // has ended, or to kPending.
  Status Meet(State mine, State* all) {
    std::vector<State> states(static_cast<size_t>(control_->world_size()));
    SHARD_RETURN_IF_ERROR(control_->AllGather(kMakeWindows, &mine, sizeof(mine),
                                              states.data(), meeting_));
    const auto has = [&](State state) {
      return std::find(states.begin(), states.end(), state) != states.end();
    };
    const bool pending = has(State::kPending);
    // NCCL would wait for the ranks that have no windows.
    *all = has(State::kFailed) || (pending && has(State::kNone))
               ? State::kFailed
           : pending           ? State::kPending
           : has(State::kNone) ? State::kNone
                               : State::kMade;
    return Status();
  }

  // Sets `agreed` to the first error of all ranks. Errors: those of the family.
  Status Agree(Status mine, Status* agreed) {
    // The agreement names the rank, too.
    const std::string rank = StrCat("rank ", control_->rank(), ": ");
    if (mine.message().starts_with(rank)) {
      mine = Status(mine.code(), mine.message().substr(rank.size()));
    }
    *agreed = AgreeOnStatus(control_, kMakeWindows, mine, meeting_);
    return control_->Barrier(kMakeWindows, meeting_);
  }

  Status Close(std::span<const DeviceMemory* const> memory) {
    const auto check = [this]() -> Status {
      if (!deadline_.Expired()) return Status();
      return DeadlineExceeded("NCCL has not ended its windows within ",
                              deadline_.seconds(), " s");
    };
    for (const DeviceMemory* const it : memory) {
      SHARD_RETURN_IF_ERROR(comms_->CloseWindows(it->data(), check));
    }
    return Status();
  }

  using Clock = std::chrono::steady_clock;

  Communicator* const control_;
  RankComms* const comms_;
  const Deadline deadline_;
  const Deadline meeting_;
  Status mine_;  // Why this rank has no window.
};

}  // namespace

StatusOr<OpenedWindows> OpenWindows(Communicator* control, RankComms* comms,
                                    const Registration& registration,
                                    std::span<const DeviceMemory* const> memory,
                                    const Deadline& deadline) {
  const Status reason =
      AgreeOnStatus(control, kMakeWindows,
                    FindReason(comms->library(), registration), deadline);
  if (reason.code() == StatusCode::kNotFound) return OpenedWindows{reason};
  SHARD_RETURN_IF_ERROR(reason);
  SHARD_RETURN_IF_ERROR(CompareSizes(control, memory, deadline));
  std::vector<const DeviceMemory*> others;
  std::copy_if(memory.begin(), memory.end(), std::back_inserter(others),
               [&](const DeviceMemory* it) {
                 return it->size() > 0 &&
                        comms->FindWindow(it->data()) == nullptr;
               });
  return Opener(control, comms, deadline).Open(others);
}

}  // namespace shard::nccl
