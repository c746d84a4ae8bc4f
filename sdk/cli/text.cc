// SPDX-License-Identifier: Apache-2.0

#include "sdk/cli/text.h"

#include <fnmatch.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "sdk/cli/handles.h"

namespace shardctl {

namespace {

template <typename... Args>
std::string Format(const char* format, Args... args) {
  char buffer[96];
  std::snprintf(buffer, sizeof(buffer), format, args...);
  return buffer;
}

// Reads one code point of well-formed UTF-8 (RFC 3629) and returns the number
// of its bytes; 0 when there is none.
size_t Decode(std::string_view text, uint32_t* code_point) {
  const auto byte = [&](size_t i) {
    return static_cast<uint32_t>(static_cast<unsigned char>(text[i]));
  };
  const uint32_t first = byte(0);
  if (first < 0x80) {
    *code_point = first;
    return 1;
  }
  const size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || size > text.size()) return 0;
  uint32_t value = first & (0x7fu >> size);
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    value = value << 6 | (byte(i) & 0x3f);
  }
  const bool overlong =
      (size == 3 && value < 0x800) || (size == 4 && value < 0x10000);
  if (overlong || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) {
    return 0;
  }
  *code_point = value;
  return size;
}

// Returns whether a code point is escaped: C0, DEL and C1 (which has another
// CSI), characters that change the direction of text, and invisible ones.
bool IsHarmful(uint32_t c) {
  return c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0xad || c == 0x61c ||
         c == 0x180e || (c >= 0x200b && c <= 0x200f) ||
         (c >= 0x2028 && c <= 0x202e) || (c >= 0x2060 && c <= 0x206f) ||
         c == 0xfeff || (c >= 0xfff0 && c <= 0xfffb) || (c >> 8) == 0xe00;
}

std::string Escaped(std::string_view text, bool backslashes) {
  std::string shown;
  while (!text.empty()) {
    uint32_t c = 0;
    const size_t size = Decode(text, &c);
    if (size == 0) {
      shown += Format("\\x%02x", static_cast<unsigned char>(text[0]));
      text.remove_prefix(1);
      continue;
    }
    if (c == '\\' && backslashes) {
      shown += "\\\\";
    } else if (c == '\n') {
      shown += "\\n";
    } else if (c == '\t') {
      shown += "\\t";
    } else if (IsHarmful(c)) {
      shown += c < 0x80 ? Format("\\x%02x", c) : Format("\\u{%x}", c);
    } else {
      shown += text.substr(0, size);
    }
    text.remove_prefix(size);
  }
  return shown;
}

}  // namespace

std::string Shown(std::string_view text) {
  return Escaped(text, /*backslashes=*/true);
}

std::string ShownMessage(std::string_view message) {
  return Escaped(message, /*backslashes=*/false);
}

std::string HtmlText(std::string_view text) {
  std::string html;
  for (const char c : Shown(text)) {
    switch (c) {
      case '&':
        html += "&amp;";
        break;
      case '<':
        html += "&lt;";
        break;
      case '>':
        html += "&gt;";
        break;
      case '"':
        html += "&quot;";
        break;
      case '\'':
        html += "&#39;";
        break;
      default:
        html += c;
    }
  }
  return html;
}

std::string BytesText(uint64_t bytes) {
  if (bytes < 1024) return CountText(bytes) + " B";
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  // 1023.995 would be written as "1024.00".
  while (value >= 1023.995 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return Format("%.*f %s",
                value < 10    ? 2
                : value < 100 ? 1
                              : 0,
                value, kUnits[unit]);
}

std::string CountText(uint64_t count) {
  std::string digits = std::to_string(count);
  for (size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

std::string ShortCount(double count) {
  constexpr const char* kUnits[] = {"", " K", " M", " G", " T", " P"};
  size_t unit = 0;
  while (count >= 999.5 && unit + 1 < std::size(kUnits)) {
    count /= 1000;
    ++unit;
  }
  return Format("%.3g%s", count, kUnits[unit]);
}

std::string SecondsText(double seconds) {
  if (!(seconds >= 0) || std::isinf(seconds)) return "-";
  if (seconds < 0.9995e-3) return Format("%.3g us", seconds * 1e6);
  if (seconds < 0.9995) return Format("%.3g ms", seconds * 1e3);
  if (seconds < 99.95) return Format("%.3g s", seconds);
  if (seconds < 3600) {
    const auto whole = static_cast<long>(seconds + 0.5);
    return Format("%ld min %02ld s", whole / 60, whole % 60);
  }
  if (seconds >= 1e9) return "> 30 years";
  const auto minutes = static_cast<long>(seconds / 60 + 0.5);
  return Format("%ld h %02ld min", minutes / 60, minutes % 60);
}

std::string NumberText(double value) {
  return std::isnan(value) ? "nan" : Format("%.6g", value);
}

std::string ShapeText(const int64_t* shape, int32_t ndim) {
  std::string text = "[";
  for (int32_t d = 0; d < ndim; ++d) {
    if (d > 0) text += ", ";
    text += std::to_string(shape[d]);
  }
  return text + "]";
}

uint64_t ParseBytes(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  std::string unit = end;
  if (!unit.empty() && unit[0] == ' ') unit.erase(0, 1);
  constexpr struct {
    const char* name;
    double factor;
  } kUnits[] = {{"", 1},         {"B", 1},        {"KB", 1e3},
                {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},
                {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30},
                {"TiB", 0x1p40}};
  for (const auto& known : kUnits) {
    if (end == text.c_str() || unit != known.name) continue;
    const double bytes = number * known.factor;
    if (bytes >= 1 && bytes < 0x1p63) return static_cast<uint64_t>(bytes);
  }
  throw Failure("'" + Shown(text) +
                "' is no number of bytes; give one such as 4096, 500MB or "
                "5GiB, at least 1");
}

bool Matches(const std::string& glob, const std::string& text) {
  return ::fnmatch(glob.c_str(), text.c_str(), 0) == 0;
}

size_t Width(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(),
      [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

void PrintJson(const Json& json) {
  PrintText(
      json.dump(2, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace) +
      "\n");
}

void PrintText(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() ||
      std::fflush(stdout) != 0) {
    throw Failure(std::string("cannot write to stdout: ") +
                  std::strerror(errno));
  }
}

}  // namespace shardctl
