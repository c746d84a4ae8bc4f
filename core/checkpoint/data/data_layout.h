// SPDX-License-Identifier: Apache-2.0
//
// Where slices lie in a data file. A pure function of their sizes, so that rank
// 0 knows where every rank's are without asking.
//
// Slices follow each other. Those of kSliceAlignment or more begin at a
// multiple of it, so that they are written and read past the page cache as they
// lie; smaller ones at a multiple of kSmallSliceAlignment, so that a million
// small tensors do not cost a page each. What is between them, and behind the
// last one up to whole pages, is zeros.

#ifndef SHARD_CORE_CHECKPOINT_DATA_DATA_LAYOUT_H_
#define SHARD_CORE_CHECKPOINT_DATA_DATA_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/checkpoint/manifest/manifest.h"

namespace shard {

class DataLayout {
 public:
  // Returns the offset of a slice of that size. REQUIRES: bytes > 0.
  uint64_t Add(uint64_t bytes) {
    const uint64_t alignment =
        bytes >= kSliceAlignment ? kSliceAlignment : kSmallSliceAlignment;
    const uint64_t offset = (end_ + alignment - 1) / alignment * alignment;
    end_ = offset + bytes;
    return offset;
  }

  // Of the file: whole pages.
  uint64_t file_bytes() const {
    return (end_ + kSliceAlignment - 1) / kSliceAlignment * kSliceAlignment;
  }

 private:
  uint64_t end_ = 0;
};

// What a slice has at most, given the bytes of the whole checkpoint: small
// enough that a rank reads little that it does not need, large enough for a
// disk, and few enough for a manifest.
uint64_t SliceBytes(uint64_t total_bytes);

// Elements [begin, begin + numel) of a tensor, cut into slices and placed.
void PlaceElements(int64_t begin, int64_t numel, size_t element_size,
                   uint32_t file, uint64_t slice_bytes, DataLayout* layout,
                   std::vector<Slice>* slices);

// "data-00000.bin"
std::string DataFileName(uint32_t file);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_DATA_DATA_LAYOUT_H_
