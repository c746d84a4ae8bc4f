// SPDX-License-Identifier: Apache-2.0

#include "core/observe/text_line.h"

#include <algorithm>

#include "core/base/strings.h"

namespace shard {

namespace {

// Returns the begin of `text`, at most `most` bytes, that ends with a whole
// character.
std::string_view CutAtCharacter(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) {
    --end;
  }
  return text.substr(0, end);
}

}  // namespace

TextLine& TextLine::AppendFixed(int64_t number, int decimals) {
  int64_t unit = 1;
  for (int d = 0; d < decimals; ++d) unit *= 10;
  *this << number / unit << ".";
  for (int64_t digit = unit / 10; digit > 0; digit /= 10) {
    *this << number / digit % 10;
  }
  return *this;
}

TextLine& TextLine::AppendQuoted(std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  text = CutAtCharacter(text, kMostQuoted);
  const bool is_utf8 = IsValidUtf8(text);
  const auto is_plain = [&](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0x20 && byte != 0x7F && c != '"' && c != '\\' &&
           (byte < 0x80 || is_utf8);
  };
  *this << "\"";
  while (!text.empty()) {
    const size_t plain = static_cast<size_t>(
        std::find_if_not(text.begin(), text.end(), is_plain) - text.begin());
    *this << text.substr(0, plain);
    text.remove_prefix(plain);
    if (text.empty()) break;
    const auto byte = static_cast<unsigned char>(text[0]);
    if (byte == '"' || byte == '\\') {
      *this << "\\" << text.substr(0, 1);
    } else if (byte == '\n') {
      *this << "\\n";
    } else if (byte >= 0x80) {
      *this << "?";
    } else {
      *this << "\\u00" << std::string_view(&kHex[byte >> 4], 1)
            << std::string_view(&kHex[byte & 15], 1);
    }
    text.remove_prefix(1);
  }
  return *this << "\"";
}

}  // namespace shard
