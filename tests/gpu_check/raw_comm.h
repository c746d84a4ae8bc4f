// SPDX-License-Identifier: Apache-2.0
//
// RawComm: a communicator of one rank by NCCL alone, for calls that RankComms
// does not make; and errors as exceptions, as the part nccl has them.

#ifndef SHARD_TESTS_GPU_CHECK_RAW_COMM_H_
#define SHARD_TESTS_GPU_CHECK_RAW_COMM_H_

#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/base/status.h"
#include "core/base/strings.h"
#include "core/collectives/nccl/library.h"
#include "tests/gpu_check/report.h"
#include "tests/gpu_check/timing.h"

namespace shard::gpu_check {

// Seconds for a call, of which the first starts NCCL.
inline constexpr double kSeconds = 20;

inline void Require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

template <typename T>
T Take(StatusOr<T> result) {
  Require(result.status());
  return *std::move(result);
}

// Runs a check that throws what is wrong.
inline void Try(const std::string& name, const std::function<void()>& check,
                Report* report) {
  std::string why;
  try {
    check();
  } catch (const std::exception& error) {
    why = error.what();
  }
  report->Check(name, why.empty(), why);
}

// A communicator by NCCL alone, for what RankComms has no call for.
class RawComm {
 public:
  explicit RawComm(const nccl::NcclLibrary& library) : library_(library) {
    nccl::NcclId id = {};
    nccl::NcclConfig config;
    Require(
        library.ToStatus(api().GetUniqueId(&id), "ncclGetUniqueId", nullptr));
    Await("ncclCommInitRankConfig",
          api().CommInitRankConfig(&comm_, 1, id, 0, &config), &comm_);
  }
  ~RawComm() {
    if (comm_ != nullptr) api().CommAbort(comm_);
  }
  RawComm(const RawComm&) = delete;
  RawComm& operator=(const RawComm&) = delete;

  nccl::NcclComm get() const { return comm_; }
  const nccl::NcclComm* address() const { return &comm_; }

  // Makes a communicator of the ranks of this one, and ends it.
  void Split() {
    nccl::NcclConfig config;
    nccl::NcclComm made = nullptr;
    const nccl::NcclResult result =
        api().CommSplit(comm_, 0, 0, &made, &config);
    Await("ncclCommSplit", result, &comm_);
    Await("ncclCommSplit", nccl::NcclResult::kInProgress, &made);
    Finalize(made);
  }
  void End() { Finalize(std::exchange(comm_, nullptr)); }

  void Await(const char* call, nccl::NcclResult result,
             const nccl::NcclComm* comm) const {
    const auto start = Clock::now();
    while (result == nccl::NcclResult::kInProgress) {
      if (SecondsSince(start) > kSeconds) {
        throw std::runtime_error(StrCat(call, " is in progress for ever"));
      }
      const nccl::NcclResult asked = api().CommGetAsyncError(*comm, &result);
      if (asked != nccl::NcclResult::kSuccess) result = asked;
    }
    Require(library_.ToStatus(result, call, *comm));
  }

 private:
  const nccl::NcclApi& api() const { return library_.api; }
  void Finalize(nccl::NcclComm comm) const {
    Await("ncclCommFinalize", api().CommFinalize(comm), &comm);
    Require(
        library_.ToStatus(api().CommDestroy(comm), "ncclCommDestroy", nullptr));
  }

  const nccl::NcclLibrary& library_;
  nccl::NcclComm comm_ = nullptr;
};

}  // namespace shard::gpu_check

#endif  // SHARD_TESTS_GPU_CHECK_RAW_COMM_H_
