// SPDX-License-Identifier: Apache-2.0

#include "core/base/facts.h"

#include <cstddef>

namespace shard {

void FactSink::AddSpec(std::string_view subject, std::string_view name,
                       std::string_view text) {
  const size_t question = text.find('?');
  Add(subject, name, text.substr(0, question));
  if (question == std::string_view::npos) return;
  for (const std::string_view pair : Split(text.substr(question + 1), '&')) {
    const size_t equals = pair.find('=');
    Add(subject, pair.substr(0, equals),
        equals == std::string_view::npos ? "" : pair.substr(equals + 1));
  }
}

}  // namespace shard
