// SPDX-License-Identifier: Apache-2.0

#include "core/base/json_writer.h"

#include <cstddef>

namespace shard {

namespace {

// Returns the bytes of the character that `text` begins with; 0 when there is
// none.
size_t CharacterSize(std::string_view text) {
  for (size_t size = 1; size <= 4 && size <= text.size(); ++size) {
    if (IsValidUtf8(text.substr(0, size))) return size;
  }
  return 0;
}

// Returns the escape of a character that a string cannot hold; else null.
const char* ShortEscape(char c) {
  switch (c) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\b':
      return "\\b";
    case '\f':
      return "\\f";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return nullptr;
  }
}

}  // namespace

void AppendJsonString(std::string* out, std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  out->push_back('"');
  while (!text.empty()) {
    const auto byte = static_cast<unsigned char>(text[0]);
    size_t size = 1;
    if (const char* const escape = ShortEscape(text[0]); escape != nullptr) {
      out->append(escape);
    } else if (byte < 0x20) {
      StrAppend(out, "\\u00", kDigits[byte >> 4], kDigits[byte & 15]);
    } else if (byte < 0x80) {
      out->push_back(text[0]);
    } else if (size = CharacterSize(text); size > 0) {
      out->append(text.substr(0, size));
    } else {
      out->append("\xEF\xBF\xBD");  // U+FFFD.
      size = 1;
    }
    text.remove_prefix(size);
  }
  out->push_back('"');
}

void JsonWriter::Key(std::string_view key) {
  Separate();
  AppendJsonString(&text_, key);
  text_ += indent_ > 0 ? ": " : ":";
  after_key_ = true;
}

void JsonWriter::Null() {
  Separate();
  text_ += "null";
}

void JsonWriter::Value(bool value) {
  Separate();
  text_ += value ? "true" : "false";
}

void JsonWriter::Value(std::string_view value) {
  Separate();
  AppendJsonString(&text_, value);
}

void JsonWriter::Begin(char bracket) {
  Separate();
  text_.push_back(bracket);
  ++depth_;
}

void JsonWriter::End(char begun, char bracket) {
  --depth_;
  if (text_.back() != begun) NewLine();
  text_.push_back(bracket);
}

void JsonWriter::Separate() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (depth_ == 0) return;
  // Only an opening bracket makes the text end in one: strings end in quotes.
  if (text_.back() != '{' && text_.back() != '[') text_.push_back(',');
  NewLine();
}

void JsonWriter::NewLine() {
  if (indent_ == 0) return;
  text_.push_back('\n');
  text_.append(static_cast<size_t>(depth_) * static_cast<size_t>(indent_), ' ');
}

}  // namespace shard
