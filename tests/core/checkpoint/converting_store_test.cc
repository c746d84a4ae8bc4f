// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/store/converting_store.h"

#include <cstring>
#include <string>
#include <vector>

#include "core/checkpoint/store/read_converted.h"
#include "kernels/cpu/q8.h"
#include "tests/core/base/expect_status.h"
#include "tests/core/base/temp_folder.h"
#include "tests/core/checkpoint/sample_checkpoint.h"

namespace shard::testing::converting_store_test {
namespace {

constexpr const char* kQ8Key = "state.layer.weight.exp_avg";

template <typename T>
std::vector<T> ValuesOf(const TensorStore& store, std::string_view key) {
  const int64_t found = store.Find(key);
  EXPECT_GE(found, 0) << key;
  if (found < 0) return {};
  const std::string bytes = BytesOf(store, static_cast<size_t>(found));
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

ElementType TypeOf(const TensorStore& store, std::string_view key) {
  return store.tensor(static_cast<size_t>(store.Find(key))).type;
}

class ConvertingStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(SampleBuilder().Write(FileEnv::Posix(), folder_ / "sample"));
    sample_ = OpenStore(folder_ / "sample");
    ASSERT_NE(sample_, nullptr);
  }

  TempFolder folder_;
  std::shared_ptr<const FileStore> sample_;
};

TEST_F(ConvertingStoreTest, ChangesNothingWithoutOptions) {
  EXPECT_EQ(TensorsOf(ConvertingStore(*sample_, {})), TensorsOf(*sample_));
}

TEST_F(ConvertingStoreTest, TakesParametersOrStates) {
  ConversionOptions options;
  options.states = false;
  const ConvertingStore model(*sample_, options);
  options = {};
  options.model = false;
  const ConvertingStore states(*sample_, options);
  EXPECT_EQ(model.num_tensors() + states.num_tensors(), sample_->num_tensors());
  EXPECT_EQ(model.Find(kQ8Key), -1);
  EXPECT_EQ(states.Find("embed"), -1);
  EXPECT_GE(model.Find("count"), 0) << "buffers belong to the model";
  const auto all = TensorsOf(*sample_);
  for (const TensorStore* store : {static_cast<const TensorStore*>(&model),
                                   static_cast<const TensorStore*>(&states)}) {
    for (const auto& [key, tensor] : TensorsOf(*store)) {
      EXPECT_EQ(tensor, all.at(key)) << key;
    }
    for (size_t t = 0; t < store->num_tensors(); ++t) {
      EXPECT_EQ(store->Find(store->tensor(t).key), static_cast<int64_t>(t));
    }
  }
}

TEST_F(ConvertingStoreTest, DecodesQ8) {
  const ConversionOptions options = {.decode_q8 = true};
  const ConvertingStore store(*sample_, options);
  const auto codes = ValuesOf<uint8_t>(*sample_, kQ8Key);
  const auto scales = ValuesOf<float>(*sample_, StrCat(kQ8Key, kScaleSuffix));
  std::vector<float> expected(codes.size());
  DecodeQ8(StateKind::kSquareAverage, codes.data(), scales.data(),
           expected.data(), codes.size());
  EXPECT_EQ(ValuesOf<float>(store, kQ8Key), expected);
  EXPECT_EQ(store.Find(StrCat(kQ8Key, kScaleSuffix)), -1);
  EXPECT_EQ(TypeOf(store, kQ8Key), ElementType::kF32);
  EXPECT_EQ(TypeOf(store, "layer.weight"), ElementType::kBF16);
  EXPECT_EQ(store.num_tensors() + 2, sample_->num_tensors());
}

TEST_F(ConvertingStoreTest, ConvertsFloatsOnly) {
  for (const DType dtype :
       {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    const ConversionOptions options = {.dtype = dtype};
    const ConvertingStore store(*sample_, options);
    for (const char* key : {"embed", "head", "layer.weight", "frozen", "empty",
                            "scalar", "state.embed.exp_avg", kQ8Key}) {
      EXPECT_EQ(TypeOf(store, key), ElementTypeOf(dtype)) << key;
    }
    EXPECT_EQ(TypeOf(store, "count"), ElementType::kI64);
    EXPECT_EQ(ValuesOf<int64_t>(store, "count"),
              ValuesOf<int64_t>(*sample_, "count"));
  }
  const ConversionOptions wide = {.dtype = DType::kF64};
  const auto values = ValuesOf<float>(*sample_, "embed");
  EXPECT_EQ(ValuesOf<double>(ConvertingStore(*sample_, wide), "head"),
            std::vector<double>(values.begin(), values.end()));
}

// Slices and reads may begin within blocks of 256 elements.
TEST_F(ConvertingStoreTest, DecodesWhereverItBegins) {
  CheckpointBuilder odd(999);
  odd.AddQ8("state.w.v", 5000, 4);
  ASSERT_OK(odd.Write(FileEnv::Posix(), folder_ / "odd"));
  const auto from = OpenStore(folder_ / "odd");
  const ConversionOptions options = {.dtype = DType::kF64};
  const ConvertingStore store(*from, options);
  const auto codes = ValuesOf<uint8_t>(*from, "state.w.v");
  const auto scales = ValuesOf<float>(*from, "state.w.v.q8_scale");
  std::vector<float> expected(codes.size());
  DecodeQ8(StateKind::kSquareAverage, codes.data(), scales.data(),
           expected.data(), codes.size());
  for (const int64_t begin : {0, 1, 255, 256, 257, 998, 1000, 4999}) {
    for (const int64_t numel : {1, 2, 255, 300, 5000}) {
      const ReadRequest request = {0, begin,
                                   std::min<int64_t>(numel, 5000 - begin)};
      std::vector<double> read(static_cast<size_t>(request.numel), -1.0);
      ASSERT_OK(store.Read(
          {&request, 1}, {},
          [&](size_t, int64_t at, int64_t count, const std::byte* data) {
            std::memcpy(read.data() + (at - begin), data,
                        static_cast<size_t>(count) * sizeof(double));
            return Status();
          }));
      EXPECT_EQ(read,
                std::vector<double>(expected.begin() + begin,
                                    expected.begin() + begin + request.numel))
          << begin << " " << numel;
    }
  }
}

TEST_F(ConvertingStoreTest, ProgressCountsWhatTheSinkGets) {
  const ConversionOptions options = {.dtype = DType::kF16};
  const ConvertingStore store(*sample_, options);
  const auto embed = static_cast<size_t>(store.Find("embed"));
  const auto q8 = static_cast<size_t>(store.Find(kQ8Key));
  const ReadRequest requests[] = {{embed, 0, 700000}, {q8, 0, 301 * 257}};
  uint64_t done = 0;
  uint64_t total = 0;
  ReadOptions read;
  read.progress = [&](uint64_t d, uint64_t t) {
    EXPECT_GT(d, done);
    done = d;
    total = t;
    return true;
  };
  const auto ignore = [](size_t, int64_t, int64_t, const std::byte*) {
    return Status();
  };
  ASSERT_OK(store.Read(requests, read, ignore));
  EXPECT_EQ(total, 2u * (700000 + 301 * 257));
  EXPECT_EQ(done, total);
  read.progress = [](uint64_t, uint64_t) { return false; };
  ExpectError(store.Read(requests, read, ignore), StatusCode::kCancelled,
              {"cancelled"});
}

TEST_F(ConvertingStoreTest, RefusesWrongRequests) {
  const ConversionOptions options = {.dtype = DType::kF32};
  const ConvertingStore store(*sample_, options);
  const auto never = [](size_t, int64_t, int64_t, const std::byte*) {
    ADD_FAILURE() << "nothing is to be read";
    return Status();
  };
  const auto read = [&](const ReadRequest& request) {
    return store.Read({&request, 1}, {}, never);
  };
  ExpectError(read({store.num_tensors(), 0, 1}), StatusCode::kOutOfRange,
              {"does not exist"});
  for (const char* key : {"embed", kQ8Key}) {
    const auto tensor = static_cast<size_t>(store.Find(key));
    const int64_t numel = store.tensor(tensor).numel;
    ExpectError(read({tensor, -1, 1}), StatusCode::kOutOfRange, {key});
    ExpectError(read({tensor, 0, -1}), StatusCode::kOutOfRange, {key});
    ExpectError(read({tensor, 1, numel}), StatusCode::kOutOfRange, {key});
    EXPECT_OK(read({tensor, numel, 0}));
  }
  const auto count = static_cast<size_t>(sample_->Find("count"));
  const ConvertedRequest converted = {{count, 0, 1}, ElementType::kF32};
  ExpectInvalid(ReadConverted(*sample_, {&converted, 1}, {}, never),
                {"'count'", "i64", "cannot become f32"});
}

}  // namespace
}  // namespace shard::testing::converting_store_test
