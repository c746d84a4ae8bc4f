// SPDX-License-Identifier: Apache-2.0

#include <cmath>
#include <utility>

#include "api/collective.h"
#include "api/error.h"
#include "api/handles.h"
#include "api/options.h"
#include "api/text.h"
#include "core/comm/communicator.h"
#include "core/device/check.h"

namespace {

using shard::CommOptions;
using shard::Deadline;
using shard::InvalidArgument;
using shard::Logger;
using shard::LogLevel;
using shard::Status;
using shard::api::CommOf;
using shard::api::Guard;
using shard::api::GuardCollective;

// The environment of shm and env may stand for rank and world size, so both are
// optional, but only together.
shard::StatusOr<CommOptions> ToCommOptions(const shard_comm_options* given) {
  shard_comm_options read;
  SHARD_RETURN_IF_ERROR(
      shard::api::ReadOptions("shard_comm_options", given, &read));
  SHARD_RETURN_IF_ERROR(
      shard::api::CheckReserved("shard_comm_options", read.reserved));
  if (read.world_size < 0) {
    return InvalidArgument("world_size ", read.world_size,
                           " is negative; it counts the ranks");
  }
  if (std::isnan(read.timeout)) {
    return InvalidArgument("timeout ", read.timeout,
                           " is not a number of seconds");
  }
  if (read.log_level < 0 || read.log_level > SHARD_LOG_DEBUG) {
    return InvalidArgument("log_level ", read.log_level,
                           " is unknown; use 1 (error) to 4 (debug)");
  }
  CommOptions options;
  if (read.world_size > 0) {
    if (read.rank < 0 || read.rank >= read.world_size) {
      return InvalidArgument("rank ", read.rank, " is not in [0, ",
                             read.world_size, "), the world size");
    }
    options.rank = read.rank;
    options.world_size = read.world_size;
  }
  if (read.timeout > 0) options.timeout = read.timeout;
  const int32_t level =
      read.log_level == 0 ? SHARD_LOG_WARNING : read.log_level;
  options.logger =
      Logger(read.log, static_cast<LogLevel>(level), read.log_user_data);
  if (read.trace != nullptr) options.observe.trace = read.trace;
  if (read.metrics != nullptr) options.observe.metrics = read.metrics;
  if (read.dump != nullptr) options.observe.dump = read.dump;
  return options;
}

Deadline DeadlineOf(const shard_comm* comm, double timeout) {
  return Deadline::After(timeout > 0 ? timeout : comm->comm->timeout());
}

Status CheckSum(const double* values, size_t count) {
  if (count > 0) SHARD_API_REQUIRE_HOSTS(values);
  // Every rank holds the values of all ranks at once.
  constexpr size_t kMaxCount = size_t{1} << 20;
  if (count > kMaxCount) {
    return InvalidArgument("count ", count, " is above ", kMaxCount,
                           "; sum is for losses and counts, not for tensors");
  }
  return Status();
}

Status CheckBroadcast(const shard::Communicator& comm, const void* data,
                      size_t bytes, int32_t root) {
  if (bytes > 0) SHARD_API_REQUIRE_HOSTS(data);
  if (root >= 0 && root < comm.world_size()) return Status();
  return InvalidArgument("root ", root, " is no rank; there are 0 to ",
                         comm.world_size() - 1);
}

shard::StatusOr<shard::CollectivesCheck> PrepareCheck(const char* device) {
  SHARD_API_REQUIRE(device);
  return shard::CollectivesCheck::Prepare(device);
}

}  // namespace

extern "C" {

shard_error* shard_comm_open(const char* url, const shard_comm_options* options,
                             shard_comm** comm) noexcept {
  if (comm != nullptr) *comm = nullptr;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(url);
    SHARD_API_REQUIRE(comm);
    SHARD_ASSIGN_OR_RETURN(const CommOptions read, ToCommOptions(options));
    SHARD_ASSIGN_OR_RETURN(auto opened, shard::OpenCommunicator(url, read));
    std::string description = opened->Describe();
    *comm = new shard_comm{std::move(opened), std::move(description)};
    return Status();
  });
}

int32_t shard_comm_rank(const shard_comm* comm) noexcept {
  return comm == nullptr ? -1 : comm->comm->rank();
}

int32_t shard_comm_world_size(const shard_comm* comm) noexcept {
  return comm == nullptr ? 0 : comm->comm->world_size();
}

int32_t shard_comm_local_rank(const shard_comm* comm) noexcept {
  return comm == nullptr ? -1 : comm->comm->local_rank();
}

int32_t shard_comm_local_world_size(const shard_comm* comm) noexcept {
  return comm == nullptr ? 0 : comm->comm->local_world_size();
}

shard_error* shard_comm_describe(const shard_comm* comm,
                                 const char** text) noexcept {
  if (text != nullptr) *text = nullptr;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(comm);
    SHARD_API_REQUIRE(text);
    *text = comm->description.c_str();
    return Status();
  });
}

shard_error* shard_comm_barrier(shard_comm* comm, double timeout) noexcept {
  return GuardCollective(CommOf(comm), [&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(comm);
    return comm->comm->Barrier("barrier", DeadlineOf(comm, timeout));
  });
}

shard_error* shard_comm_sum(shard_comm* comm, double* values, size_t count,
                            double timeout) noexcept {
  return GuardCollective(CommOf(comm), [&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(comm);
    const Deadline deadline = DeadlineOf(comm, timeout);
    // The other ranks are about to wait for this one, so an error of this rank
    // alone is told to all.
    SHARD_RETURN_IF_ERROR(shard::AgreeOnStatus(
        comm->comm.get(), "sum", CheckSum(values, count), deadline));
    return shard::AllReduceSum(comm->comm.get(), "sum of values", values, count,
                               deadline);
  });
}

shard_error* shard_comm_check_device(shard_comm* comm, const char* device,
                                     double timeout) noexcept {
  return GuardCollective(CommOf(comm), [&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(comm);
    const Deadline deadline = DeadlineOf(comm, timeout);
    auto check = PrepareCheck(device);
    SHARD_RETURN_IF_ERROR(shard::AgreeOnStatus(comm->comm.get(), "check device",
                                               check.status(), deadline));
    return check->Run(comm->comm, deadline);
  });
}

shard_error* shard_comm_broadcast(shard_comm* comm, void* data, size_t bytes,
                                  int32_t root, double timeout) noexcept {
  return GuardCollective(CommOf(comm), [&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(comm);
    const Deadline deadline = DeadlineOf(comm, timeout);
    SHARD_RETURN_IF_ERROR(shard::AgreeOnStatus(
        comm->comm.get(), "broadcast",
        CheckBroadcast(*comm->comm, data, bytes, root), deadline));
    return comm->comm->Broadcast("broadcast", root, data, bytes, deadline);
  });
}

shard_error* shard_comm_counter(const shard_comm* comm, const char* event,
                                shard_counter* counter) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(counter);
    SHARD_RETURN_IF_ERROR(shard::api::ClearResult("shard_counter", counter));
    SHARD_API_REQUIRE_HANDLE(comm);
    SHARD_API_REQUIRE(event);
    SHARD_ASSIGN_OR_RETURN(const shard::EventCounter found,
                           comm->comm->observer()->counters().Find(event));
    shard_counter result = SHARD_COUNTER_INIT;
    result.calls = found.calls;
    result.errors = found.errors;
    result.bytes = found.bytes;
    result.seconds = found.seconds;
    shard::api::WriteResult(result, counter);
    return Status();
  });
}

shard_error* shard_comm_metrics(const shard_comm* comm, char* buffer,
                                size_t capacity, size_t* length) noexcept {
  if (length != nullptr) *length = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(comm);
    return shard::api::CopyText(comm->comm->observer()->MetricsText(), buffer,
                                capacity, length);
  });
}

shard_error* shard_comm_dump(const shard_comm* comm, char* buffer,
                             size_t capacity, size_t* length) noexcept {
  if (length != nullptr) *length = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(comm);
    return shard::api::CopyText(comm->comm->observer()->DumpText(), buffer,
                                capacity, length);
  });
}

shard_error* shard_comm_abort(shard_comm* comm, const char* reason) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(comm);
    SHARD_API_REQUIRE(reason);
    comm->comm->Abort(Status(shard::StatusCode::kAborted, reason));
    return Status();
  });
}

shard_error* shard_comm_shutdown(shard_comm* comm, double timeout) noexcept {
  return GuardCollective(CommOf(comm), [&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(comm);
    return comm->comm->Shutdown(DeadlineOf(comm, timeout));
  });
}

void shard_comm_free(shard_comm* comm) noexcept { delete comm; }

}  // extern "C"
