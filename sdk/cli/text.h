// SPDX-License-Identifier: Apache-2.0
//
// Text for people. Keys and names come from files that somebody else may have
// written: Shown and HtmlText make them harmless to a terminal and to a
// browser. All text that was read passes through one of them, or through
// PrintJson, before it is printed.
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

// JSON whose keys keep their order, so that documents are the same every time.
// Only files that build or read one include <nlohmann/json.hpp>, which takes
// the compiler seconds.
using Json = nlohmann::ordered_json;

// Returns `text` as one line without control characters. These, backslashes,
// characters that are invisible or change the direction of text, and bytes that
// are not UTF-8 are written as \n, \x1b, \u{202e}, \\.
std::string Shown(std::string_view text);

// Returns a message as Shown does, but keeps its backslashes: shard.h's errors
// write control characters as \x1b already.
std::string ShownMessage(std::string_view message);

// Returns Shown(text) with <, >, &, " and ' as entities, for elements and for
// attributes in quotes.
std::string HtmlText(std::string_view text);

// Returns a number of bytes as "512 B", "1.50 GiB".
std::string BytesText(uint64_t bytes);
// Returns a count as "124,439,808".
std::string CountText(uint64_t count);
// Returns a count with three digits: 1.24e+08 as "124 M".
std::string ShortCount(double count);
// Returns a time as "850 us", "12.3 ms", "4.56 s", "2 h 03 min".
std::string SecondsText(double seconds);
// Returns a number with at most six significant digits: "0.25", "1e-08", "nan".
std::string NumberText(double value);
// Returns a shape as "[768, 3072]".
std::string ShapeText(const int64_t* shape, int32_t ndim);

// Returns the bytes of a size: "25MiB", "5GB" (10^9), "1e9", "4096". Throws
// Failure when the text is no size.
uint64_t ParseBytes(const std::string& text);

// Returns whether `glob` matches, as a shell matches file names, but * and ?
// match every character.
bool Matches(const std::string& glob, const std::string& text);

// Returns the columns of a terminal that `text` takes, one per code point.
size_t Width(std::string_view text);

// Prints one document on stdout, ASCII only. Throws Failure when stdout does
// not take it, as on a full disk.
void PrintJson(const Json& json);
void PrintText(std::string_view text);

}  // namespace shardctl

#endif  // SHARD_SDK_CLI_TEXT_H_
