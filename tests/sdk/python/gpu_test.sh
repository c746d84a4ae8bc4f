#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the tests of the Python package on a GPU, with the fakes of CUDA's driver
# and of NCCL.

set -euo pipefail

export LD_LIBRARY_PATH="$PWD/api:$PWD/tests/fake_cuda:$PWD/tests/fake_nccl"
export SHARD_FAKE_CUDA_STRICT=1 SHARD_FAKE_NCCL_STRICT=1
export PYTHONPATH="$PWD/sdk/python:$PWD/tests/sdk/python"
export PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=error::ResourceWarning
/usr/bin/python3 -X faulthandler tests/sdk/python/gpu_on_fake.py
/usr/bin/python3 -X faulthandler tests/sdk/python/gil_on_fake.py
# Faults where the program uses the GPU's memory.
export SHARD_FAKE_CUDA_GUARD=1
exec /usr/bin/python3 -X faulthandler tests/sdk/python/gpu_views_on_fake.py
