// SPDX-License-Identifier: Apache-2.0
//
// Text for people. Keys and names come from files that somebody else may have
// written: Shown and HtmlText make them harmless to a terminal and to a
// browser. Everything printed that was read goes through one of them, or
// through PrintJson.
//
// Pure functions, but for PrintJson and PrintText.

#ifndef SHARD_SDK_CLI_TEXT_H_
#define SHARD_SDK_CLI_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace shardctl {

// Ordered: the same document every time. Files that build or read one include
// <nlohmann/json.hpp>, which takes the compiler seconds.
using Json = nlohmann::ordered_json;

// One line without control characters: they, backslashes, what changes the
// direction of text or is invisible, and bytes that are not UTF-8 are written
// as \n, \x1b, \u{202e}, \\.
std::string Shown(std::string_view text);

// The same for a message, which has its backslashes already: shard.h's errors
// write control characters as \x1b.
std::string ShownMessage(std::string_view message);

// Shown, with <, >, &, " and ' as entities: for elements and for attributes in
// quotes.
std::string HtmlText(std::string_view text);

// "512 B", "1.50 GiB".
std::string BytesText(uint64_t bytes);
// "124,439,808".
std::string CountText(uint64_t count);
// "1.24e+08" as "124 M": counts where three digits are enough.
std::string ShortCount(double count);
// "850 us", "12.3 ms", "4.56 s", "2 h 03 min".
std::string SecondsText(double seconds);
// At most six significant digits: "0.25", "1e-08", "nan".
std::string NumberText(double value);
// "[768, 3072]".
std::string ShapeText(const int64_t* shape, int32_t ndim);

// "25MiB", "5GB" (10^9), "1e9", "4096".
// Throws Failure when the text is no size.
uint64_t ParseBytes(const std::string& text);

// As a shell matches file names, but * and ? match every character.
bool Matches(const std::string& glob, const std::string& text);

// Columns of a terminal that text takes, one for each code point.
size_t Width(std::string_view text);

// One document on stdout, ASCII only. Throws Failure when stdout does not take
// it, as a full disk does not.
void PrintJson(const Json& json);
void PrintText(std::string_view text);

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_TEXT_H_
