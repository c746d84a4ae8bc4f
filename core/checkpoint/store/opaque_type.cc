// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/store/opaque_type.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "core/base/element_type.h"
#include "core/base/strings.h"

namespace shard {

namespace {

struct KnownSize {
  std::string_view name;
  uint64_t bits;  // Per element.
};

// The sizes are part of the checkpoint format (docs/checkpoint-format.md) and
// frozen: a size that was added would make damage of files that were whole.
constexpr KnownSize kKnownSizes[] = {
    {"C64", 64},    {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
    {"F6_E3M2", 6}, {"F6_E2M3", 6}, {"F4", 4},
};

}  // namespace

bool IsOpaqueType(std::string_view name) {
  constexpr std::string_view kAllowed =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";
  return !name.empty() && name.size() <= kMaxOpaqueType &&
         name.find_first_not_of(kAllowed) == std::string_view::npos &&
         std::none_of(std::begin(kElementTypes), std::end(kElementTypes),
                      [name](const ElementTypeInfo& info) {
                        return info.safetensors != nullptr &&
                               info.safetensors == name;
                      });
}

StatusOr<int64_t> CheckOpaqueTensor(std::string_view type,
                                    std::span<const int64_t> shape,
                                    uint64_t bytes) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  int64_t numel = 1;
  for (const int64_t dim : shape) {
    if (dim < 0 || (dim > 0 && numel > kMax / dim)) {
      return InvalidArgument(
          "a shape of ", FormatList(shape),
          " is negative, or has more elements than 63 bits can count");
    }
    numel *= dim;
  }
  if (bytes > static_cast<uint64_t>(kMax)) {
    return InvalidArgument(bytes, " bytes are more than 63 bits can count");
  }
  const auto known =
      std::find_if(std::begin(kKnownSizes), std::end(kKnownSizes),
                   [type](const KnownSize& each) { return each.name == type; });
  if (known == std::end(kKnownSizes)) return numel;
  // Neither product overflows 128 bits.
  using Wide = unsigned __int128;
  if (Wide{bytes} * 8 ==
      Wide{static_cast<uint64_t>(numel)} * Wide{known->bits}) {
    return numel;
  }
  return InvalidArgument(bytes, " bytes are not those of ", type, " of shape ",
                         FormatList(shape), ", at ", known->bits, " bits each");
}

}  // namespace shard
