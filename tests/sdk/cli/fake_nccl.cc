// SPDX-License-Identifier: Apache-2.0
//
// A fake of NCCL, by the name that the build gives the file. It can only tell
// its version.

extern "C" __attribute__((visibility("default"))) int ncclGetVersion(
    int* version) {
  *version = 22703;
  return 0;
}
