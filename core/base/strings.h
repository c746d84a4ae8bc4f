// SPDX-License-Identifier: Apache-2.0
//
// Locale-free text building. The host may have set a global C++ locale that
// groups digits, so no stream and no printf of floats is used in the library.

#ifndef SHARD_CORE_BASE_STRINGS_H_
#define SHARD_CORE_BASE_STRINGS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace shard {

namespace internal {

void AppendSigned(std::string* out, int64_t value);
void AppendUnsigned(std::string* out, uint64_t value);
void AppendDouble(std::string* out, double value);

template <typename T>
void AppendPiece(std::string* out, const T& piece) {
  if constexpr (std::is_same_v<T, bool>) {
    out->append(piece ? "true" : "false");
  } else if constexpr (std::is_same_v<T, char>) {
    out->push_back(piece);
  } else if constexpr (std::is_enum_v<T>) {
    AppendSigned(out, static_cast<int64_t>(piece));
  } else if constexpr (std::is_floating_point_v<T>) {
    AppendDouble(out, piece);
  } else if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
    AppendSigned(out, piece);
  } else if constexpr (std::is_integral_v<T>) {
    AppendUnsigned(out, piece);
  } else {
    out->append(std::string_view(piece));
  }
}

}  // namespace internal

// Concatenates strings, integers, booleans, enums (as numbers) and floats
// (shortest form that reads back to the same value).
template <typename... Pieces>
std::string StrCat(const Pieces&... pieces) {
  std::string out;
  (internal::AppendPiece(&out, pieces), ...);
  return out;
}

template <typename... Pieces>
void StrAppend(std::string* out, const Pieces&... pieces) {
  (internal::AppendPiece(out, pieces), ...);
}

// Returns "[2, 3, 4]".
std::string FormatList(std::span<const int64_t> values);

// Returns "12.3 MiB"; exact below 1 KiB.
std::string FormatBytes(uint64_t bytes);

// Returns "0x" and 16 hexadecimal digits.
std::string FormatHex(uint64_t value);

// Parses the whole of `text` as a number; nullopt for anything else, overflow
// included. ParseDouble accepts no locale's decimal comma, and no nan or inf.
std::optional<int64_t> ParseInt(std::string_view text);
std::optional<double> ParseDouble(std::string_view text);

// Returns the pieces between the separators: one more than there are
// separators.
std::vector<std::string_view> Split(std::string_view text, char separator);

// Returns true when `text` is well-formed UTF-8 without NUL characters.
bool IsValidUtf8(std::string_view text);

}  // namespace shard

#endif  // SHARD_CORE_BASE_STRINGS_H_
