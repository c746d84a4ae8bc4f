// SPDX-License-Identifier: Apache-2.0
//
// Secret: the key by which the hosts of a job know each other. A user gives all
// hosts the same text, in SHARD_TOKEN or in a file, and the key is its hash.
// The text proves itself on every connection (handshake.h) and is never sent.
// Whoever records a handshake can try texts against it, so that a text should
// be random: `head -c 32 /dev/urandom | base64`.

#ifndef SHARD_CORE_COMM_NETWORK_HELPER_SECRET_H_
#define SHARD_CORE_COMM_NETWORK_HELPER_SECRET_H_

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace shard::network {

// The longest text of a secret.
inline constexpr size_t kMaxSecretBytes = 4096;

class Secret {
 public:
  static constexpr size_t kKeyBytes = 32;

  // Makes the key of jobs without a secret, which everybody knows.
  Secret() = default;
  // Makes the key of a text. Newlines at the end do not count, so that a file
  // and a variable hold the same secret. Fails for an empty text and for one
  // longer than kMaxSecretBytes.
  static StatusOr<Secret> FromText(std::string_view text);

  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  ~Secret();  // Wipes the key.

  bool given() const { return given_; }
  const unsigned char* key() const { return key_.data(); }

 private:
  bool given_ = false;
  std::array<unsigned char, kKeyBytes> key_ = {};
};

// Reads the secret of the job: `token`, the value of SHARD_TOKEN (null where
// the variable is not set), or the file at `path` ("" for none). Returns the
// Secret of jobs without one where neither is given. Fails where both are, and
// for a file that other users may read or write, that is empty, too long, or no
// regular file.
StatusOr<Secret> ReadSecret(const char* token, const std::string& path);

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_HELPER_SECRET_H_
