// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints and safetensors files made from others.

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include "api/error.h"
#include "api/handles.h"
#include "api/options.h"
#include "api/progress.h"
#include "core/base/dtype.h"
#include "core/base/file_env.h"
#include "core/checkpoint/safetensors/safetensors_export.h"
#include "core/checkpoint/store/converting_store.h"
#include "core/checkpoint/write_checkpoint.h"

namespace {

using shard::ConversionOptions;
using shard::InvalidArgument;
using shard::Status;
using shard::StatusOr;
using shard::api::Guard;
using shard::api::ReadFlag;
using shard::api::ReadThreads;

StatusOr<ConversionOptions> ToConversion(const shard_convert_options& read) {
  ConversionOptions options;
  if (read.content < SHARD_CONTENT_ALL ||
      read.content > SHARD_CONTENT_OPTIMIZER) {
    return InvalidArgument("content is ", read.content,
                           "; allowed: SHARD_CONTENT_ALL (0), _MODEL (1) and "
                           "_OPTIMIZER (2)");
  }
  options.model = read.content != SHARD_CONTENT_OPTIMIZER;
  options.states = read.content != SHARD_CONTENT_MODEL;
  if (read.dtype == 0) return options;
  if (read.dtype < SHARD_F32 || read.dtype > SHARD_F64) {
    return InvalidArgument("dtype is ", read.dtype,
                           "; allowed: SHARD_F32 (1), _BF16 (2), _F16 (3), "
                           "_F64 (4), or 0 for none");
  }
  options.dtype = static_cast<shard::DType>(read.dtype);
  return options;
}

// Checks that an option of the other format is not set.
Status CheckUnset(const char* name, bool set, const char* format) {
  if (!set) return Status();
  return InvalidArgument(name, " is set, which is for ", format, " only");
}

}  // namespace

extern "C" {

shard_error* shard_checkpoint_convert(
    const shard_checkpoint* checkpoint, const char* root,
    const shard_convert_options* options) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(checkpoint);
    SHARD_API_REQUIRE(root);
    shard_convert_options read;
    SHARD_RETURN_IF_ERROR(
        shard::api::ReadOptions("shard_convert_options", options, &read));
    SHARD_RETURN_IF_ERROR(
        CheckUnset("expand_aliases", read.expand_aliases != 0, "safetensors"));
    SHARD_RETURN_IF_ERROR(CheckUnset("max_shard_bytes",
                                     read.max_shard_bytes != 0, "safetensors"));
    shard::WriteCheckpointOptions write;
    SHARD_ASSIGN_OR_RETURN(write.conversion, ToConversion(read));
    SHARD_ASSIGN_OR_RETURN(write.overwrite,
                           ReadFlag("overwrite", read.overwrite));
    SHARD_ASSIGN_OR_RETURN(write.threads, ReadThreads(read.threads));
    write.world_size = read.world_size;
    write.progress =
        shard::api::ToProgress(read.progress, read.progress_user_data);
    return shard::WriteCheckpoint(shard::FileEnv::Posix(), *checkpoint->store,
                                  root, write);
  });
}

shard_error* shard_checkpoint_export(
    const shard_checkpoint* checkpoint, const char* path,
    const shard_convert_options* options) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(checkpoint);
    SHARD_API_REQUIRE(path);
    shard_convert_options read;
    SHARD_RETURN_IF_ERROR(
        shard::api::ReadOptions("shard_convert_options", options, &read));
    SHARD_RETURN_IF_ERROR(
        CheckUnset("world_size", read.world_size != 0, "checkpoints"));
    SHARD_ASSIGN_OR_RETURN(ConversionOptions conversion, ToConversion(read));
    // The format has no q8.
    conversion.decode_q8 = true;
    shard::SafetensorsExportOptions write;
    SHARD_ASSIGN_OR_RETURN(write.write.replace,
                           ReadFlag("overwrite", read.overwrite));
    SHARD_ASSIGN_OR_RETURN(write.expand_aliases,
                           ReadFlag("expand_aliases", read.expand_aliases));
    SHARD_ASSIGN_OR_RETURN(write.threads, ReadThreads(read.threads));
    write.write.max_shard_bytes = read.max_shard_bytes;
    write.progress =
        shard::api::ToProgress(read.progress, read.progress_user_data);
    const shard::ConvertingStore store(*checkpoint->store, conversion);
    std::vector<size_t> all(store.num_tensors());
    std::iota(all.begin(), all.end(), size_t{0});
    return shard::ExportSafetensors(shard::FileEnv::Posix(), store, all, path,
                                    write);
  });
}

}  // extern "C"
