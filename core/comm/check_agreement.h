// SPDX-License-Identifier: Apache-2.0
//
// CheckAgreement: compares values that must be the same on all ranks. Equal
// values cost the exchange of a hash. When hashes differ, the ranks search for
// the first fact of their descriptions that differs, and all return the same
// kDesync with that fact.
//
// The search sends hashes of ranges of facts, not the facts: a few rounds of 2
// KiB per rank, whatever the number of facts, and then the one fact that
// differs. Descriptions are streamed once per round.

#ifndef SHARD_CORE_COMM_CHECK_AGREEMENT_H_
#define SHARD_CORE_COMM_CHECK_AGREEMENT_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/facts.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"

namespace shard {

// Compares fingerprints. COLLECTIVE. Returns OK when `fingerprint` is the same
// on all ranks; else kDesync on all ranks: "the ranks differ in <what>: <fact>:
// rank 0 has <value>, rank 2 has <value>", where rank 0 is one of the largest
// set of ranks that agree, and rank 2, which is also the Status's rank, the
// lowest one that differs from it. Facts are described only when fingerprints
// differ. The message has the fingerprints themselves where all facts are
// equal, or where the ranks cannot compare facts, because one of them dies
// meanwhile or `deadline` passes.
//
// A rank whose `describe` is empty takes part, and is not compared.
Status CheckAgreement(Communicator* comm, std::string_view what,
                      uint64_t fingerprint, const DescribeFacts& describe,
                      const Deadline& deadline);

// Compares the facts by their hash as the fingerprint. COLLECTIVE.
Status CheckAgreement(Communicator* comm, std::string_view what,
                      const DescribeFacts& describe, const Deadline& deadline);

// Returns the hash of all facts; 0 for an empty `describe`.
uint64_t HashFacts(const DescribeFacts& describe);

// A rank's fingerprint, and whether it is compared.
struct FingerprintVote {
  uint64_t fingerprint;
  bool counts;
};

// Compares fingerprints that the ranks have exchanged already, `votes` by rank,
// for callers that send theirs together with other values. Equal fingerprints
// cost nothing. Otherwise COLLECTIVE, and the result is that of CheckAgreement.
// REQUIRES: the same votes on all ranks.
Status CompareFingerprints(Communicator* comm, std::string_view what,
                           const std::vector<FingerprintVote>& votes,
                           const DescribeFacts& describe,
                           const Deadline& deadline);

}  // namespace shard

#endif  // SHARD_CORE_COMM_CHECK_AGREEMENT_H_
