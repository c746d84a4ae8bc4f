// SPDX-License-Identifier: Apache-2.0
//
// The part of NCCL that libshard uses, declared here so that it is built where
// no CUDA toolkit is. Types, values and names of symbols are those of nccl.h,
// the same from 2.18 on (nccl_api_test compares them where there is one); the
// library is loaded at run time (library.h).

#ifndef SHARD_CORE_COLLECTIVES_NCCL_NCCL_API_H_
#define SHARD_CORE_COLLECTIVES_NCCL_NCCL_API_H_

#include <climits>
#include <cstddef>

namespace shard::nccl {

enum class NcclResult : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum class NcclType : int {
  kInt8 = 0,
  kFloat16 = 6,
  kFloat32 = 7,
  kBfloat16 = 9,
};

enum class NcclOp : int { kSum = 0 };

using NcclComm = struct ncclComm*;
using NcclWindow = struct ncclWindow*;

// A flag of a window that all ranks register together.
inline constexpr int kNcclSymmetric = 1;

struct NcclId {
  char bytes[128];
};

// ncclConfig_t as 2.18 has it: later versions take the rest as not given.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = 0;
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

// Each X(name, symbol, parameters); all return an NcclResult. A stream is a
// CUstream.
#define SHARD_NCCL(X)                                                          \
  X(GetUniqueId, ncclGetUniqueId, (NcclId * id))                               \
  X(CommInitRankConfig, ncclCommInitRankConfig,                                \
    (NcclComm * comm, int ranks, NcclId id, int rank, NcclConfig* config))     \
  X(CommSplit, ncclCommSplit,                                                  \
    (NcclComm comm, int color, int key, NcclComm* made, NcclConfig* config))   \
  X(CommFinalize, ncclCommFinalize, (NcclComm comm))                           \
  X(CommDestroy, ncclCommDestroy, (NcclComm comm))                             \
  X(CommAbort, ncclCommAbort, (NcclComm comm))                                 \
  X(CommGetAsyncError, ncclCommGetAsyncError,                                  \
    (NcclComm comm, NcclResult * error))                                       \
  X(ReduceScatter, ncclReduceScatter,                                          \
    (const void* send, void* recv, size_t count, NcclType type, NcclOp op,     \
     NcclComm comm, void* stream))                                             \
  X(AllGather, ncclAllGather,                                                  \
    (const void* send, void* recv, size_t count, NcclType type, NcclComm comm, \
     void* stream))                                                            \
  X(Broadcast, ncclBroadcast,                                                  \
    (const void* send, void* recv, size_t count, NcclType type, int root,      \
     NcclComm comm, void* stream))                                             \
  X(Send, ncclSend,                                                            \
    (const void* send, size_t count, NcclType type, int peer, NcclComm comm,   \
     void* stream))                                                            \
  X(Recv, ncclRecv,                                                            \
    (void* recv, size_t count, NcclType type, int peer, NcclComm comm,         \
     void* stream))                                                            \
  X(GroupStart, ncclGroupStart, ())                                            \
  X(GroupEnd, ncclGroupEnd, ())

// Functions of 2.19 and later. Memory of ncclMemAlloc is of the device whose
// context is current, a whole number of pieces of the device's memory, and not
// cleared. ncclCommRegister is local, and gives no handle where NCCL registers
// nothing.
#define SHARD_NCCL_REGISTRATION(X)                              \
  X(MemAlloc, ncclMemAlloc, (void** memory, size_t bytes))      \
  X(MemFree, ncclMemFree, (void* memory))                       \
  X(CommRegister, ncclCommRegister,                             \
    (NcclComm comm, void* memory, size_t bytes, void** handle)) \
  X(CommDeregister, ncclCommDeregister, (NcclComm comm, void* handle))

// Windows, of 2.27 and later, and the addresses of the ranks' memory in them,
// of 2.29.2 and later. All ranks of a communicator register a window together,
// and each deregisters it alone. NCCL writes the handle while the call is in
// progress; it is null where NCCL has no windows, which a rank may be told at
// once. An address is null where this rank's kernels do not reach the peer.
#define SHARD_NCCL_WINDOWS(X)                                       \
  X(CommWindowRegister, ncclCommWindowRegister,                     \
    (NcclComm comm, void* memory, size_t bytes, NcclWindow* window, \
     int flags))                                                    \
  X(CommWindowDeregister, ncclCommWindowDeregister,                 \
    (NcclComm comm, NcclWindow window))
#define SHARD_NCCL_PEERS(X)                         \
  X(GetPeerDevicePointer, ncclGetPeerDevicePointer, \
    (NcclWindow window, size_t offset, int peer, void** address))

struct NcclApi {
#define SHARD_NCCL_FUNCTION(name, symbol, parameters) \
  NcclResult(*name) parameters = nullptr;
  SHARD_NCCL(SHARD_NCCL_FUNCTION)
  // Null: NCCL lacks it.
  SHARD_NCCL_REGISTRATION(SHARD_NCCL_FUNCTION)
  SHARD_NCCL_WINDOWS(SHARD_NCCL_FUNCTION)
  SHARD_NCCL_PEERS(SHARD_NCCL_FUNCTION)
#undef SHARD_NCCL_FUNCTION
  const char* (*GetErrorString)(NcclResult result) = nullptr;
  const char* (*GetLastError)(NcclComm comm) = nullptr;

  bool HasRegistration() const {
    return MemAlloc != nullptr && MemFree != nullptr &&
           CommRegister != nullptr && CommDeregister != nullptr;
  }
  bool HasWindows() const {
    return CommWindowRegister != nullptr && CommWindowDeregister != nullptr &&
           GetPeerDevicePointer != nullptr;
  }
};

}  // namespace shard::nccl

#endif  // SHARD_CORE_COLLECTIVES_NCCL_NCCL_API_H_
