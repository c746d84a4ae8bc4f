// SPDX-License-Identifier: Apache-2.0
//
// Windows: memory of all ranks that the kernels of each of them reach, over
// NVLink or PCIe. NCCL's collectives look their buffers up among the windows of
// a communicator, and may then be kernels that read and write the memory of
// other ranks without copies in between ("symmetric").
//
// NCCL adds the offset of a rank's buffer to the windows of the others, and
// compares nothing: memory may be in windows only where all ranks give a
// collective the same offsets in it.
//
// NCCL makes a window with all ranks of a communicator, and tells an error to
// the rank that has it alone: the others would wait. So the ranks ask each
// other how they get on while NCCL has not ended the call.

#ifndef SHARD_CORE_COLLECTIVES_NCCL_WINDOWS_H_
#define SHARD_CORE_COLLECTIVES_NCCL_WINDOWS_H_

#include <span>

#include "core/base/deadline.h"
#include "core/base/status.h"
#include "core/collectives/nccl/rank_comms.h"
#include "core/collectives/nccl/registration.h"
#include "core/comm/communicator.h"
#include "core/device/device.h"

namespace shard::nccl {

struct OpenedWindows {
  // Why no memory is in windows, on all ranks: "rank 1: ..."; OK: all is.
  Status why_not;
  // NCCL makes no call after an error: the communicators were aborted.
  bool has_aborted = false;
};

// Makes windows of allocations of Registration::Allocate with each
// communicator, for all ranks or for none. Those that have windows keep them.
// COLLECTIVE. Errors: kDesync where the memory of two ranks differs;
// kDeadlineExceeded, for NCCL too; those of the family. After one of these
// other than kDesync NCCL may wait for other ranks. An abort, and the ranks'
// agreement about it, may take 2 * RankComms::kAbortSeconds more than the
// deadline.
StatusOr<OpenedWindows> OpenWindows(Communicator* control, RankComms* comms,
                                    const Registration& registration,
                                    std::span<const DeviceMemory* const> memory,
                                    const Deadline& deadline);

}  // namespace shard::nccl

#endif  // SHARD_CORE_COLLECTIVES_NCCL_WINDOWS_H_
