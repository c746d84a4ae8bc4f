// SPDX-License-Identifier: Apache-2.0
//
// ForwardingEnv: a FileEnv that passes every call on. Test environments
// override the calls that they change.

#ifndef SHARD_TESTS_CORE_BASE_FORWARDING_ENV_H_
#define SHARD_TESTS_CORE_BASE_FORWARDING_ENV_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/file_env.h"

namespace shard::testing {

class ForwardingEnv : public FileEnv {
 public:
  explicit ForwardingEnv(FileEnv* base) : base_(base) {}

  int Open(int dir, const char* path, int flags, mode_t mode) override {
    return base_->Open(dir, path, flags, mode);
  }
  int Close(int fd) override { return base_->Close(fd); }
  ssize_t Read(int fd, void* data, size_t bytes, uint64_t offset) override {
    return base_->Read(fd, data, bytes, offset);
  }
  ssize_t Write(int fd, const void* data, size_t bytes,
                uint64_t offset) override {
    return base_->Write(fd, data, bytes, offset);
  }
  int Sync(int fd) override { return base_->Sync(fd); }
  int Truncate(int fd, uint64_t bytes) override {
    return base_->Truncate(fd, bytes);
  }
  int Allocate(int fd, uint64_t bytes) override {
    return base_->Allocate(fd, bytes);
  }
  int Stat(int fd, struct stat* result) override {
    return base_->Stat(fd, result);
  }
  int StatAt(int dir, const char* path, struct stat* result) override {
    return base_->StatAt(dir, path, result);
  }
  int MakeDir(int dir, const char* path, mode_t mode) override {
    return base_->MakeDir(dir, path, mode);
  }
  int Rename(int from_dir, const char* from, int to_dir, const char* to,
             unsigned flags) override {
    return base_->Rename(from_dir, from, to_dir, to, flags);
  }
  int Unlink(int dir, const char* path, int flags) override {
    return base_->Unlink(dir, path, flags);
  }
  int List(int fd, std::vector<std::string>* names) override {
    return base_->List(fd, names);
  }
  int Lock(int fd) override { return base_->Lock(fd); }

 protected:
  FileEnv* base() const { return base_; }

 private:
  FileEnv* const base_;
};

// NoSyncEnv: does not sync, because syncs are most of the time that small files
// take. For tests without power cuts.
class NoSyncEnv final : public ForwardingEnv {
 public:
  NoSyncEnv() : ForwardingEnv(FileEnv::Posix()) {}
  int Sync(int) override { return 0; }

  // Returns the only env of this kind: never null, never destroyed.
  static NoSyncEnv* Get() {
    static NoSyncEnv* const env = new NoSyncEnv;
    return env;
  }
};

}  // namespace shard::testing

#endif  // SHARD_TESTS_CORE_BASE_FORWARDING_ENV_H_
