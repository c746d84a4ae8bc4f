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
// folder. A host writes the file under a name of its own, and then links it to
// its place, where it is whole, or fails where another host's is. The master
// removes its file when the meeting has ended, so only a master that was killed
// leaves one; a host that was killed while it wrote leaves one of its own,
// which nobody reads.
//
// Somebody else who can write into the folder could send the hosts to a master
// of theirs. A job secret finds them out; without one the file must be this
// user's, or root's, and nobody else may write to it.
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
  // `has_secret`: whether the hosts of the job know each other by a secret.
  FolderPoint(const std::string& folder, std::string_view job, uint32_t restart,
              bool has_secret);
  // Removes the file that Claim made.
  ~FolderPoint();
  FolderPoint(const FolderPoint&) = delete;
  FolderPoint& operator=(const FolderPoint&) = delete;

  // Returns the address of the master. kNotFound: nobody has claimed the file;
  // kFailedPrecondition: it is no file of a meeting; kPermissionDenied: it may
  // be of somebody else; other errors are those of the folder.
  StatusOr<SocketAddress> Read();

  // Makes the host `name`, which listens at `address`, the master.
  // kAlreadyExists: another one is. kFailedPrecondition: there is no folder.
  Status Claim(const SocketAddress& address, std::string_view name);

  // Returns the error for a file whose master does not answer.
  Status Stale(std::string_view why) const;

 private:
  const std::string path_;
  const bool has_secret_;
  std::string master_;   // The name of the host, as Read found it.
  std::string claimed_;  // The text of the file; "": it is another host's.
};

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_HELPER_FOLDER_POINT_H_
