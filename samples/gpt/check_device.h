// SPDX-License-Identifier: Apache-2.0
//
// Compares the passes of a device with those of the processor, whose backward
// check.h compares with finite differences.

#ifndef SHARD_SAMPLES_GPT_CHECK_DEVICE_H_
#define SHARD_SAMPLES_GPT_CHECK_DEVICE_H_

#include <stdbool.h>
#include <stddef.h>

#include "samples/gpt/device.h"
#include "samples/gpt/options.h"

// The largest relative difference of a loss or a gradient that counts as
// agreement. Both devices compute in fp32, with sums in other orders: that
// costs a few 1e-6. Products in TF32 would cost 1e-3.
#define CHECK_DEVICE_TOLERANCE 1e-4

// Returns the options of the check: a small model, whose width and length are
// no multiples of what a GPU computes at once, on the device of `opts`.
options check_device_options(const options* opts);

// Fills the parameters of `engine` with random numbers, runs a forward and a
// backward pass on its device and on the processor, and prints one line for the
// loss and one for each gradient. Returns true when all agree; else `message`
// says why. REQUIRES: an engine of check_device_options, on one rank.
bool check_device(const options* opts, shard_engine* engine, const device* d,
                  char* message, size_t message_size);

#endif  // SHARD_SAMPLES_GPT_CHECK_DEVICE_H_
