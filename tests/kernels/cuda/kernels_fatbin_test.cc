// SPDX-License-Identifier: Apache-2.0
//
// The images of the fatbin that libshard_cuda.so has: code for each
// architecture that docs/gpu.md names, and PTX for newer ones; and how the PTX
// accesses memory.

#include "kernels/cuda/kernels_fatbin.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <sstream>
#include <string>
#include <string_view>

#include "kernels/formula/registry.h"

namespace shard::cuda {
namespace {

// The head of a fatbin, and that of each image in it, as fatbinary writes them.
struct Head {
  uint32_t magic;
  uint16_t version;
  uint16_t head_bytes;
  uint64_t bytes;  // Of the images.
};

struct ImageHead {
  enum Kind : uint16_t { kPtx = 1, kElf = 2 };

  uint16_t kind;
  uint16_t version;
  uint32_t head_bytes;
  uint64_t bytes;             // After the head.
  uint32_t compressed_bytes;  // 0: as it is.
  uint32_t unused;
  uint16_t minor;
  uint16_t major;
  uint32_t arch;
};

template <typename T>
T ReadAt(std::string_view text, size_t at) {
  T value = {};
  EXPECT_LE(at + sizeof(T), text.size());
  if (at + sizeof(T) <= text.size()) {
    std::memcpy(&value, text.data() + at, sizeof(T));
  }
  return value;
}

// Returns the images by name: "sm_90" for code, "compute_80" for PTX.
std::map<std::string, std::string_view> ReadImages(std::string_view fatbin) {
  std::map<std::string, std::string_view> images;
  const auto head = ReadAt<Head>(fatbin, 0);
  EXPECT_EQ(head.magic, 0xba55ed50u);
  EXPECT_EQ(head.head_bytes + head.bytes, fatbin.size());
  for (size_t at = head.head_bytes; at < fatbin.size();) {
    const auto image = ReadAt<ImageHead>(fatbin, at);
    const std::string name =
        (image.kind == ImageHead::kElf ? "sm_" : "compute_") +
        std::to_string(image.arch);
    EXPECT_TRUE(image.kind == ImageHead::kElf || image.kind == ImageHead::kPtx)
        << image.kind;
    // Drivers before CUDA 12.4 cannot read it.
    EXPECT_EQ(image.compressed_bytes, 0u) << name;
    EXPECT_EQ(images.count(name), 0u) << name;
    images[name] = fatbin.substr(at + image.head_bytes, image.bytes);
    if (image.head_bytes == 0) break;
    at += image.head_bytes + image.bytes;
  }
  return images;
}

class KernelsFatbinTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (shard_fatbin_kernels_fatbin_size == 0) {
      GTEST_SKIP()
          << "built without a CUDA toolkit, so there are no kernels; see "
             "CUDA_PATH in CONTRIBUTING.md";
    }
  }

  static std::map<std::string, std::string_view> Images() {
    return ReadImages(
        {reinterpret_cast<const char*>(shard_fatbin_kernels_fatbin),
         static_cast<size_t>(shard_fatbin_kernels_fatbin_size)});
  }
};

TEST_F(KernelsFatbinTest, HasCodeForEachArchitectureAndPtx) {
  const auto images = Images();
  std::string names;
  for (const auto& [name, image] : images) names += name + " ";
  EXPECT_EQ(names, "compute_80 sm_100 sm_120 sm_80 sm_90 ");
  for (const auto& [name, image] : images) {
    SCOPED_TRACE(name);
    // Each has all kernels, of which this is one.
    EXPECT_NE(image.find("shard_update_AdamW"), std::string_view::npos);
    if (name.starts_with("sm_")) {
      EXPECT_EQ(image.substr(0, 4),
                "\x7f"
                "ELF");
    } else {
      EXPECT_NE(image.find("\n.target sm_80\n"), std::string_view::npos);
    }
  }
}

// The loads and stores of 16 bytes in a kernel.
struct Accesses {
  int loads = 0;
  int stores = 0;
};

std::map<std::string, Accesses> CountAccesses(std::string_view ptx) {
  std::map<std::string, Accesses> counts;
  std::string kernel;
  std::istringstream lines{std::string(ptx)};
  for (std::string line; std::getline(lines, line);) {
    constexpr std::string_view kEntry = ".entry ";
    if (const size_t at = line.find(kEntry); at != std::string::npos) {
      const size_t begin = at + kEntry.size();
      kernel = line.substr(begin, line.find('(', begin) - begin);
    }
    const size_t four = line.find(".v4.");
    if (four == std::string::npos || line.substr(four + 5, 2) != "32") continue;
    counts[kernel].loads += line.find("ld.global") < four ? 1 : 0;
    counts[kernel].stores += line.find("st.global") < four ? 1 : 0;
  }
  return counts;
}

// A type that lost its alignment would be read and written in smaller pieces.
TEST_F(KernelsFatbinTest, KernelsAccessSixteenBytesAtOnce) {
  std::map<std::string, Accesses> counts =
      CountAccesses(Images()["compute_80"]);
  int updates = 0;
  for (const auto& [kernel, count] : counts) {
    if (!kernel.starts_with("shard_update_")) continue;
    SCOPED_TRACE(kernel);
    ++updates;
    // Two of each tensor: the gradient and the parameter, and the parameter and
    // its master.
    EXPECT_GE(count.loads, 4);
    EXPECT_GE(count.stores, 4);
  }
#define SHARD_COUNT(Name) +1
  EXPECT_EQ(updates, SHARD_ELEMENT_FORMULAS(SHARD_COUNT));
#undef SHARD_COUNT
  for (const char* const kernel :
       {"shard_add_to_norm", "shard_fill", "shard_lamb_moments", "shard_narrow",
        "shard_sum_gradients", "shard_widen"}) {
    SCOPED_TRACE(kernel);
    EXPECT_GE(counts[kernel].loads, 2);
    EXPECT_GE(counts[kernel].stores, 2);
  }
}

}  // namespace
}  // namespace shard::cuda
