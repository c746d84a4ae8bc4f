// SPDX-License-Identifier: Apache-2.0

#include "core/model/names.h"

#include <cstdint>
#include <cstring>

#include "core/base/strings.h"

namespace shard {

namespace {

// Returns the bytes of the control character at text[i]; 0 when there is none.
size_t ControlBytes(std::string_view text, size_t i) {
  const auto byte = static_cast<unsigned char>(text[i]);
  if (byte < 0x20 || byte == 0x7F) return 1;
  // U+0080 to U+009F.
  const bool is_c1 = byte == 0xC2 && i + 1 < text.size() &&
                     static_cast<unsigned char>(text[i + 1]) < 0xA0;
  return is_c1 ? 2 : 0;
}

// Returns true when the eight bytes are U+0020 to U+007E.
bool IsPrintableAscii(const char* text) {
  constexpr uint64_t kOnes = 0x0101010101010101;
  uint64_t bytes;
  std::memcpy(&bytes, text, sizeof(bytes));
  // The sums do not carry between bytes: only the top bit of each byte is read.
  return (bytes & 0x80 * kOnes) == 0 &&
         (((bytes | 0x80 * kOnes) - 0x20 * kOnes) & 0x80 * kOnes) ==
             0x80 * kOnes &&
         ((bytes + kOnes) & 0x80 * kOnes) == 0;
}

void AppendEscaped(std::string_view bytes, std::string* out) {
  constexpr char kDigits[] = "0123456789abcdef";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    StrAppend(out, "\\x", kDigits[byte >> 4], kDigits[byte & 15]);
  }
}

}  // namespace

bool IsPlainText(std::string_view text) {
  // Most names are ASCII, and a manifest may have a GiB of them.
  while (text.size() >= sizeof(uint64_t) && IsPrintableAscii(text.data())) {
    text.remove_prefix(sizeof(uint64_t));
  }
  for (size_t i = 0; i < text.size(); ++i) {
    if (ControlBytes(text, i) > 0) return false;
  }
  return IsValidUtf8(text);
}

std::string QuoteName(std::string_view text) {
  constexpr size_t kMost = 200;
  size_t end = text.size();
  if (end > kMost) {
    end = kMost;
    // Does not cut in the middle of a character.
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) {
      --end;
    }
  }
  const std::string_view shown = text.substr(0, end);
  const bool utf8 = IsValidUtf8(shown);
  std::string quoted = "'";
  for (size_t i = 0; i < shown.size();) {
    const bool foreign = !utf8 && static_cast<unsigned char>(shown[i]) >= 0x80;
    const size_t bytes = foreign ? 1 : ControlBytes(shown, i);
    if (bytes == 0) {
      quoted.push_back(shown[i++]);
      continue;
    }
    AppendEscaped(shown.substr(i, bytes), &quoted);
    i += bytes;
  }
  quoted += end < text.size() ? "...'" : "'";
  return quoted;
}

Status CheckName(std::string_view what, std::string_view text,
                 size_t max_bytes) {
  if (text.empty()) return InvalidArgument("the ", what, " is empty");
  const char* wrong = nullptr;
  if (!IsValidUtf8(text)) {
    wrong = "is not valid UTF-8 without NUL";
  } else if (!IsPlainText(text)) {
    wrong = "holds a control character; leave it out";
  }
  if (wrong != nullptr) {
    return InvalidArgument("the ", what, " ", QuoteName(text), " ", wrong);
  }
  if (text.size() <= max_bytes) return {};
  return InvalidArgument("the ", what, " ", QuoteName(text), " has ",
                         text.size(), " bytes; at most ", max_bytes,
                         " are allowed");
}

Status CheckClassName(std::string_view name) {
  if (IsValidUtf8(name)) return {};
  return InvalidArgument("the class ", QuoteName(name),
                         " is not valid UTF-8 without NUL");
}

std::optional<OwnedKey> ParseOwnedKey(std::string_view key) {
  const bool in_group = key.starts_with(kGroupPrefix);
  if (!in_group && !key.starts_with(kStatePrefix)) return std::nullopt;
  key.remove_prefix(in_group ? kGroupPrefix.size() : kStatePrefix.size());
  const size_t dot = key.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  return OwnedKey{in_group, key.substr(0, dot), key.substr(dot + 1)};
}

bool IsWrapperName(std::string_view component) {
  return component == "_fsdp_wrapped_module" ||
         component == "_checkpoint_wrapped_module" ||
         component == "_fpw_module" || component == "_orig_mod";
}

std::string CleanTensorName(std::string_view name, bool strip_leading_module) {
  std::string clean;
  clean.reserve(name.size());
  bool at_front = true;  // True while only wrappers were seen.
  for (;;) {
    const size_t dot = name.find('.');
    if (dot == std::string_view::npos) break;
    const std::string_view component = name.substr(0, dot);
    if (!IsWrapperName(component)) {
      if (!(at_front && strip_leading_module && component == "module")) {
        clean.append(component).push_back('.');
      }
      at_front = false;
    }
    name.remove_prefix(dot + 1);
  }
  clean.append(name);
  return clean;
}

}  // namespace shard
