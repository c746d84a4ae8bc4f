// SPDX-License-Identifier: Apache-2.0

#include "core/flat/host_tensors.h"

#include "core/base/element_type.h"
#include "core/base/strings.h"
#include "core/model/names.h"

namespace shard {

StatusOr<HostTensorLayout> LayOutHostTensors(const Model& model) {
  constexpr uint64_t kMost = uint64_t{1} << 53;
  HostTensorLayout layout;
  layout.walk = model.WalkHostTensors();
  layout.offsets.assign(model.host_tensors().size(), -1);
  for (const HostTensorId id : layout.walk) {
    const auto index = static_cast<size_t>(id);
    const Model::HostTensor& tensor = model.host_tensors()[index];
    // Below 2^63, which the model has checked; so no sum here overflows.
    const uint64_t bytes =
        static_cast<uint64_t>(tensor.numel) * ElementSize(tensor.type);
    if (bytes > kMost - layout.bytes) {
      return InvalidArgument("buffer ", QuoteName(model.HostTensorFqn(id)),
                             " of ", bytes,
                             " bytes brings the buffers of the model to more "
                             "than 2^53 bytes");
    }
    layout.offsets[index] = static_cast<int64_t>(layout.bytes);
    // Does not pass the limit, which is a multiple of the alignment.
    layout.bytes += RoundUpToHostTensor(bytes);
  }
  return layout;
}

}  // namespace shard
