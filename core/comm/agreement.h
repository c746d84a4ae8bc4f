// SPDX-License-Identifier: Apache-2.0
//
// Agreement: ranks compare what must be the same on all of them. While it is,
// they exchange a hash. When it is not, they look for the first fact of their
// descriptions that differs, and all return the same kDesync with it.
//
// The search sends hashes of stretches of facts, not the facts: a few rounds of
// 2 KiB per rank and round, whatever the number of facts, and then the one fact
// that differs. Descriptions are streamed once per round.

#ifndef SHARD_CORE_COMM_AGREEMENT_H_
#define SHARD_CORE_COMM_AGREEMENT_H_

#include <cstdint>
#include <string_view>

#include "core/base/deadline.h"
#include "core/base/facts.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"

namespace shard {

// COLLECTIVE. OK when `fingerprint` is the same on all ranks; else kDesync on
// all ranks: "the ranks differ in <what>: <fact>: rank 0 has <value>, rank 2
// has <value>", where rank 0 is one of the most ranks that have the same, and
// rank 2, which is also the Status's, the lowest that differs from it. Facts
// are described only then. Fingerprints that differ without a fact that does
// are shown themselves; so they are when the ranks cannot compare facts,
// because one of them dies meanwhile or `deadline` passes.
//
// A rank without a `describe` takes part, and may have anything.
Status CheckAgreement(Communicator* comm, std::string_view what,
                      uint64_t fingerprint, const DescribeFacts& describe,
                      const Deadline& deadline);

// COLLECTIVE. The same with a hash of the facts as the fingerprint.
Status CheckAgreement(Communicator* comm, std::string_view what,
                      const DescribeFacts& describe, const Deadline& deadline);

}  // namespace shard

#endif  // SHARD_CORE_COMM_AGREEMENT_H_
