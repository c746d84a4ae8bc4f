// SPDX-License-Identifier: Apache-2.0
//
// FolderPoint: a rendezvous point in a folder that all hosts of a job share.
// The file of a meeting has the address of its master:
//
//   libshard meeting 1
//   10.0.0.2:41234
//   node-1
//
// Its name has the job and its restart count, so that several jobs may use one
// folder. The file is created exclusively, and written at once; a file without
// its last newline is not written yet. The master removes its file when the
// meeting has ended, so only a master that was killed leaves one.
//
// The calls block as long as the file system does. Threads: one.

#ifndef SHARD_CORE_COMM_NETWORK_HELPER_FOLDER_POINT_H_
#define SHARD_CORE_COMM_NETWORK_HELPER_FOLDER_POINT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/status.h"
#include "core/comm/network/helper/address.h"

namespace shard::network {

class FolderPoint {
 public:
  FolderPoint(const std::string& folder, std::string_view job,
              uint32_t restart);
  // Removes the file that Claim made.
  ~FolderPoint();
  FolderPoint(const FolderPoint&) = delete;
  FolderPoint& operator=(const FolderPoint&) = delete;

  // Returns the address of the master. kNotFound: nobody has claimed the file;
  // kUnavailable: it is being written; kFailedPrecondition: it is no file of a
  // meeting; other errors are those of the folder.
  StatusOr<SocketAddress> Read();

  // Makes the host `name`, which listens at `address`, the master.
  // kAlreadyExists: another one is. kFailedPrecondition: there is no folder.
  Status Claim(const SocketAddress& address, std::string_view name);

  // Returns the error for a file whose master does not answer.
  Status Stale(std::string_view why) const;

 private:
  const std::string path_;
  std::string master_;   // The name of the host, as Read found it.
  std::string claimed_;  // The text of the file; "": it is another host's.
};

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_HELPER_FOLDER_POINT_H_
