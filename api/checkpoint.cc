// SPDX-License-Identifier: Apache-2.0
//
// Saves and loads checkpoints of an engine, and sets its blobs.

#include <memory>
#include <string>
#include <utility>

#include "api/collective.h"
#include "api/error.h"
#include "api/handles.h"
#include "api/options.h"
#include "api/progress.h"
#include "api/state_options.h"
#include "api/text.h"
#include "core/engine/engine.h"
#include "core/engine/state/checkpoints.h"

namespace {

using shard::Deadline;
using shard::LoadOptions;
using shard::LoadReport;
using shard::SaveOptions;
using shard::Status;
using shard::api::CommOf;
using shard::api::Guard;
using shard::api::GuardCollective;
using shard::api::GuardTraining;
using shard::api::ReadOptions;
using shard::api::ReadStateFilter;

// Reads the arguments of a save. A wrong argument is returned as an error,
// which the engine tells the other ranks, as everywhere in this file.
shard::StatusOr<SaveOptions> ToSaveOptions(const shard::Plan& plan,
                                           const char* root,
                                           const shard_save_options* given,
                                           bool async) {
  shard_save_options read;
  SHARD_RETURN_IF_ERROR(ReadOptions("shard_save_options", given, &read));
  SHARD_API_REQUIRE(root);
  SaveOptions options;
  SHARD_RETURN_IF_ERROR(ReadStateFilter(plan, read.filter, &options.state));
  SHARD_ASSIGN_OR_RETURN(options.overwrite,
                         shard::api::ReadFlag("overwrite", read.overwrite));
  options.async = async;
  if (read.timeout > 0) options.timeout = read.timeout;
  SHARD_ASSIGN_OR_RETURN(options.threads,
                         shard::api::ReadThreads(read.threads));
  options.keep_last = read.keep_last;
  options.keep_every = read.keep_every;
  options.progress =
      shard::api::ToProgress(read.progress, read.progress_user_data);
  return options;
}

}  // namespace

extern "C" {

shard_error* shard_checkpoint_save(shard_engine* engine, const char* root,
                                   const shard_save_options* options,
                                   shard_save** save) noexcept {
  if (save != nullptr) *save = nullptr;
  return GuardCollective(CommOf(engine), [&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    // Made before the save begins: after an error nothing calls the host's
    // progress function.
    std::unique_ptr<shard_save> handle;
    if (save != nullptr) handle = std::make_unique<shard_save>();
    SHARD_ASSIGN_OR_RETURN(
        auto started,
        engine->engine->Save(root == nullptr ? "" : root,
                             ToSaveOptions(engine->engine->plan(), root,
                                           options, save != nullptr)));
    if (save == nullptr) return Status();
    handle->save = std::move(started);
    *save = handle.release();
    return Status();
  });
}

int32_t shard_save_done(const shard_save* save) noexcept {
  const bool runs = save != nullptr && save->opened_here.Is();
  return runs && !save->save->IsDone() ? 0 : 1;
}

shard_error* shard_save_wait(shard_save* save, double timeout) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(save);
    return save->save->Wait(timeout > 0 ? Deadline::After(timeout)
                                        : save->save->deadline());
  });
}

void shard_save_free(shard_save* save) noexcept { delete save; }

shard_error* shard_checkpoint_load(shard_engine* engine, const char* path,
                                   const shard_load_options* options,
                                   shard_load_report* report) noexcept {
  return GuardTraining(CommOf(engine), [&]() -> Status {
    shard::api::ClearWithoutHandle(CommOf(engine), "shard_load_report", report);
    SHARD_API_REQUIRE_HANDLE(engine);
    LoadReport loaded;
    const auto read = [&]() -> shard::StatusOr<LoadOptions> {
      SHARD_ASSIGN_OR_RETURN(
          LoadOptions ready,
          shard::api::ReadLoadOptions(engine->engine->plan(), options, report));
      SHARD_API_REQUIRE(path);
      return ready;
    };
    SHARD_RETURN_IF_ERROR(
        engine->engine->Load(path == nullptr ? "" : path, read(), &loaded));
    engine->last_load_report_json = loaded.match.ToJson();
    shard::api::WriteLoadReport(loaded, report);
    return Status();
  });
}

shard_error* shard_engine_last_load_report_json(const shard_engine* engine,
                                                char* buffer, size_t capacity,
                                                size_t* length) noexcept {
  if (length != nullptr) *length = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    return shard::api::CopyText(engine->last_load_report_json, buffer, capacity,
                                length);
  });
}

shard_error* shard_engine_set_blob(shard_engine* engine, const char* name,
                                   int32_t rule, const void* data,
                                   size_t bytes) noexcept {
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    SHARD_API_REQUIRE(name);
    if (bytes > 0) SHARD_API_REQUIRE_HOSTS(data);
    return engine->engine->checkpoints().SetBlob(
        name, static_cast<shard::BlobRule>(rule), data, bytes);
  });
}

shard_error* shard_engine_blob(const shard_engine* engine, const char* name,
                               const void** data, size_t* bytes) noexcept {
  if (data != nullptr) *data = nullptr;
  if (bytes != nullptr) *bytes = 0;
  return Guard([&]() -> Status {
    SHARD_API_REQUIRE_HANDLE(engine);
    SHARD_API_REQUIRE(name);
    const shard::HostBlob* const blob =
        engine->engine->checkpoints().FindBlob(name);
    if (blob == nullptr) {
      return shard::NotFound("the engine has no blob '", name,
                             "': it was neither set nor loaded for this rank");
    }
    if (data != nullptr) *data = blob->content.data();
    if (bytes != nullptr) *bytes = blob->content.size();
    return Status();
  });
}

}  // extern "C"
