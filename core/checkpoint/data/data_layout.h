// SPDX-License-Identifier: Apache-2.0
//
// DataLayout: the places of slices in a data file. They are a pure function of
// the slices' sizes, so that rank 0 knows the places of every rank's slices
// without asking.
//
// Slices follow each other. A slice of kSliceAlignment bytes or more begins at
// a multiple of kSliceAlignment, so that it is written and read past the page
// cache without a copy; a smaller one begins at a multiple of
// kSmallSliceAlignment, so that a million small tensors do not cost a page
// each. The bytes between slices, and after the last one up to whole pages, are
// zeros.

#ifndef SHARD_CORE_CHECKPOINT_DATA_DATA_LAYOUT_H_
#define SHARD_CORE_CHECKPOINT_DATA_DATA_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/rounding.h"
#include "core/checkpoint/manifest/manifest.h"

namespace shard {

class DataLayout {
 public:
  // Adds a slice of that size and returns its offset. REQUIRES: bytes > 0.
  uint64_t Add(uint64_t bytes) {
    const uint64_t alignment =
        bytes >= kSliceAlignment ? kSliceAlignment : kSmallSliceAlignment;
    const uint64_t offset = RoundUp(end_, alignment);
    end_ = offset + bytes;
    return offset;
  }

  // Returns the bytes of the file: whole pages.
  uint64_t file_bytes() const { return RoundUp(end_, kSliceAlignment); }

 private:
  uint64_t end_ = 0;
};

// Returns the most bytes of a slice, given the bytes of the whole checkpoint:
// small enough that a rank reads little that it does not need, large enough for
// a disk, and few enough slices for a manifest.
uint64_t SliceBytes(uint64_t total_bytes);

// Cuts elements [begin, begin + numel) of a tensor into slices and places them
// in the layout.
void PlaceElements(int64_t begin, int64_t numel, size_t element_size,
                   uint32_t file, uint64_t slice_bytes, DataLayout* layout,
                   std::vector<Slice>* slices);

// Returns the name of a data file: "data-00000.bin".
std::string DataFileName(uint32_t file);

}  // namespace shard

#endif  // SHARD_CORE_CHECKPOINT_DATA_DATA_LAYOUT_H_
