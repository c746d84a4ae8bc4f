#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests what check_fatbin.py says of made-up output of ptxas.

set -euo pipefail

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

check="$TEST_SRCDIR/$TEST_WORKSPACE/tools/bazel/cuda/check_fatbin.py"
cd "$TEST_TMPDIR"

# Further options of the check.
options=()

# expect CODE TEXT: checks log.txt and kernels.ptx against record.
expect() {
  local code="$1" text="$2" printed got=0
  printed="$("$check" "${options[@]}" --max-registers=32 record log.txt \
    kernels.ptx 2>&1)" ||
    got=$?
  [[ "$printed" == *"$text"* ]] || fail "no '$text' in: $printed"
  ((got == code)) || fail "exit code $got, not $code: $printed"
}

# log REGISTERS SPILLED: writes a log of one kernel.
log() {
  cat >log.txt <<END
nvcc 1.2.3
ptxas info    : Compiling entry function 'axpy' for 'sm_90'
ptxas info    : Function properties for axpy
    0 bytes stack frame, $2 bytes spill stores, 0 bytes spill loads
ptxas info    : Used $1 registers, used 1 barriers, 256 bytes smem
END
}

log 10 0
printf '\tadd.rn.f32 %%f1, %%f2, %%f3;  // not .approx\n\tdiv.rn.f32 %%f1;\n' \
  >kernels.ptx
printf '%s\n' "nvcc 1.2.3: kernel, architecture, registers, bytes of shared memory" \
  "axpy sm_90 10 256" >record
expect 0 ""

log 11 0
expect 1 "not in the record: axpy sm_90 11 256"
log 33 0
expect 1 "axpy sm_90 uses 33 registers; allowed are 32"
log 10 4
expect 1 "axpy sm_90 spills or has a stack"
echo "nvcc 1.2.3" >log.txt
expect 1 "ptxas names no kernel"

log 10 0
for line in 'sqrt.approx.f32 %f1, %f2;' '@%p1 mul.ftz.f32 %f1, %f2, %f3;' \
  'div.full.f32 %f1, %f2, %f3;' '{ex2.approx.ftz.f16 %h1, %h2;}'; do
  echo "$line" >kernels.ptx
  expect 1 "the PTX approximates or flushes: $line"
done

for line in 'mul.f32 %f1, %f2, %f3;' 'add.f64 %d1, %d2, %d3;' \
  '@%p1 sub.sat.f32 %f1, %f2, %f3;' 'add.f32x2 %rd1, %rd2, %rd3;'; do
  echo "$line" >kernels.ptx
  expect 1 "the PTX names no rounding: $line"
done

# Shared memory whose size a launch tells, and the kernels that use it.
cat >sizes <<'END'
#!/bin/sh
echo table 1024
END
chmod +x sizes
cat >kernels.ptx <<'END'
.extern .shared .align 16 .b8 _ZN5tableE[];
.visible .entry other(
	add.rn.f32 %f1, %f2, %f3;
.visible .entry axpy(
	mov.u32 	%r1, _ZN5tableE;
END
expect 1 "no size is known of the shared memory _ZN5tableE"
options=(--dynamic-shared=./sizes)
expect 1 "not in the record: axpy sm_90 10 1280"
sed -i 's/ 256$/ 1280/' record
expect 0 ""
# Then `axpy` uses none, and the function may be called by any kernel.
sed -i 's/.visible .entry axpy(/.func twice(/' kernels.ptx
expect 1 "a function that is not inlined uses _ZN5tableE"
expect 1 "not in the record: axpy sm_90 10 256"
options=()

# Another compiler's record is not compared; no compiler, no check.
: >kernels.ptx
sed -i 's/1.2.3/1.2.4/; s/Used 10/Used 12/' log.txt
expect 0 "record is of another nvcc"
echo "none: no CUDA toolkit" >log.txt
expect 0 "skipped: no CUDA toolkit"
