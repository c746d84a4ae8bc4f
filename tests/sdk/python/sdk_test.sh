#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the tests of the Python package with the libshard.so.0 that
# LD_LIBRARY_PATH has, else with that of this tree. The interpreter is
# SHARD_TEST_PYTHON, else Debian's; those of shard.torch run where the interpreter
# has PyTorch.

set -euo pipefail

export SHARD_REAL_LIBRARY="$PWD/api/libshard.so.0"
export SHARD_OLD_LIBRARY="$PWD/tests/sdk/python/old_library.so"
export SHARD_DLPACK_CONSUMER="$PWD/tests/sdk/python/dlpack_consumer.so"
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-$PWD/api}"
export PYTHONPATH="$PWD/sdk/python:$PWD/tests/sdk/python"
export PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=error::ResourceWarning
exec "${SHARD_TEST_PYTHON:-/usr/bin/python3}" -X faulthandler -m unittest discover \
  -s tests/sdk/python -p '*_test.py'
