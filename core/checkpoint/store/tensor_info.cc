// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/store/tensor_info.h"

namespace shard {

const char* TensorRoleName(TensorRole role) {
  switch (role) {
    case TensorRole::kParam:
      return "param";
    case TensorRole::kBuffer:
      return "buffer";
    case TensorRole::kState:
      return "state";
  }
  return "unknown";
}

}  // namespace shard
