// SPDX-License-Identifier: Apache-2.0

#include "core/engine/state/training_state.h"

#include <utility>

#include "core/base/strings.h"
#include "core/collectives/collectives.h"
#include "core/comm/check_agreement.h"
#include "core/comm/gather.h"
#include "core/engine/params/all_ranks.h"
#include "core/engine/params/host_tensors.h"
#include "core/engine/params/open_access.h"
#include "core/engine/state/describe.h"
#include "core/engine/state/gather_state.h"
#include "core/engine/state/load_state.h"
#include "core/engine/state/local_state.h"
#include "core/engine/transfer/ok_or_abort.h"

namespace shard {

namespace {

Status CheckThreads(int threads) {
  constexpr int kMost = 256;
  if (threads >= 1 && threads <= kMost) return Status();
  return InvalidArgument("threads ", threads,
                         " is out of range; allowed: 1 to ", kMost);
}

Status CheckSaveOptions(const SaveOptions& options) {
  SHARD_RETURN_IF_ERROR(CheckThreads(options.threads));
  if (options.keep_last < 0 || options.keep_every < 0) {
    return InvalidArgument("keep_last ", options.keep_last, ", keep_every ",
                           options.keep_every, "; allowed: 0 and above");
  }
  if (options.keep_every > 0 && options.keep_last == 0) {
    return InvalidArgument("keep_every ", options.keep_every,
                           " without keep_last: all are kept anyway");
  }
  return Status();
}

// Returns an error for a tensor of the host's that does not lie in its memory.
Status CheckIsHosts(const Device& device, const MemoryStore& store) {
  // Where an engine fetches its own parts, they may lie anywhere.
  if (store.fetches_parts()) return Status();
  for (size_t i = 0; i < store.num_tensors(); ++i) {
    const MemoryStore::Part& part = store.part(i);
    if (part.numel == 0) continue;
    SHARD_RETURN_IF_ERROR(
        device.CheckPlace(part.data, MemoryPlace::kHost)
            .WithContext(StrCat("load, tensor '", store.tensor(i).key, "'")));
  }
  return Status();
}

}  // namespace

StatusOr<std::shared_ptr<AsyncSave>> TrainingState::Save(
    const std::string& root, const StatusOr<SaveOptions>& options,
    const Status& known, const WorkDeadline& deadline) {
  Status local = options.status();
  if (local.ok()) local = CheckSaveOptions(*options);
  if (local.ok()) local = CheckStateOptions(plan_.model(), options->state);
  if (local.ok()) local = known;
  if (local.ok()) local = deps_.checkpoints->FinishSave(deadline.Work());
  Arguments arguments;
  if (local.ok()) {
    arguments = {"how to save", [&](FactSink* sink) {
                   DescribeState(plan_.model(), options->state, sink);
                   sink->Add("", "save", options->async);
                   sink->Add("", "overwrite", options->overwrite);
                   sink->Add("", "keep_last", options->keep_last);
                   sink->Add("", "keep_every", options->keep_every);
                 }};
  }
  SHARD_RETURN_IF_ERROR(deps_.runtime->units().EnterChange(
      Activity::kSave, local, arguments, deadline.Exchange()));
  SavedState state;
  SHARD_ASSIGN_OR_RETURN(state.access, OpenAccessOrAbort(deadline));
  state.plan = deps_.runtime->plan();
  state.memory = &memory();
  state.numbers = numbers_.Now();
  state.optimizers = deps_.hypers->optimizers();
  return deps_.checkpoints->Save(std::move(state), root, *options, deadline,
                                 deps_.comm, deps_.device);
}

StatusOr<std::unique_ptr<HostAccess>> TrainingState::OpenAccessOrAbort(
    const WorkDeadline& deadline) const {
  auto access = OpenAccess(*deps_.runtime, deps_.device, deadline.Work());
  SHARD_RETURN_IF_ERROR(OkOrAbort(deps_.comm, access.status()));
  return access;
}

Status TrainingState::AddLocal(const StateOptions& options,
                               const Deadline& deadline, MemoryStore* store) {
  SHARD_ASSIGN_OR_RETURN(std::shared_ptr<HostAccess> access,
                         OpenAccess(*deps_.runtime, deps_.device, deadline));
  if (!access->in_place()) {
    store->FetchPartsWith(
        [access, timeout = deps_.comm->timeout()](const std::byte* from,
                                                  size_t bytes, void* to) {
          const HostCopy copy = {to, from, bytes};
          return access->Fetch({&copy, 1}, Deadline::After(timeout));
        },
        [access](const std::byte* from) { return access->ReserveFor(from); });
  }
  SHARD_ASSIGN_OR_RETURN(const std::vector<StateEntry> entries,
                         ListStateEntries(plan_, options));
  for (const StateEntry& entry : entries) {
    MemoryStore::Tensor tensor;
    tensor.key = entry.key;
    tensor.type = entry.type;
    tensor.role = entry.role;
    tensor.shape = entry.shape;
    tensor.alias_of = entry.alias_of;
    tensor.codebook = CodebookOf(plan_, deps_.hypers->optimizers(), entry);
    MemoryStore::Part part;
    if (entry.alias_of < 0) {
      const OwnedElements owned = OwnedBy(plan_, entry, deps_.comm->rank());
      part.begin = owned.begin;
      part.numel = owned.numel;
      if (owned.numel > 0) {
        part.data =
            LocalData(plan_, memory(), entry, owned, deps_.comm->rank());
      }
    }
    SHARD_RETURN_IF_ERROR(store->AddPart(std::move(tensor), part));
  }
  if (options.content == StateContent::kModel) return Status();
  const bool whole = options.submodules.empty();
  for (const auto& [key, value] : numbers_.ByKey(entries, whole)) {
    SHARD_RETURN_IF_ERROR(store->AddNumber(key, value));
  }
  return Status();
}

Status TrainingState::Gather(const StatusOr<StateOptions>& options, int rank,
                             const Status& known, const WorkDeadline& deadline,
                             const EntrySink& sink) {
  Status local = options.status();
  if (local.ok()) local = known;
  std::vector<StateEntry> entries;
  if (local.ok()) {
    auto listed = ListStateEntries(plan_, *options);
    local = listed.status();
    if (listed.ok()) entries = *std::move(listed);
  }
  if (local.ok()) local = CheckRankOrAll(rank, deps_.comm->world_size());
  // The tensors follow from the options.
  Arguments arguments;
  if (local.ok()) {
    arguments = {"the arguments of gather", [&](FactSink* facts) {
                   facts->Add("", "rank", rank);
                   DescribeState(plan_.model(), *options, facts);
                 }};
  }
  SHARD_RETURN_IF_ERROR(deps_.runtime->units().EnterChange(
      Activity::kGatherState, local, arguments, deadline.Exchange()));
  SHARD_ASSIGN_OR_RETURN(const auto access, OpenAccessOrAbort(deadline));
  return GatherState(
      plan_, memory(), entries, rank, deps_.comm, deps_.device, access.get(),
      [&](size_t entry, const std::byte* data) {
        return sink(entries[entry], data);
      },
      deadline.Work());
}

Status TrainingState::LoadCheckpoint(const std::string& path,
                                     const StatusOr<LoadOptions>& options,
                                     const Status& known,
                                     const WorkDeadline& deadline,
                                     LoadReport* report) {
  *report = {};
  SHARD_RETURN_IF_ERROR(EnterLoad(options, known, deadline));
  FileEnv* const env =
      options->env == nullptr ? FileEnv::Posix() : options->env;
  SHARD_ASSIGN_OR_RETURN(const auto store,
                         Checkpoints::Open(path, env, deps_.comm, deadline));
  const Manifest* const manifest = store->manifest();
  report->path = store->describe();
  report->step = manifest == nullptr ? -1 : manifest->step();
  report->saved_world_size = manifest == nullptr ? 0 : manifest->world_size();
  SHARD_ASSIGN_OR_RETURN(const std::vector<StateEntry> entries,
                         ListStateEntries(plan_, options->state));
  // Numbers and blobs, which may be wrong, are read before memory is written.
  const bool numbers =
      manifest != nullptr && options->state.content != StateContent::kModel;
  Checkpoints::Blobs blobs;
  if (numbers) {
    auto read = Checkpoints::ReadBlobs(*store, deps_.comm->rank(),
                                       deps_.comm->world_size());
    Status local = read.status();
    if (local.ok()) local = CheckSteps(*manifest);
    SHARD_RETURN_IF_ERROR(AgreeOnStatus(deps_.comm, "load checkpoint: blobs",
                                        local, deadline.Work()));
    blobs = *std::move(read);
  }
  SHARD_ASSIGN_OR_RETURN(
      const std::vector<EntryMatch> matches,
      LoadTensors(*store, entries, *options, deadline, &report->match));
  if (!numbers) return Status();
  numbers_.Restore(options->state, entries, matches, *manifest);
  // A load of some modules keeps the run's own blobs.
  if (options->state.submodules.empty()) {
    deps_.checkpoints->ReplaceBlobs(std::move(blobs));
  }
  return Status();
}

Status TrainingState::LoadStateDict(const MemoryStore* store,
                                    const StatusOr<LoadOptions>& options,
                                    const Status& known,
                                    const WorkDeadline& deadline,
                                    LoadReport* report) {
  constexpr const char* kPhase = "load: state dict";
  *report = {};
  report->step = -1;
  Status local = known;
  if (local.ok() && store != nullptr) {
    local = CheckIsHosts(*deps_.device, *store);
  }
  SHARD_RETURN_IF_ERROR(EnterLoad(options, local, deadline));
  MemoryStore names;  // Rank 0's, on the other ranks.
  if (options->from_rank0) {
    SHARD_ASSIGN_OR_RETURN(
        const std::string text,
        BroadcastText(deps_.comm, kPhase,
                      deps_.comm->rank() == 0 ? store->EncodeCatalog() : "",
                      deadline.Exchange()));
    if (deps_.comm->rank() != 0) {
      local = names.AddCatalog(text);
      store = &names;
    }
    SHARD_RETURN_IF_ERROR(
        AgreeOnStatus(deps_.comm, kPhase, local, deadline.Exchange()));
  } else {
    SHARD_RETURN_IF_ERROR(CheckAgreement(
        deps_.comm, "the state dict",
        [&](FactSink* sink) {
          DescribeTensors(*store, sink);
          for (const auto& [key, value] : store->numbers()) {
            sink->Add("", StrCat("number '", key, "'"), value);
          }
        },
        deadline.Exchange()));
  }
  report->path = store->describe();
  SHARD_ASSIGN_OR_RETURN(const std::vector<StateEntry> entries,
                         ListStateEntries(plan_, options->state));
  // Numbers, which may be wrong, are read before memory is written.
  const auto numbers =
      numbers_.ReadByKey(entries, *store, options->state, options->rules);
  SHARD_RETURN_IF_ERROR(
      AgreeOnStatus(deps_.comm, kPhase, numbers.status(), deadline.Exchange()));
  SHARD_RETURN_IF_ERROR(
      LoadTensors(*store, entries, *options, deadline, &report->match)
          .status());
  if (options->state.content == StateContent::kModel) return Status();
  numbers_.RestoreByKey(*numbers, options->state.submodules.empty());
  if (!numbers->steps.empty()) report->step = deps_.counters->step();
  return Status();
}

Status TrainingState::EnterLoad(const StatusOr<LoadOptions>& options,
                                const Status& known,
                                const WorkDeadline& deadline) {
  Status local = options.status();
  if (local.ok()) local = CheckThreads(options->threads);
  if (local.ok()) local = CheckStateOptions(plan_.model(), options->state);
  if (local.ok()) local = known;
  if (local.ok()) local = CheckGivesParams(options->state);
  if (local.ok()) local = deps_.checkpoints->FinishSave(deadline.Work());
  Arguments arguments;
  if (local.ok()) {
    arguments = {"how to load", [&](FactSink* sink) {
                   DescribeState(plan_.model(), options->state, sink);
                   sink->Add("", "allow_mismatch", !options->rules.strict);
                   sink->Add("", "convert", options->rules.convert);
                   sink->Add("", "skip_verify", !options->verify);
                   sink->Add("", "strip_leading_module",
                             options->rules.strip_leading_module);
                   sink->Add("", "from_rank0", options->from_rank0);
                 }};
  }
  return deps_.runtime->units().EnterChange(Activity::kLoad, local, arguments,
                                            deadline.Exchange());
}

Status TrainingState::CheckGivesParams(const StateOptions& options) const {
  if (!deps_.initial->filling()) return Status();
  if (options.content != StateContent::kOptimizer &&
      options.submodules.empty() && !options.ignore_frozen) {
    return Status();
  }
  return FailedPrecondition(
      "load of a part in state FILLING: parameters have no values yet; load "
      "the whole model, or set and broadcast them first");
}

StatusOr<std::vector<EntryMatch>> TrainingState::LoadTensors(
    const TensorStore& store, const std::vector<StateEntry>& entries,
    const LoadOptions& options, const WorkDeadline& deadline,
    MatchReport* report) {
  SHARD_ASSIGN_OR_RETURN(
      std::vector<EntryMatch> matches,
      MatchState(plan_, entries, store, options.state, options.rules, report));
  bool missing_params = false;
  for (size_t e = 0; e < entries.size(); ++e) {
    missing_params |= entries[e].is_param() && entries[e].alias_of < 0 &&
                      entries[e].numel > 0 &&
                      matches[e].kind == EntryMatch::Kind::kNone;
  }
  if (deps_.initial->filling() && missing_params) {
    return FailedPrecondition(
        store.describe(),
        " lacks parameters, and in state FILLING they have no values yet; set "
        "and broadcast them first, then load");
  }

  SHARD_ASSIGN_OR_RETURN(const auto access, OpenAccessOrAbort(deadline));
  StateReader reader(plan_, memory(), deps_.hypers->optimizers(), deps_.comm,
                     access.get(), &deps_.runtime->compute(), deadline);
  Status local = CheckElements(store, entries, matches, options);
  if (local.ok()) {
    local = reader.Reserve(store, entries, matches, options.from_rank0);
  }
  SHARD_RETURN_IF_ERROR(
      AgreeOnStatus(deps_.comm, "load: elements", local, deadline.Exchange()));

  // Memory is written from here on: after an error the old values are lost.
  const bool params = options.state.content != StateContent::kOptimizer;
  ReadOptions read;
  read.threads = options.threads;
  read.verify = options.verify;
  read.progress = options.progress;
  const Status done =
      options.from_rank0
          ? reader.ReadFromRank0(store, entries, matches, read)
          : AgreeOnStatus(deps_.comm, "load: read",
                          reader.Read(store, entries, matches, read),
                          deadline.Work());
  // In module-walk order.
  std::vector<HostTensorId> host_tensors;
  for (size_t e = 0; e < entries.size(); ++e) {
    if (!entries[e].is_host_tensor()) continue;
    if (matches[e].kind == EntryMatch::Kind::kNone) continue;
    host_tensors.push_back(entries[e].host_tensor);
  }
  if (!done.ok()) {
    // Resets tensors that were written in part: no mixture of two states
    // remains.
    if (params) deps_.initial->StartFilling();
    ZeroHostTensors(plan_, memory(), host_tensors);
    Reset(deadline.Work());
    return done;
  }
  if (!params) return matches;
  Transfers& transfers = deps_.runtime->transfers();
  Stream& moving = deps_.runtime->moving();
  const Deadline published = deadline.Exchange();  // As when a step publishes.
  const CollectiveDeadline scope(transfers.collectives(), published);
  SHARD_RETURN_IF_ERROR(SendHostTensors(
      plan_, memory(), host_tensors, kHostTensorOwner, deps_.comm, published));
  for (size_t b = 0; b < memory().buffers().size(); ++b) {
    SHARD_RETURN_IF_ERROR(transfers.Publish(b, &moving));
  }
  SHARD_RETURN_IF_ERROR(OkOrAbort(deps_.comm, moving.Synchronize(published)));
  SHARD_RETURN_IF_ERROR(transfers.Finish(published));
  SHARD_RETURN_IF_ERROR(
      OkOrAbort(deps_.comm, deps_.runtime->compute().Synchronize(published)));
  deps_.initial->Finish();
  return matches;
}

Status TrainingState::CheckElements(const TensorStore& store,
                                    const std::vector<StateEntry>& entries,
                                    const std::vector<EntryMatch>& matches,
                                    const LoadOptions& options) const {
  const int rank = deps_.comm->rank();
  if (options.from_rank0 && rank != 0) return Status();
  for (size_t e = 0; e < entries.size(); ++e) {
    if (matches[e].kind == EntryMatch::Kind::kNone) continue;
    OwnedElements needed{0, entries[e].numel, 0};
    if (!options.from_rank0) needed = OwnedBy(plan_, entries[e], rank);
    if (store.Has(matches[e].tensor, needed.begin, needed.numel)) continue;
    return OutOfRange("'", entries[e].key, "': ", store.describe(),
                      " has not all of the ", needed.numel,
                      " elements from number ", needed.begin,
                      " on that are loaded from it here");
  }
  return Status();
}

void TrainingState::Reset(const Deadline& deadline) {
  Stream& compute = deps_.runtime->compute();
  for (const EngineBuffer& buffer : memory().buffers()) {
    for (size_t s = 0; s < buffer.states.size(); ++s) {
      compute.FillZeros(buffer.states[s],
                        DTypeBytes(buffer.plan->states[s].tensor.dtype,
                                   buffer.plan->StateLayout(s).shard_numel()));
    }
  }
  deps_.counters->Reset();
  // The next call waits for the stream, and returns its error.
  (void)FillMasters(*deps_.runtime, deps_.comm, deadline).ok();
}

}  // namespace shard
