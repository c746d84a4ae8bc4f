// SPDX-License-Identifier: Apache-2.0
//
// A fake of NCCL or of cuBLAS, by the name that the build gives the file. It
// can only tell its version, whose first number the build gives, too.

#define SHARD_FAKE_API extern "C" __attribute__((visibility("default")))

SHARD_FAKE_API int ncclGetVersion(int* version) {
  *version = SHARD_FAKE_MAJOR * 10000 + 2703;
  return 0;
}

SHARD_FAKE_API int cublasGetProperty(int property, int* value) {
  *value = property == 0 ? SHARD_FAKE_MAJOR : 8;
  return 0;
}
