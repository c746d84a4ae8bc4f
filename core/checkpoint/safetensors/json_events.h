// SPDX-License-Identifier: Apache-2.0
//
// JSON from files that may be hostile: read as a sequence of events, never as a
// tree, so that a document takes only the memory that its handler allocates.
//
// Memory: a few MiB, whatever the text, because nothing in it (a string, a
// number, a run of white space) may be longer than kMaxJsonToken. Time is in
// proportion to the text. The handler limits the depth of nesting.

#ifndef SHARD_CORE_CHECKPOINT_SAFETENSORS_JSON_EVENTS_H_
#define SHARD_CORE_CHECKPOINT_SAFETENSORS_JSON_EVENTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace shard {

inline constexpr size_t kMaxJsonToken = size_t{1} << 20;

// Receives the events of a document. An error of a handler ends the reading.
// Strings are valid UTF-8, and views for the duration of the call. Numbers that
// are not whole, not positive or beyond 64 bits are Other, as are null, true
// and false.
class JsonHandler {
 public:
  virtual ~JsonHandler() = default;
  virtual Status BeginObject() = 0;
  virtual Status EndObject() = 0;
  virtual Status BeginArray() = 0;
  virtual Status EndArray() = 0;
  virtual Status Key(std::string_view key) = 0;
  virtual Status String(std::string_view value) = 0;
  virtual Status Unsigned(uint64_t value) = 0;
  // `what` is for messages.
  virtual Status Other(std::string_view what) = 0;
};

// Reads a document. Errors: the handler's; kCorrupt, with the place, for text
// that is not JSON.
Status ReadJson(std::string_view text, JsonHandler* handler);

// Returns text of such a file for a message: in quotes, at most 100 bytes of
// it, without control characters.
std::string QuoteForMessage(std::string_view text);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_SAFETENSORS_JSON_EVENTS_H_
