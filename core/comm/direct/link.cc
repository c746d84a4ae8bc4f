// SPDX-License-Identifier: Apache-2.0

#include "core/comm/direct/link.h"

#include "core/base/strings.h"

namespace shard::direct {

double Link::Seconds(size_t sent_bytes) const {
  return delay +
         (bandwidth > 0 ? static_cast<double>(sent_bytes) / bandwidth : 0);
}

std::string Link::Describe() const {
  if (direct) return "";
  std::string out = ", without shared memory";
  if (delay > 0) StrAppend(&out, ", delay ", delay, " s");
  if (bandwidth > 0) StrAppend(&out, ", bandwidth ", bandwidth, " bytes/s");
  return out;
}

}  // namespace shard::direct
