// SPDX-License-Identifier: Apache-2.0
//
// NCCL, opened at run time: the copy that the process has, or the one that the
// loader finds.

#ifndef SHARD_CORE_COLLECTIVES_NCCL_LIBRARY_H_
#define SHARD_CORE_COLLECTIVES_NCCL_LIBRARY_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/collectives/nccl/nccl_api.h"
#include "core/device/cuda/library.h"

namespace shard::nccl {

// The oldest version that is used, as ncclGetVersion counts: communicators are
// split, and never block.
inline constexpr int kOldestVersion = 21800;

// The first version that registers memory.
inline constexpr int kRegistersFrom = 21900;

// The first version whose windows are used. NCCL's kernels for memory in
// windows do not wait for the work before them from 2.28 on, until 2.30.7. With
// two ranks the copies that take their place may hang before 2.31.2.
inline constexpr int kMakesWindowsFrom = 23102;

// Returns "2.28.9".
std::string VersionText(int version);

struct NcclLibrary {
  cuda::Library library;
  NcclApi api;
  int version = 0;  // 22809 is 2.28.9.

  // Return why memory is not registered, and why no windows are made, by this
  // library: "NCCL 2.18.5 does not ..."; "" where it has the functions. A build
  // of a version may lack some of that version.
  std::string WhyNoRegistration() const;
  std::string WhyNoWindows() const;

  // Returns functions of later versions, and whether this one has them.
  std::vector<std::pair<std::string_view, bool>> FindLaterFunctions() const;

  // Returns the status of a call's result: "ncclAllGather: unhandled cuda
  // error (1); ...". NCCL's last error is told, too: NCCL has one for all
  // communicators of the process, and takes `comm`, which may be null, for
  // nothing.
  Status ToStatus(NcclResult result, std::string_view call,
                  NcclComm comm) const;
};

// Opens the library, which is closed with the result unless it is kept. Errors:
// kBackendUnavailable, with what is missing and where it comes from.
StatusOr<NcclLibrary> OpenNccl();

}  // namespace shard::nccl

#endif  // SHARD_CORE_COLLECTIVES_NCCL_LIBRARY_H_
