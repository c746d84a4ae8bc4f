// SPDX-License-Identifier: Apache-2.0
//
// JsonWriter: writes a JSON document piece by piece into one string.
//
// The writer builds no tree, so a document costs the memory of its text. Where
// memory runs out, the call that needed it throws std::bad_alloc, as any
// std::string does.
//
//   JsonWriter json;
//   json.BeginObject();
//   json.Field("world_size", 4);
//   json.Key("ranks");
//   json.BeginArray();
//   json.Value(0);
//   json.EndArray();
//   json.EndObject();
//   json.text();  // {"world_size":4,"ranks":[0]}
//
// Numbers read back as the same value; infinities and NaN become null, for JSON
// has no such numbers. Strings stay UTF-8: each byte that is part of no
// character becomes U+FFFD.

#ifndef SHARD_CORE_BASE_JSON_WRITER_H_
#define SHARD_CORE_BASE_JSON_WRITER_H_

#include <cmath>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/base/strings.h"

namespace shard {

// Appends `text` as a JSON string, in quotes.
void AppendJsonString(std::string* out, std::string_view text);

class JsonWriter {
 public:
  // `indent` is the number of spaces per level, with each member and element on
  // a line of its own. 0 writes the whole document on one line, without spaces.
  explicit JsonWriter(int indent = 0) : indent_(indent) {}

  void BeginObject() { Begin('{'); }
  void EndObject() { End('{', '}'); }
  void BeginArray() { Begin('['); }
  void EndArray() { End('[', ']'); }

  // Writes the key of the next member. REQUIRES: in an object, where a member
  // may begin.
  void Key(std::string_view key);

  // Write one value each. REQUIRES: a place for a value; in an object, after
  // Key.
  void Null();
  void Value(bool value);
  void Value(std::string_view value);
  void Value(const char* value) { Value(std::string_view(value)); }
  void Value(const std::string& value) { Value(std::string_view(value)); }
  template <typename T>
  requires(std::is_arithmetic_v<T> && !std::is_same_v<T, bool> &&
           !std::is_same_v<T, char>) void Value(T value) {
    if (std::is_floating_point_v<T> &&
        !std::isfinite(static_cast<double>(value))) {
      return Null();
    }
    Separate();
    StrAppend(&text_, value);
  }
  template <typename T>
  void Value(const std::vector<T>& values) {
    BeginArray();
    for (const T& value : values) Value(value);
    EndArray();
  }

  template <typename T>
  void Field(std::string_view key, const T& value) {
    Key(key);
    Value(value);
  }
  void NullField(std::string_view key) {
    Key(key);
    Null();
  }

  // Returns the document, complete once every object and array has ended.
  const std::string& text() const { return text_; }

 private:
  void Begin(char bracket);
  void End(char begun, char bracket);
  // Writes the separator that goes before a value or a key.
  void Separate();
  void NewLine();

  const int indent_;
  int depth_ = 0;
  bool after_key_ = false;
  std::string text_;
};

}  // namespace shard

#endif  // SHARD_CORE_BASE_JSON_WRITER_H_
