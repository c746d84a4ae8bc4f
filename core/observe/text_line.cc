// SPDX-License-Identifier: Apache-2.0

#include "core/observe/text_line.h"

#include <algorithm>
#include <iterator>
#include <span>

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

// Returns the escape of a byte within a JSON string, in `room`; a question mark
// for one that is part of no character.
std::string_view Escape(char c, std::span<char, 6> room) {
  constexpr char kHex[] = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(c);
  if (c == '\n') return "\\n";
  if (byte >= 0x80) return "?";
  if (c == '"' || c == '\\') {
    room[0] = '\\';
    room[1] = c;
    return {room.data(), 2};
  }
  const char escape[] = {'\\', 'u', '0', '0', kHex[byte >> 4], kHex[byte & 15]};
  std::copy(std::begin(escape), std::end(escape), room.begin());
  return {room.data(), room.size()};
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
  text = CutAtCharacter(text, kMostQuoted);
  const bool is_utf8 = IsValidUtf8(text);
  const auto is_plain = [&](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0x20 && byte != 0x7F && c != '"' && c != '\\' &&
           (byte < 0x80 || is_utf8);
  };
  *this << "\"";
  size_t room = kMostQuoted;
  while (!text.empty()) {
    const auto plain = static_cast<size_t>(
        std::find_if_not(text.begin(), text.end(), is_plain) - text.begin());
    char escape[6];
    const std::string_view next =
        plain > 0 ? CutAtCharacter(text.substr(0, plain), room)
                  : Escape(text[0], escape);
    if (next.empty() || next.size() > room) break;
    *this << next;
    room -= next.size();
    text.remove_prefix(plain > 0 ? next.size() : 1);
  }
  return *this << "\"";
}

}  // namespace shard
