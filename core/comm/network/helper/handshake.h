// SPDX-License-Identifier: Apache-2.0
//
// Handshake: how the two ends of a connection find out that they belong to the
// same job. It has no socket: Channel sends and receives its messages.
//
//   connects (member, higher host)          listens (master, lower host)
//   Head ------------------------------->
//        <------------------------------- Head
//   Proof ------------------------------>   checks it
//        <------------------------------- Proof, or a refusal
//
// A Head has a fresh random number of its sender, and a Proof is an HMAC, under
// the job's secret, of its sender's role and of both Heads. Recorded messages
// therefore prove nothing on another connection, nor in the other direction.
// The listening end proves itself last, so that a stranger who connects gets
// no proof to try secrets on.
//
// Each difference has a Refusal, which both ends find: from the two Heads, or
// from the Proof, whose sender is told. Restart count and version are compared
// after the Proofs, so that they are believed.
//
// Heads are plain structs, little-endian as all machines that libshard runs on.
// `magic` and `protocol` never change their place.

#ifndef SHARD_CORE_COMM_NETWORK_HELPER_HANDSHAKE_H_
#define SHARD_CORE_COMM_NETWORK_HELPER_HANDSHAKE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "core/base/status.h"
#include "core/comm/network/helper/secret.h"

namespace shard::network {

// The properties that both ends of a connection must share.
struct Identity {
  std::string job_id;  // Any text.
  uint32_t restart = 0;
  std::string library_version;  // At most 31 bytes are compared.
  Secret secret;
};

// The ends of the two kinds of connections.
enum class Role : uint32_t {
  kMaster = 1,      // Listens for the helpers of all hosts.
  kMember = 2,      // Connects to the master.
  kLowerHost = 3,   // Listens for hosts of a higher index.
  kHigherHost = 4,  // Connects to hosts of a lower index.
};
constexpr bool Listens(Role role) {
  return role == Role::kMaster || role == Role::kLowerHost;
}
constexpr Role PeerOf(Role role) {
  constexpr Role kPeers[] = {Role::kMember, Role::kMaster, Role::kHigherHost,
                             Role::kLowerHost};
  return kPeers[static_cast<uint32_t>(role) - 1];
}

// Why a peer was refused.
enum class Refusal : uint32_t {
  kNone = 0,
  kStranger = 1,  // It does not speak libshard's protocol.
  kProtocol = 2,  // It speaks another version of it.
  kJob = 3,
  kRole = 4,  // It is of the same job, and another connection was expected.
  kSecret = 5,
  kRestart = 6,
  kLibrary = 7,
};

class Handshake {
 public:
  static constexpr uint32_t kProtocol = 1;
  static constexpr size_t kProofBytes = 32;
  using Proof = std::array<unsigned char, kProofBytes>;

  struct Head {
    uint64_t magic;
    uint32_t protocol;
    Role role;
    uint32_t restart;
    uint32_t has_secret;
    uint32_t silence_millis;  // See peer_silence_millis.
    uint32_t unused;
    char library[32];
    unsigned char job[32];  // The hash of the job's id.
    unsigned char nonce[32];
  };

  // Makes this end's Head, with a new random number. `identity` outlives this.
  // `silence_millis` is the time for which this end bears silence.
  Handshake(const Identity* identity, Role role,
            uint32_t silence_millis = 5000);

  const Head& head() const { return mine_; }

  // Takes the peer's Head, once. Returns the difference that needs no proof.
  Refusal TakeHead(std::span<const std::byte> bytes);
  // Returns this end's Proof. REQUIRES: TakeHead returned kNone.
  Proof MakeProof() const;
  // Checks the peer's Proof, in constant time. REQUIRES: TakeHead returned
  // kNone.
  Refusal TakeProof(std::span<const std::byte> bytes) const;
  // Compares the peer's restart count and library version with this end's.
  Refusal Compare() const;

  // Returns the error of a refusal, which names both values.
  Status ErrorOf(Refusal refusal) const;
  // Returns the peer's restart count. REQUIRES: TakeHead returned kNone.
  uint32_t peer_restart() const { return theirs_.restart; }
  // Returns the time for which the peer bears silence of this end. REQUIRES: as
  // above.
  uint32_t peer_silence_millis() const { return theirs_.silence_millis; }

 private:
  Proof ProofOf(Role role) const;

  const Identity* const identity_;
  Head mine_ = {};
  Head theirs_ = {};
};

}  // namespace shard::network

#endif  // SHARD_CORE_COMM_NETWORK_HELPER_HANDSHAKE_H_
