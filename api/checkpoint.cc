// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints of an engine.

#include <string>
#include <utility>

#include "api/checkpoint_options.h"
#include "api/collective.h"
#include "api/error.h"
#include "api/handles.h"
#include "api/options.h"
#include "api/text.h"
#include "core/engine/checkpoints.h"
#include "core/engine/engine.h"

namespace {

using shard::Deadline;
using shard::InvalidArgument;
using shard::LoadOptions;
using shard::LoadReport;
using shard::SaveOptions;
using shard::StateOptions;
using shard::Status;
using shard::api::CheckFlag;
using shard::api::Guard;
using shard::api::GuardCollective;
using shard::api::ReadOptions;

// What both kinds of options say of what is meant.
template <typename Options>
Status ReadStateOptions(const Options& from, StateOptions* to) {
  to->content = static_cast<shard::StateContent>(from.content);
  SHARD_RETURN_IF_ERROR(
      CheckFlag("ignore_frozen", from.ignore_frozen, &to->ignore_frozen));
  SHARD_RETURN_IF_ERROR(
      CheckFlag("strip_prefix", from.strip_prefix, &to->strip_prefix));
  if (from.num_submodules < 0 ||
      (from.num_submodules > 0 && from.submodules == nullptr)) {
    return InvalidArgument(
        "num_submodules is ", from.num_submodules,
        from.submodules == nullptr ? ", submodules NULL" : "",
        "; allowed: 0 and above, with as many submodules");
  }
  to->submodules.assign(from.submodules, from.submodules + from.num_submodules);
  return Status();
}

// An error is what is wrong with the arguments on this rank: for the engine to
// tell the others, as everywhere here.
shard::StatusOr<SaveOptions> ToSaveOptions(const shard_engine* engine,
                                           const char* root,
                                           const shard_save_options* given,
                                           bool async) {
  shard_save_options read;
  SHARD_RETURN_IF_ERROR(ReadOptions("shard_save_options", given, &read));
  SHARD_API_REQUIRE(engine);
  SHARD_API_REQUIRE(root);
  SaveOptions options;
  SHARD_RETURN_IF_ERROR(ReadStateOptions(read, &options.state));
  SHARD_RETURN_IF_ERROR(
      CheckFlag("overwrite", read.overwrite, &options.overwrite));
  options.async = async;
  if (read.timeout > 0) options.timeout = read.timeout;
  if (read.threads != 0) options.threads = read.threads;
  options.keep_last = read.keep_last;
  options.keep_every = read.keep_every;
  options.progress =
      shard::api::ProgressOf(read.progress, read.progress_user_data);
  return options;
}

shard::StatusOr<LoadOptions> ToLoadOptions(const char* path,
                                           const shard_load_options* given,
                                           shard_load_report* report) {
  if (report != nullptr) {
    SHARD_RETURN_IF_ERROR(shard::api::ClearResult("shard_load_report", report));
  }
  shard_load_options read;
  SHARD_RETURN_IF_ERROR(ReadOptions("shard_load_options", given, &read));
  SHARD_RETURN_IF_ERROR(
      shard::api::CheckReserved("shard_load_options", read.reserved));
  SHARD_API_REQUIRE(path);
  LoadOptions options;
  SHARD_RETURN_IF_ERROR(ReadStateOptions(read, &options.state));
  bool not_strict = false;
  bool no_verify = false;
  SHARD_RETURN_IF_ERROR(CheckFlag("not_strict", read.not_strict, &not_strict));
  SHARD_RETURN_IF_ERROR(CheckFlag("no_verify", read.no_verify, &no_verify));
  SHARD_RETURN_IF_ERROR(
      CheckFlag("convert", read.convert, &options.rules.convert));
  SHARD_RETURN_IF_ERROR(CheckFlag("strip_leading_module",
                                  read.strip_leading_module,
                                  &options.rules.strip_leading_module));
  options.rules.strict = !not_strict;
  options.verify = !no_verify;
  if (read.timeout > 0) options.timeout = read.timeout;
  if (read.threads != 0) options.threads = read.threads;
  options.progress =
      shard::api::ProgressOf(read.progress, read.progress_user_data);
  return options;
}

void WriteReport(const LoadReport& loaded, shard_load_report* report) {
  shard_load_report out = SHARD_LOAD_REPORT_INIT;
  out.step = loaded.step;
  out.saved_world_size = loaded.saved_world_size;
  out.loaded = loaded.match.loaded;
  out.converted = loaded.match.converted;
  out.missing = static_cast<int64_t>(loaded.match.missing.size());
  out.unexpected = static_cast<int64_t>(loaded.match.unexpected.size());
  shard::api::WriteResult(out, report);
}

shard::Communicator* CommOf(const shard_engine* engine) {
  return engine == nullptr ? nullptr : engine->engine->comm();
}

}  // namespace

extern "C" {

shard_error* shard_checkpoint_save(shard_engine* engine, const char* root,
                                   const shard_save_options* options,
                                   shard_async** async) noexcept {
  if (async != nullptr) *async = nullptr;
  return GuardCollective(CommOf(engine), [&]() -> Status {
    SHARD_API_REQUIRE(engine);
    SHARD_ASSIGN_OR_RETURN(
        auto save, engine->engine->Save(
                       root == nullptr ? "" : root,
                       ToSaveOptions(engine, root, options, async != nullptr)));
    if (async != nullptr) *async = new shard_async{std::move(save)};
    return Status();
  });
}

int32_t shard_async_done(const shard_async* async) noexcept {
  return async == nullptr || async->save->Done() ? 1 : 0;
}

shard_error* shard_async_wait(shard_async* async, double timeout) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(async);
    return async->save->Wait(timeout > 0 ? Deadline::After(timeout)
                                         : async->save->deadline());
  });
}

void shard_async_free(shard_async* async) noexcept { delete async; }

shard_error* shard_checkpoint_load(shard_engine* engine, const char* path,
                                   const shard_load_options* options,
                                   shard_load_report* report) noexcept {
  return GuardCollective(CommOf(engine), [&]() -> Status {
    SHARD_API_REQUIRE(engine);
    LoadReport loaded;
    SHARD_RETURN_IF_ERROR(
        engine->engine->Load(path == nullptr ? "" : path,
                             ToLoadOptions(path, options, report), &loaded));
    engine->load_json = loaded.match.ToJson();
    if (report != nullptr) WriteReport(loaded, report);
    return Status();
  });
}

shard_error* shard_engine_load_json(const shard_engine* engine, char* buffer,
                                    size_t capacity, size_t* length) noexcept {
  if (length != nullptr) *length = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(engine);
    return shard::api::CopyText(engine->load_json, buffer, capacity, length);
  });
}

shard_error* shard_engine_set_blob(shard_engine* engine, const char* name,
                                   int32_t rule, const void* data,
                                   size_t bytes) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(engine);
    SHARD_API_REQUIRE(name);
    if (bytes > 0) SHARD_API_REQUIRE(data);
    return engine->engine->checkpoints().SetBlob(
        name, static_cast<shard::BlobRule>(rule), data, bytes);
  });
}

shard_error* shard_engine_blob(const shard_engine* engine, const char* name,
                               const void** data, size_t* bytes) noexcept {
  if (data != nullptr) *data = nullptr;
  if (bytes != nullptr) *bytes = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE(engine);
    SHARD_API_REQUIRE(name);
    SHARD_API_REQUIRE(data);
    SHARD_API_REQUIRE(bytes);
    const shard::HostBlob* const blob =
        engine->engine->checkpoints().FindBlob(name);
    if (blob == nullptr) {
      return shard::NotFound("the engine has no blob '", name,
                             "': it was neither set nor loaded for this rank");
    }
    *data = blob->content.data();
    *bytes = blob->content.size();
    return Status();
  });
}

}  // extern "C"
