// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/host_kernels.h"

#include "kernels/cuda/kernels.cu"

namespace shard::cuda {

std::span<const HostKernel> HostKernels() {
  static constexpr HostKernel kKernels[] = {
      {"shard_adafactor_apply", sizeof(AdafactorArgs), shard_adafactor_apply},
      {"shard_adafactor_scales", sizeof(AdafactorArgs), shard_adafactor_scales},
      {"shard_adafactor_squares", sizeof(AdafactorArgs),
       shard_adafactor_squares},
      {"shard_adafactor_states", sizeof(AdafactorArgs), shard_adafactor_states},
      {"shard_adafactor_sums", sizeof(AdafactorArgs), shard_adafactor_sums},
      {"shard_add_to_norm", sizeof(AddToNormArgs), shard_add_to_norm},
      {"shard_count", sizeof(CountArgs), shard_count},
      {"shard_encode_q8", sizeof(EncodeQ8Args), shard_encode_q8},
      {"shard_fill", sizeof(FillArgs), shard_fill},
      {"shard_finish_norm", sizeof(FinishNormArgs), shard_finish_norm},
      {"shard_lamb_apply", sizeof(UpdateTensorsArgs), shard_lamb_apply},
      {"shard_lamb_moments", sizeof(UpdateTensorsArgs), shard_lamb_moments},
      {"shard_muon_apply", sizeof(MuonArgs), shard_muon_apply},
      {"shard_muon_momentum", sizeof(MuonArgs), shard_muon_momentum},
      {"shard_muon_normalize", sizeof(MuonArgs), shard_muon_normalize},
      {"shard_narrow", sizeof(NarrowArgs), shard_narrow},
      {"shard_sum_blocks", sizeof(SumBlocksArgs), shard_sum_blocks},
      {"shard_sum_gradients", sizeof(SumGradientsArgs), shard_sum_gradients},
      {"shard_sum_squares", sizeof(UpdateTensorsArgs), shard_sum_squares},
      {"shard_widen", sizeof(WidenArgs), shard_widen},
#define SHARD_HOST_KERNEL(Name) \
  {"shard_update_" #Name, sizeof(UpdateElementsArgs), shard_update_##Name},
      SHARD_ELEMENT_FORMULAS(SHARD_HOST_KERNEL)
#undef SHARD_HOST_KERNEL
  };
  return kKernels;
}

}  // namespace shard::cuda
