// SPDX-License-Identifier: Apache-2.0
//
// Describes the parts of CUDA on this machine, with the reasons why some cannot
// be used, as a JSON document (shard_devices_json in engine.h has its keys).

#ifndef SHARD_CORE_DEVICE_CUDA_DESCRIBE_H_
#define SHARD_CORE_DEVICE_CUDA_DESCRIBE_H_

#include <string>

namespace shard::cuda {

// Opens each device for a moment. Any thread.
std::string Describe();

}  // namespace shard::cuda

#endif  // SHARD_CORE_DEVICE_CUDA_DESCRIBE_H_
