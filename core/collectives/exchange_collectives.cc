// SPDX-License-Identifier: Apache-2.0

#include "core/collectives/exchange_collectives.h"

#include <algorithm>

namespace shard {

Status ExchangeCollectives::CheckOpened(std::string_view tag,
                                        const RankSet& set) const {
  if (std::find(sets_.begin(), sets_.end(), set) != sets_.end()) {
    return Status();
  }
  return InvalidArgument("'", tag, "' over ", set.count, " ranks from ",
                         set.first, " in steps of ", set.stride,
                         ", which OpenCollectives was not given; open every "
                         "set that a collective uses");
}

}  // namespace shard
