#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Runs a test under a sanitizer: under_sanitizer.sh CONFIGURATION PROGRAM [ARG...]
#
# CONFIGURATION is asan or tsan, which leave out the tests that long_forms.bzl has
# put into the environment, lines of "PATTERN: REASON", which are printed first; or
# long_asan or long_tsan. Tests that the caller names (--test_filter) are not left
# out.
configuration="$1"
shift
left_out=
case "$configuration" in
  asan) left_out="${SHARD_TEST_LONG_ASAN-}" ;;
  tsan) left_out="${SHARD_TEST_LONG_TSAN-}" ;;
esac
if [ -n "$left_out" ] && [ -z "${TESTBRIDGE_TEST_ONLY-}" ]; then
  GTEST_FILTER=
  while IFS= read -r line; do
    echo "left out under $configuration: $line"
    GTEST_FILTER="$GTEST_FILTER:${line%%: *}"
  done <<END
$left_out
END
  GTEST_FILTER="-${GTEST_FILTER#:}"
  export GTEST_FILTER
fi
# The thread sanitizer needs addresses that are not randomized (.bazelrc). A
# container may forbid the change.
case "$configuration" in
  *tsan)
    if setarch --addr-no-randomize true 2>/dev/null; then
      exec setarch --addr-no-randomize "$@"
    fi
    ;;
esac
exec "$@"
