// SPDX-License-Identifier: Apache-2.0

#include "core/device/cuda/kernels.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "core/base/strings.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/kernels_fatbin.h"
#include "kernels/cuda/random.h"

namespace shard::cuda {

namespace {

constexpr const char* kUpdateNames[kNumElementFormulas] = {
#define SHARD_KERNEL_NAME(Name) "shard_update_" #Name,
    SHARD_ELEMENT_FORMULAS(SHARD_KERNEL_NAME)
#undef SHARD_KERNEL_NAME
};

}  // namespace

Kernels::Kernels(std::shared_ptr<Context> context)
    : context_(std::move(context)), owner_(::getpid()) {}

Kernels::~Kernels() {
  if (module_ == nullptr || ::getpid() != owner_) return;
  if (context_->is_abandoned()) return;
  const Context::Current current(*context_);
  context_->api().ModuleUnload(module_);
}

StatusOr<std::shared_ptr<const Kernels>> Kernels::Load(
    std::shared_ptr<Context> context) {
  std::shared_ptr<Kernels> kernels(new Kernels(std::move(context)));
  const Context& loaded = *kernels->context_;
  SHARD_RETURN_IF_ERROR(
      loaded.Run([&] { return kernels->LoadModule(); })
          .WithContext(StrCat("the kernels for ", loaded.name())));
  return std::shared_ptr<const Kernels>(std::move(kernels));
}

Status Kernels::LoadModule() {
  const CuResult result =
      context_->api().ModuleLoadData(&module_, shard_fatbin_kernels_fatbin);
  if (result != CuResult::kSuccess) {
    const Status status =
        context_->driver()->ToStatus(result, "cuModuleLoadData");
    // The driver's error for a module without code differs with its version.
    if (shard_fatbin_kernels_fatbin_size == 0 &&
        status.code() != StatusCode::kResourceExhausted) {
      return BackendUnavailable(
          status.message(),
          "; libshard_cuda.so was built without a CUDA toolkit, and has no "
          "code for GPUs: build it with one");
    }
    if (status.code() != StatusCode::kBackendUnavailable) return status;
    return Status(status.code(),
                  StrCat(status.message(), "; the driver is for CUDA ",
                         Driver::VersionText(context_->driver()->version()),
                         ": update it"));
  }
  for (const bool random : {false, true}) {
    const uint32_t shared_bytes = random ? AesTable::kSharedBytes : 0;
    const size_t i = random ? 1 : 0;
    for (size_t f = 0; f < kNumElementFormulas; ++f) {
      SHARD_ASSIGN_OR_RETURN(updates_[f][i],
                             Find(kUpdateNames[f], shared_bytes));
    }
    SHARD_ASSIGN_OR_RETURN(lamb_apply_[i],
                           Find("shard_lamb_apply", shared_bytes));
    SHARD_ASSIGN_OR_RETURN(adafactor_apply_[i],
                           Find("shard_adafactor_apply", shared_bytes));
    SHARD_ASSIGN_OR_RETURN(muon_apply_[i],
                           Find("shard_muon_apply", shared_bytes));
    SHARD_ASSIGN_OR_RETURN(narrow_[i], Find("shard_narrow", shared_bytes));
    SHARD_ASSIGN_OR_RETURN(encode_q8_[i],
                           Find("shard_encode_q8", shared_bytes));
  }
  SHARD_ASSIGN_OR_RETURN(lamb_moments_, Find("shard_lamb_moments", 0));
  SHARD_ASSIGN_OR_RETURN(adafactor_sums_, Find("shard_adafactor_sums", 0));
  SHARD_ASSIGN_OR_RETURN(adafactor_states_, Find("shard_adafactor_states", 0));
  SHARD_ASSIGN_OR_RETURN(adafactor_scales_, Find("shard_adafactor_scales", 0));
  SHARD_ASSIGN_OR_RETURN(adafactor_squares_,
                         Find("shard_adafactor_squares", 0));
  SHARD_ASSIGN_OR_RETURN(muon_momentum_, Find("shard_muon_momentum", 0));
  SHARD_ASSIGN_OR_RETURN(muon_normalize_, Find("shard_muon_normalize", 0));
  SHARD_ASSIGN_OR_RETURN(sum_squares_, Find("shard_sum_squares", 0));
  SHARD_ASSIGN_OR_RETURN(sum_gradients_, Find("shard_sum_gradients", 0));
  SHARD_ASSIGN_OR_RETURN(sum_blocks_, Find("shard_sum_blocks", 0));
  SHARD_ASSIGN_OR_RETURN(widen_, Find("shard_widen", 0));
  SHARD_ASSIGN_OR_RETURN(fill_, Find("shard_fill", 0));
  SHARD_ASSIGN_OR_RETURN(count_, Find("shard_count", 0));
  SHARD_ASSIGN_OR_RETURN(add_to_norm_, Find("shard_add_to_norm", 0));
  SHARD_ASSIGN_OR_RETURN(finish_norm_, Find("shard_finish_norm", 0));
  return Status();
}

StatusOr<Kernel> Kernels::Find(const char* name, uint32_t shared_bytes) const {
  const Driver* const driver = context_->driver();
  Kernel kernel;
  kernel.shared_bytes = shared_bytes;
  SHARD_CUDA_CALL(driver, ModuleGetFunction, &kernel.function, module_, name);
  int blocks = 0;
  SHARD_CUDA_CALL(driver, OccupancyMaxActiveBlocksPerMultiprocessor, &blocks,
                  kernel.function, kMaxThreads, shared_bytes);
  kernel.max_blocks =
      static_cast<uint32_t>(std::max(blocks, 1)) * context_->multiprocessors();
  return kernel;
}

}  // namespace shard::cuda
