// SPDX-License-Identifier: Apache-2.0
//
// The part of NCCL's C interface that the fake has, declared here so that it is
// built where no CUDA toolkit is. Types, values and symbols are those of nccl.h
// 2.28.9; abi_test compares them where there is one. entry_points.h declares
// the functions.

#ifndef SHARD_TESTS_FAKE_NCCL_ABI_H_
#define SHARD_TESTS_FAKE_NCCL_ABI_H_

#include <climits>
#include <cstddef>

#include "core/device/cuda/driver_api.h"

namespace shard::testing::fake_nccl {

struct Comm;    // ncclComm_t is a pointer to it,
struct Window;  // and ncclWindow_t to this.

enum class Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum class RedOp : int { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4 };

enum class DataType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
  kFloat8e4m3 = 10,
  kFloat8e5m2 = 11,
};
inline constexpr int kNumTypes = 12;

struct UniqueId {
  char internal[128];
};

inline constexpr int kUndefined = INT_MIN;
inline constexpr int kNoColor = -1;
inline constexpr unsigned kConfigMagic = 0xcafebeef;
inline constexpr size_t kWindowAlignment = 4096;
inline constexpr int kShrinkAbort = 1;
inline constexpr int kWinCollSymmetric = 1;

// ncclConfig_t of 2.28, as NCCL_CONFIG_INITIALIZER has it.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = kConfigMagic;
  unsigned version = 22809;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
  int traffic_class = kUndefined;
  const char* comm_name = nullptr;
  int collnet_enable = kUndefined;
  int cta_policy = kUndefined;
  int shrink_share = kUndefined;
  int nvls_ctas = kUndefined;
  int channels_per_net_peer = kUndefined;
  int nvlink_centric_sched = kUndefined;
};

// Each X(symbol, parameters); all return a Result.
#define SHARD_FAKE_NCCL(X)                                                     \
  X(ncclGetVersion, (int* version))                                            \
  X(ncclGetUniqueId, (UniqueId * id))                                          \
  X(ncclCommInitRank, (Comm * *comm, int nranks, UniqueId id, int rank))       \
  X(ncclCommInitRankConfig,                                                    \
    (Comm * *comm, int nranks, UniqueId id, int rank, Config* config))         \
  X(ncclCommSplit,                                                             \
    (Comm * comm, int color, int key, Comm** made, Config* config))            \
  X(ncclCommFinalize, (Comm * comm))                                           \
  X(ncclCommDestroy, (Comm * comm))                                            \
  X(ncclCommAbort, (Comm * comm))                                              \
  X(ncclCommGetAsyncError, (Comm * comm, Result * error))                      \
  X(ncclCommCount, (const Comm* comm, int* count))                             \
  X(ncclCommCuDevice, (const Comm* comm, int* device))                         \
  X(ncclCommUserRank, (const Comm* comm, int* rank))                           \
  X(ncclReduceScatter,                                                         \
    (const void* send, void* recv, size_t count, DataType type, RedOp op,      \
     Comm* comm, cuda::CuStream stream))                                       \
  X(ncclAllReduce, (const void* send, void* recv, size_t count, DataType type, \
                    RedOp op, Comm* comm, cuda::CuStream stream))              \
  X(ncclAllGather, (const void* send, void* recv, size_t count, DataType type, \
                    Comm* comm, cuda::CuStream stream))                        \
  X(ncclBroadcast, (const void* send, void* recv, size_t count, DataType type, \
                    int root, Comm* comm, cuda::CuStream stream))              \
  X(ncclSend, (const void* send, size_t count, DataType type, int peer,        \
               Comm* comm, cuda::CuStream stream))                             \
  X(ncclRecv, (void* recv, size_t count, DataType type, int peer, Comm* comm,  \
               cuda::CuStream stream))                                         \
  X(ncclGroupStart, ())                                                        \
  X(ncclGroupEnd, ())

// The entry points that some versions lack: X(symbol, since, parameters).
#define SHARD_FAKE_NCCL_LATER(X)                                         \
  X(ncclMemAlloc, 21900, (void** memory, size_t bytes))                  \
  X(ncclMemFree, 21900, (void* memory))                                  \
  X(ncclCommRegister, 21900,                                             \
    (const Comm* comm, void* memory, size_t bytes, void** handle))       \
  X(ncclCommDeregister, 21900, (const Comm* comm, void* handle))         \
  X(ncclCommWindowRegister, 22700,                                       \
    (Comm * comm, void* memory, size_t bytes, Window** made, int flags)) \
  X(ncclCommWindowDeregister, 22700, (Comm * comm, Window * window))     \
  X(ncclCommShrink, 22700,                                               \
    (Comm * comm, int* excluded, int num_excluded, Comm** made,          \
     Config* config, int flags))                                         \
  X(ncclCommRevoke, 22800, (Comm * comm, int flags))

// The same, of nccl_device.h.
#define SHARD_FAKE_NCCL_DEVICE(X)    \
  X(ncclGetPeerDevicePointer, 22902, \
    (Window * window, size_t offset, int peer, void** made))

}  // namespace shard::testing::fake_nccl

#endif  // SHARD_TESTS_FAKE_NCCL_ABI_H_
