// SPDX-License-Identifier: Apache-2.0
//
// The images of the fatbin that libshard_cuda.so has: code for each
// architecture that docs/gpu.md names, and PTX for newer ones.

#include "kernels/cuda/kernels_fatbin.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>

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

// Returns the images by name: "sm_90" for code, "compute_90" for PTX.
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

TEST(KernelsFatbinTest, HasCodeForEachArchitectureAndPtx) {
  if (shard_fatbin_kernels_fatbin_size == 0) {
    GTEST_SKIP()
        << "built without a CUDA toolkit, so there are no kernels; see "
           "CUDA_PATH in CONTRIBUTING.md";
  }
  const auto images =
      ReadImages({reinterpret_cast<const char*>(shard_fatbin_kernels_fatbin),
                  static_cast<size_t>(shard_fatbin_kernels_fatbin_size)});
  std::string names;
  for (const auto& [name, image] : images) names += name + " ";
  EXPECT_EQ(names, "compute_90 sm_100 sm_120 sm_80 sm_90 ");
  for (const auto& [name, image] : images) {
    SCOPED_TRACE(name);
    // Each has all kernels, of which this is one.
    EXPECT_NE(image.find("shard_update_AdamW"), std::string_view::npos);
    if (name.starts_with("sm_")) {
      EXPECT_EQ(image.substr(0, 4),
                "\x7f"
                "ELF");
    } else {
      EXPECT_NE(image.find("\n.target sm_90\n"), std::string_view::npos);
    }
  }
}

}  // namespace
}  // namespace shard::cuda
