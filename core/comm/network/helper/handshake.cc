// SPDX-License-Identifier: Apache-2.0

#include "core/comm/network/helper/handshake.h"

#include <sodium.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "core/base/strings.h"

namespace shard::network {

namespace {

constexpr uint64_t kMagic = 0x3174656e6473686cu;  // "lhsdnet1"

static_assert(sizeof(Handshake::Head) == 128, "Heads have no padding");
static_assert(Handshake::kProofBytes == crypto_auth_hmacsha512256_BYTES);
static_assert(Secret::kKeyBytes == crypto_auth_hmacsha512256_KEYBYTES);

// Returns the version in a Head, which anybody may have sent.
std::string VersionIn(const Handshake::Head& head) {
  std::string version;
  for (const char c : head.library) {
    if (c == '\0') break;
    version.push_back(c > 0x20 && c < 0x7F ? c : '?');
  }
  return version;
}

Status ErrorOfSecrets(bool mine, bool theirs) {
  const std::string_view difference =
      !mine ? "has a job secret, and this host has none"
            : (theirs ? "has another job secret than this host"
                      : "has no job secret, and this host has one");
  return Status(StatusCode::kUnauthenticated,
                StrCat(difference,
                       "; give all hosts the same SHARD_TOKEN or secret_file"));
}

}  // namespace

Handshake::Handshake(const Identity* identity, Role role,
                     uint32_t silence_millis)
    : identity_(identity) {
  mine_.magic = kMagic;
  mine_.protocol = kProtocol;
  mine_.role = role;
  mine_.restart = identity->restart;
  mine_.has_secret = identity->secret.given();
  mine_.silence_millis = silence_millis;
  const std::string& version = identity->library_version;
  std::memcpy(mine_.library, version.data(),
              std::min(version.size(), sizeof(mine_.library) - 1));
  const std::string& job = identity->job_id;
  ::crypto_generichash(mine_.job, sizeof(mine_.job),
                       reinterpret_cast<const unsigned char*>(job.data()),
                       job.size(), nullptr, 0);
  ::randombytes_buf(mine_.nonce, sizeof(mine_.nonce));
}

Refusal Handshake::TakeHead(std::span<const std::byte> bytes) {
  constexpr size_t kFirstFields = sizeof(Head::magic) + sizeof(Head::protocol);
  if (bytes.size() < kFirstFields) return Refusal::kStranger;
  std::memcpy(&theirs_, bytes.data(), std::min(bytes.size(), sizeof(theirs_)));
  if (theirs_.magic != kMagic) return Refusal::kStranger;
  if (theirs_.protocol != kProtocol) return Refusal::kProtocol;
  if (bytes.size() != sizeof(theirs_)) return Refusal::kStranger;
  if (std::memcmp(theirs_.job, mine_.job, sizeof(mine_.job)) != 0) {
    return Refusal::kJob;
  }
  if (theirs_.role != PeerOf(mine_.role)) return Refusal::kRole;
  return Refusal::kNone;
}

Handshake::Proof Handshake::ProofOf(Role role) const {
  const bool mine_first = !Listens(mine_.role);
  const Head& connecting = mine_first ? mine_ : theirs_;
  const Head& listening = mine_first ? theirs_ : mine_;
  crypto_auth_hmacsha512256_state state;
  ::crypto_auth_hmacsha512256_init(&state, identity_->secret.key(),
                                   Secret::kKeyBytes);
  const auto add = [&state](const auto& value) {
    ::crypto_auth_hmacsha512256_update(
        &state, reinterpret_cast<const unsigned char*>(&value), sizeof(value));
  };
  add(role);
  add(connecting);
  add(listening);
  Proof proof;
  ::crypto_auth_hmacsha512256_final(&state, proof.data());
  ::sodium_memzero(&state, sizeof(state));
  return proof;
}

Handshake::Proof Handshake::MakeProof() const { return ProofOf(mine_.role); }

Refusal Handshake::TakeProof(std::span<const std::byte> bytes) const {
  if (bytes.size() != kProofBytes) return Refusal::kStranger;
  const Proof expected = ProofOf(theirs_.role);
  if (::sodium_memcmp(expected.data(), bytes.data(), kProofBytes) != 0) {
    return Refusal::kSecret;
  }
  return Refusal::kNone;
}

Refusal Handshake::Compare() const {
  if (theirs_.restart != mine_.restart) return Refusal::kRestart;
  if (std::memcmp(theirs_.library, mine_.library, sizeof(mine_.library)) != 0) {
    return Refusal::kLibrary;
  }
  return Refusal::kNone;
}

Status Handshake::ErrorOf(Refusal refusal) const {
  switch (refusal) {
    case Refusal::kNone:
      break;
    case Refusal::kStranger:
      return Unavailable("does not speak libshard's network protocol");
    case Refusal::kProtocol:
      return FailedPrecondition("speaks version ", theirs_.protocol,
                                " of the network protocol, this host version ",
                                kProtocol,
                                "; all hosts must load the same libshard");
    case Refusal::kJob:
      return Status(StatusCode::kAlreadyExists,
                    "belongs to another job; give each job a port of its own, "
                    "and all hosts of a job the same job id");
    case Refusal::kRole:
      return FailedPrecondition(
          "is of this job, but not the end of a connection that was expected "
          "there (",
          theirs_.role, " instead of ", PeerOf(mine_.role),
          "); give the rendezvous a port that nothing else uses");
    case Refusal::kSecret:
      return ErrorOfSecrets(mine_.has_secret != 0, theirs_.has_secret != 0);
    case Refusal::kRestart:
      return FailedPrecondition("is of restart ", theirs_.restart,
                                " of the job, this host of restart ",
                                mine_.restart,
                                "; hosts of an earlier restart must end");
    case Refusal::kLibrary:
      return FailedPrecondition("has libshard ", VersionIn(theirs_),
                                ", this host ", VersionIn(mine_),
                                "; all hosts must load the same libshard");
  }
  return Status();
}

}  // namespace shard::network
