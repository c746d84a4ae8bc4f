// SPDX-License-Identifier: Apache-2.0
//
// Sums of gradients and of blocks, casts and 8-bit codes of a GPU have the bits
// of those on the CPU: the kernels, compiled for the host, beside kernels/cpu.

#include "kernels/cuda/casts.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/strings.h"
#include "kernels/cpu/block_sum.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/gradients.h"
#include "kernels/cpu/q8.h"
#include "kernels/cpu/random.h"
#include "kernels/formula/state_kind.h"
#include "tests/kernels/cuda/run_kernel.h"

namespace shard::casts_test {
namespace {

using testing::Grid;
using testing::kGrids;
using testing::RunKernel;
using testing::SameFloat;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
// No whole tile; a whole one; partial ones at both ends.
constexpr size_t kCounts[] = {0, 1, 3, 255, 256, 300, 1037};
// Before tensors: those of 16 bytes, of fours of halves, and of neither.
constexpr size_t kOffsets[] = {0, 1, 2, 4, 7};

using Bytes = std::vector<unsigned char>;

// Values of all exponents, and all that are special.
std::vector<float> Values(size_t count, uint32_t seed) {
  constexpr float kSpecial[] = {
      0.0f,      -0.0f,      kInfinity,  -kInfinity, kNan,
      0x1p-149f, -0x1p-130f, 65504.0f,   65520.0f,   0x1.fffffep127f,
      0x1p-24f,  0x1p-25f,   0x1.8p-25f, 1.0f,       0x1.01p0f};
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(random);
    const uint32_t kind = random() % 16;
    if (kind == 0) value = kSpecial[random() % std::size(kSpecial)];
    if (kind == 1)
      value = std::bit_cast<float>(static_cast<uint32_t>(random()));
  }
  return values;
}

// A tensor, `offset` elements after an aligned address.
class Tensor {
 public:
  Tensor(DType dtype, const std::vector<float>& values, size_t offset)
      : dtype_(dtype),
        offset_(offset),
        bytes_((values.size() + offset) * DTypeSize(dtype) + 64, 0xA5) {
    Narrow(dtype, values.data(), data(), values.size(), nullptr);
  }

  void* data() {
    const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
    return bytes_.data() + (0 - address) % 16 + offset_ * DTypeSize(dtype_);
  }
  template <class T>
  T* as() {
    return static_cast<T*>(data());
  }

  // Fails where element i, i < count, is not equal; or where a byte after them
  // was written. NaN is equal to NaN.
  void ExpectEqual(Tensor* other, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      float a = 0;
      float b = 0;
      const size_t at = i * DTypeSize(dtype_);
      Widen(dtype_, as<char>() + at, &a, 1);
      Widen(dtype_, other->as<char>() + at, &b, 1);
      ASSERT_TRUE(SameFloat(a, b)) << i << ": " << a << " and " << b;
    }
    for (size_t i = 0; i < 4; ++i) {
      ASSERT_EQ(as<unsigned char>()[count * DTypeSize(dtype_) + i], 0xA5);
      if (offset_ > 0) {
        ASSERT_EQ(as<unsigned char>()[-1], 0xA5);
      }
    }
  }

 private:
  DType dtype_;
  size_t offset_;
  Bytes bytes_;
};

struct Sum {
  DType dtype;
  size_t num_sources;
  size_t begin;
  size_t count;
  double scale;
  double clip_value;
  size_t offset;  // Of the sources.
  size_t out_offset;
};

void CheckSum(const Sum& sum) {
  SCOPED_TRACE(StrCat(sum.num_sources, " of ", DTypeName(sum.dtype), ", ",
                      sum.count, " from ", sum.begin, ", scale ", sum.scale,
                      ", clip ", sum.clip_value, ", offsets ", sum.offset,
                      " and ", sum.out_offset));
  std::vector<Tensor> tensors;
  std::vector<const void*> sources;
  for (uint32_t w = 0; w < sum.num_sources; ++w) {
    tensors.emplace_back(sum.dtype, Values(sum.begin + sum.count, w + 1),
                         sum.offset);
  }
  for (Tensor& tensor : tensors) sources.push_back(tensor.data());
  const auto make = [&] {
    return Tensor(DType::kF32, std::vector<float>(sum.count), sum.out_offset);
  };
  Tensor expected = make();
  SumGradients({sources.data(), sources.size(), sum.dtype}, sum.begin,
               sum.count, sum.scale, sum.clip_value, expected.as<float>());
  for (const Grid& grid : kGrids) {
    Tensor out = make();
    cuda::SumGradientsArgs args = {};
    args.sources = cuda::SourcesOf(sources.data(), sources.size(), sum.dtype,
                                   sources.data());
    args.begin = sum.begin;
    args.count = sum.count;
    args.scale = static_cast<float>(sum.scale);
    args.clip_value = static_cast<float>(sum.clip_value);
    args.out = out.as<float>();
    RunKernel("shard_sum_gradients", args, grid);
    out.ExpectEqual(&expected, sum.count);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(SumGradients, HasTheBitsOfTheCpu) {
  for (const DType dtype : kDTypes) {
    for (size_t num_sources = 1; num_sources <= 3; ++num_sources) {
      for (const size_t count : kCounts) {
        for (const size_t begin : {0, 4, 5}) {
          CheckSum({dtype, num_sources, begin, count, 1, kInfinity, 0, 0});
          CheckSum({dtype, num_sources, begin, count, -0.3, 0.5, 0, 0});
        }
        for (const size_t offset : kOffsets) {
          for (const size_t out_offset : {0, 1, 4}) {
            CheckSum({dtype, num_sources, 0, count, 0.5, kInfinity, offset,
                      out_offset});
          }
        }
        if (HasFailure()) return;
      }
    }
  }
}

TEST(SumGradients, ReadsMoreSourcesThanAnArgumentHas) {
  for (const size_t num_sources : {31, 32, 33, 40}) {
    CheckSum({DType::kBF16, num_sources, 5, 700, 0.25, 2, 0, 0});
  }
}

TEST(SumGradients, WritesInPlace) {
  Tensor first(DType::kF32, Values(1000, 1), 0);
  Tensor second(DType::kF32, Values(1000, 2), 0);
  const void* const sources[] = {first.data(), second.data()};
  Tensor expected(DType::kF32, std::vector<float>(900), 0);
  SumGradients({sources, 2, DType::kF32}, 100, 900, 0.5, kInfinity,
               expected.as<float>());
  cuda::SumGradientsArgs args = {};
  args.sources = cuda::SourcesOf(sources, 2, DType::kF32, nullptr);
  args.begin = 100;
  args.count = 900;
  args.scale = 0.5;
  args.clip_value = kInfinity;
  args.out = second.as<float>() + 100;
  RunKernel("shard_sum_gradients", args, kGrids[1]);
  for (size_t i = 0; i < 900; ++i) {
    ASSERT_TRUE(SameFloat(args.out[i], expected.as<float>()[i])) << i;
  }
}

struct BlockCase {
  DType dtype;
  DType recv_dtype;
  int ranks;
  int own_index;
  bool has_own;
  bool add;
  size_t count;
  size_t offset;
};

void CheckBlocks(const BlockCase& c) {
  SCOPED_TRACE(StrCat(c.ranks, " of ", DTypeName(c.dtype), " to ",
                      DTypeName(c.recv_dtype), ", own ", c.own_index,
                      c.has_own ? "" : " missing", c.add ? ", added, " : ", ",
                      c.count, " elements, offset ", c.offset));
  Tensor own(c.dtype, Values(c.count, 1), c.offset);
  Tensor peers(c.dtype, Values(static_cast<size_t>(c.ranks - 1) * c.count, 2),
               c.offset);
  const std::vector<float> old = Values(c.count, 3);
  BlockSum sum;
  sum.own = c.has_own ? own.data() : nullptr;
  sum.own_index = c.own_index;
  sum.peers = peers.data();
  sum.ranks = c.ranks;
  sum.dtype = c.dtype;
  sum.count = c.count;
  Tensor expected(c.recv_dtype, old, c.offset);
  sum.recv = expected.data();
  sum.recv_dtype = c.recv_dtype;
  sum.add = c.add;
  SumBlocks(sum);
  for (const Grid& grid : kGrids) {
    Tensor to(c.recv_dtype, old, c.offset);
    const cuda::SumBlocksArgs args = {sum.own,   sum.peers, sum.own_index,
                                      sum.ranks, sum.dtype, sum.recv_dtype,
                                      sum.add,   sum.count, to.data()};
    RunKernel("shard_sum_blocks", args, grid);
    to.ExpectEqual(&expected, c.count);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(SumBlocks, HasTheBitsOfTheCpu) {
  for (const DType dtype : kDTypes) {
    for (const DType recv_dtype : kDTypes) {
      for (const int ranks : {1, 2, 5}) {
        for (const size_t count : kCounts) {
          for (const size_t offset : {0, 1, 4}) {
            for (const bool add : {false, true}) {
              CheckBlocks({dtype, recv_dtype, ranks, ranks / 2, true, add,
                           count, offset});
              CheckBlocks(
                  {dtype, recv_dtype, ranks, 0, false, add, count, offset});
            }
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST(SumBlocks, WritesInPlace) {
  for (const DType dtype : kDTypes) {
    Tensor own(dtype, Values(1000, 1), 0);
    Tensor peers(dtype, Values(2000, 2), 0);
    Tensor expected(dtype, std::vector<float>(1000), 0);
    BlockSum sum;
    sum.own = own.data();
    sum.own_index = 1;
    sum.peers = peers.data();
    sum.ranks = 3;
    sum.dtype = sum.recv_dtype = dtype;
    sum.count = 1000;
    sum.recv = expected.data();
    SumBlocks(sum);
    RunKernel("shard_sum_blocks",
              cuda::SumBlocksArgs{own.data(), peers.data(), 1, 3, dtype, dtype,
                                  false, 1000, own.data()},
              kGrids[1]);
    own.ExpectEqual(&expected, 1000);
  }
}

TEST(Widen, HasTheBitsOfTheCpu) {
  for (const DType dtype : kDTypes) {
    for (const size_t count : kCounts) {
      for (const size_t offset : kOffsets) {
        for (const size_t to_offset : {0, 1, 4}) {
          SCOPED_TRACE(StrCat(DTypeName(dtype), ", ", count, ", offsets ",
                              offset, " and ", to_offset));
          Tensor from(dtype, Values(count, 3), offset);
          Tensor expected(DType::kF32, std::vector<float>(count), to_offset);
          Widen(dtype, from.data(), expected.as<float>(), count);
          for (const Grid& grid : kGrids) {
            Tensor to(DType::kF32, std::vector<float>(count), to_offset);
            RunKernel(
                "shard_widen",
                cuda::WidenArgs{dtype, from.data(), to.as<float>(), count},
                grid);
            to.ExpectEqual(&expected, count);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

// All 2^16 numbers of 16 bits.
TEST(Widen, KnowsAllHalves) {
  std::vector<uint16_t> halves(1 << 16);
  for (size_t i = 0; i < halves.size(); ++i) {
    halves[i] = static_cast<uint16_t>(i);
  }
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    std::vector<float> expected(halves.size());
    std::vector<float> to(halves.size());
    Widen(dtype, halves.data(), expected.data(), halves.size());
    RunKernel("shard_widen",
              cuda::WidenArgs{dtype, halves.data(), to.data(), halves.size()},
              kGrids[3]);
    for (size_t i = 0; i < to.size(); ++i) {
      ASSERT_TRUE(SameFloat(to[i], expected[i])) << i;
    }
  }
}

void CheckNarrow(DType dtype, size_t count, size_t offset, size_t to_offset,
                 const RandomStream* random) {
  SCOPED_TRACE(StrCat(DTypeName(dtype), ", ", count, ", offsets ", offset,
                      " and ", to_offset, ", random bits from ",
                      random == nullptr ? -1 : random->first_element));
  Tensor from(DType::kF32, Values(count, 4), offset);
  Tensor expected(dtype, std::vector<float>(count), to_offset);
  Narrow(dtype, from.as<float>(), expected.data(), count, random);
  for (const Grid& grid : kGrids) {
    Tensor to(dtype, std::vector<float>(count), to_offset);
    cuda::NarrowArgs args = {};
    args.dtype = dtype;
    args.from = from.as<float>();
    args.to = to.data();
    args.count = count;
    args.stochastic = random != nullptr;
    if (random != nullptr) args.random = *random;
    RunKernel("shard_narrow", args, grid);
    to.ExpectEqual(&expected, count);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(Narrow, HasTheBitsOfTheCpu) {
  for (const DType dtype : kDTypes) {
    for (const size_t count : kCounts) {
      for (const size_t offset : kOffsets) {
        for (const size_t to_offset : kOffsets) {
          CheckNarrow(dtype, count, offset, to_offset, nullptr);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(Narrow, RoundsStochasticallyAsTheCpu) {
  for (const size_t count : kCounts) {
    for (const int64_t first : {0, 1, 4, 255, 256, 1000, 70000}) {
      const RandomStream random = {0x123456789ABCDEF, 7, 3, first};
      for (const size_t offset : kOffsets) {
        CheckNarrow(DType::kBF16, count, offset, 0, &random);
        CheckNarrow(DType::kBF16, count, offset, offset, &random);
        if (HasFailure()) return;
      }
    }
  }
}

void CheckQ8(StateKind kind, const std::vector<float>& values, size_t offset,
             size_t codes_offset, const RandomStream* random, uint32_t tensor) {
  SCOPED_TRACE(StrCat("kind ", static_cast<int>(kind), ", ", values.size(),
                      " from ", offset, " to ", codes_offset, ", tensor ",
                      tensor, random == nullptr ? ", to nearest" : ""));
  const size_t count = values.size();
  Tensor from(DType::kF32, values, offset);
  Bytes expected_codes(count + codes_offset + 1, 0xA5);
  std::vector<float> expected_scales(count / kQ8Block + 2, 7.0f);
  EncodeQ8(kind, from.as<float>(), count, random, tensor,
           expected_codes.data() + codes_offset, expected_scales.data());
  for (const Grid& grid : kGrids) {
    Bytes codes(expected_codes.size(), 0xA5);
    std::vector<float> scales(expected_scales.size(), 7.0f);
    cuda::EncodeQ8Args args = {};
    args.kind = kind;
    args.stochastic = random != nullptr && IsRoundedStochastically(kind);
    args.tensor = tensor;
    args.from = from.as<float>();
    args.count = count;
    if (random != nullptr) args.random = *random;
    args.codes = codes.data() + codes_offset;
    args.scales = scales.data();
    RunKernel("shard_encode_q8", args, grid);
    ASSERT_EQ(codes, expected_codes);
    for (size_t i = 0; i < scales.size(); ++i) {
      ASSERT_TRUE(SameFloat(scales[i], expected_scales[i])) << "scale " << i;
    }
  }
}

TEST(EncodeQ8, HasTheBitsOfTheCpu) {
  const RandomStream random = {0x123456789ABCDEF, 7, 3, 512};
  for (const StateKind kind : {StateKind::kAverage, StateKind::kSquareAverage,
                               StateKind::kSquareMaximum}) {
    for (const size_t count : kCounts) {
      for (uint32_t seed = 0; seed < 4; ++seed) {
        std::vector<float> values = Values(count, seed);
        for (float& value : values) {
          if (kind != StateKind::kAverage) value = std::fabs(value);
          // Two seeds have no values that determine the scale of a block.
          if (seed >= 2 && !(std::fabs(value) < 1e10f)) value = 0.5f;
          if (seed == 3) value *= 0x1p-120f;
        }
        for (const size_t offset : {0, 1, 4}) {
          CheckQ8(kind, values, offset, offset, nullptr, 1);
          CheckQ8(kind, values, offset, offset, &random, 1);
          CheckQ8(kind, values, offset, offset, &random, 2);
          CheckQ8(kind, values, 0, offset, &random, 1);
        }
        if (HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace shard::casts_test
