// SPDX-License-Identifier: Apache-2.0

#include "core/checkpoint/store/tensor_store.h"

#include "core/base/strings.h"
#include "core/model/names.h"

namespace shard {

Status CheckRequest(const TensorStore& store, const ReadRequest& request,
                    const ReadOptions& options) {
  if (request.tensor >= store.num_tensors()) {
    return OutOfRange("tensor ", request.tensor, " does not exist; ",
                      store.describe(), " has ", store.num_tensors());
  }
  const TensorInfo info = store.tensor(request.tensor);
  const bool opaque = info.type == ElementType::kOpaque;
  if (opaque && !options.opaque_as_bytes) {
    return Unimplemented(
        "tensor ", QuoteName(info.key), " of ", store.describe(),
        " is of type ", info.opaque_type,
        ", whose values libshard cannot read; shard_checkpoint_convert and "
        "shard_checkpoint_export copy it");
  }
  const int64_t stored = StoredNumel(info);
  if (request.begin >= 0 && request.numel >= 0 &&
      request.numel <= stored - request.begin) {
    return Status();
  }
  return OutOfRange(opaque ? "bytes " : "elements ", request.begin, " and ",
                    request.numel, " following ones of tensor ",
                    QuoteName(info.key), " of ", store.describe(),
                    ", which has ", stored);
}

}  // namespace shard
