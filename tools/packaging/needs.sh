#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: needs.sh FILE...
#
# Prints what the programs and libraries need of libraries that are not ours,
# such as "libc.so.6 GLIBC_2.34": of all symbol versions that they refer to, the
# newest of each library and name. The loader refuses a file where one is missing.

set -euo pipefail

# readelf names a library, and below it the versions that are needed of it. The
# libraries of glibc have one version.
LC_ALL=C readelf -VW "$@" | awk '
  /^Version needs section/ { needs = 1; next }
  /^Version (definition|symbols) section/ { needs = 0 }
  needs && match($0, /File: [^ ]+/) {
    library = substr($0, RSTART + 6, RLENGTH - 6)
    if (library ~ /^lib(m|dl|rt|pthread)\.so|^ld-linux/) library = "libc.so.6"
  }
  needs && match($0, /Name: [A-Z]+_[0-9.]+/) && library !~ /^libshard\./ {
    name = substr($0, RSTART + 6, RLENGTH - 6)
    print library, substr(name, 1, index(name, "_")), name
  }' | sort -k1,2 -k3,3V | awk '
  { newest[$1 " " $2] = $1 " " $3 }
  END { for (key in newest) print newest[key] }' | sort
