// SPDX-License-Identifier: Apache-2.0
//
// The options of checkpoints and state dicts. shard/checkpoint.h and
// shard/state.h have the meaning and the default of each field: 0, an empty
// list or function is the default.

#ifndef SHARD_CHECKPOINT_OPTIONS_HPP_
#define SHARD_CHECKPOINT_OPTIONS_HPP_

#include <cstdint>
#include <vector>

#include "shard/arguments.hpp"
#include "shard/callback.hpp"
#include "shard/checkpoint.h"
#include "shard/state.h"

namespace shard {

enum class Content : shard_content {
  all = SHARD_CONTENT_ALL,
  model = SHARD_CONTENT_MODEL,
  optimizer = SHARD_CONTENT_OPTIMIZER
};

// Selects the part of a training state: shard_state_filter.
struct StateFilter {
  Content content = Content::all;
  bool ignore_frozen = false;
  std::vector<ModuleId> submodules = {};
  bool strip_prefix = false;
};

// The options of shard_save_options.
struct SaveOptions {
  double timeout = 0;
  StateFilter filter = {};
  bool overwrite = false;
  std::int32_t threads = 0;
  std::int64_t keep_last = 0;
  std::int64_t keep_every = 0;
  Progress progress = {};
};

// The options of shard_load_options.
struct LoadOptions {
  double timeout = 0;
  StateFilter filter = {};
  bool allow_mismatch = false;
  bool convert = false;
  bool strip_leading_module = false;
  bool skip_verify = false;
  std::int32_t threads = 0;
  Progress progress = {};
};

// The options of shard_verify_options.
struct VerifyOptions {
  std::int32_t threads = 0;
  Progress progress = {};
};

// The options of shard_convert_options.
struct ConvertOptions {
  Content content = Content::all;
  bool overwrite = false;
  std::int32_t threads = 0;
  DType dtype = {};
  std::int32_t world_size = 0;
  bool expand_aliases = false;
  std::uint64_t max_shard_bytes = 0;
  Progress progress = {};
};

// The options of shard_state_dict_options.
struct StateDictOptions {
  double timeout = 0;
  StateFilter filter = {};
  bool copy = false;
};

namespace detail {

// Each to_c returns the options of the C interface, which point into the other
// arguments.

inline shard_state_filter to_c(const StateFilter& filter,
                               std::vector<std::int32_t>& submodules) {
  submodules = raw(filter.submodules);
  return {
      .content = static_cast<shard_content>(filter.content),
      .ignore_frozen = filter.ignore_frozen,
      .submodules = submodules.data(),
      .num_submodules = submodules.size(),
      .strip_prefix = filter.strip_prefix,
      .reserved = 0,
  };
}

inline shard_save_options to_c(const SaveOptions& options,
                               std::vector<std::int32_t>& submodules,
                               ProgressCall& progress) {
  return {
      .struct_size = sizeof(shard_save_options),
      .timeout = options.timeout,
      .filter = to_c(options.filter, submodules),
      .overwrite = options.overwrite,
      .threads = options.threads,
      .keep_last = options.keep_last,
      .keep_every = options.keep_every,
      .progress = progress.function(),
      .progress_user_data = &progress,
  };
}

inline shard_load_options to_c(const LoadOptions& options,
                               std::vector<std::int32_t>& submodules,
                               ProgressCall& progress) {
  return {
      .struct_size = sizeof(shard_load_options),
      .timeout = options.timeout,
      .filter = to_c(options.filter, submodules),
      .allow_mismatch = options.allow_mismatch,
      .convert = options.convert,
      .strip_leading_module = options.strip_leading_module,
      .skip_verify = options.skip_verify,
      .threads = options.threads,
      .reserved = 0,
      .progress = progress.function(),
      .progress_user_data = &progress,
  };
}

inline shard_verify_options to_c(const VerifyOptions& options,
                                 ProgressCall& progress) {
  return {
      .struct_size = sizeof(shard_verify_options),
      .threads = options.threads,
      .reserved = 0,
      .progress = progress.function(),
      .progress_user_data = &progress,
  };
}

inline shard_convert_options to_c(const ConvertOptions& options,
                                  ProgressCall& progress) {
  return {
      .struct_size = sizeof(shard_convert_options),
      .content = static_cast<shard_content>(options.content),
      .overwrite = options.overwrite,
      .threads = options.threads,
      .dtype = static_cast<shard_dtype>(options.dtype),
      .world_size = options.world_size,
      .expand_aliases = options.expand_aliases,
      .max_shard_bytes = options.max_shard_bytes,
      .progress = progress.function(),
      .progress_user_data = &progress,
  };
}

inline shard_state_dict_options to_c(const StateDictOptions& options,
                                     std::vector<std::int32_t>& submodules) {
  return {
      .struct_size = sizeof(shard_state_dict_options),
      .timeout = options.timeout,
      .filter = to_c(options.filter, submodules),
      .copy = options.copy,
      .reserved = 0,
  };
}

}  // namespace detail
}  // namespace shard

#endif  // SHARD_CHECKPOINT_OPTIONS_HPP_
