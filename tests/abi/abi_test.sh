#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: abi_test CHECK
#
# Compares the ABI of libshard.so.0 with the records. CHECK is the name of a
# function below. After a change that is meant: bazel run //tests/abi:record

set -euo pipefail
source tests/abi/abi.sh

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# same RECORD: expects stdin to be the contents of the record.
same() {
  diff -u "$records/$1" - ||
    fail "not as in tests/abi/$1 (-: on record, +: now);" \
      "if it is meant: bazel run //tests/abi:record"
}

# The library exports exactly the functions on record.
symbols() {
  make_symbols | same symbols.txt
  # Compares both ways, so that neither the record nor the headers promise too
  # much.
  local declaration='^(SHARD_NODISCARD )?SHARD_API'
  diff -u <(cat "${headers[@]}" | sed -nE \
    "s/$declaration.*[ *](shard_[a-z0-9_]+)\(.*/\2/p
     /$declaration[^(]*\$/{n;s/^ *(shard_[a-z0-9_]+)\(.*/\1/p}" |
    LC_ALL=C sort) \
    <(make_symbols | sed -nE 's/ SHARD_0 T$//p') ||
    fail "the headers (-) and the library (+) have different functions"
  # The compiler warns a host that drops an error.
  if grep -nE '^SHARD_API shard_error\*' "${headers[@]}"; then
    fail "the functions above return an error without SHARD_NODISCARD"
  fi
}

# Sizes, offsets and constants are those on record, and all of them are on
# record.
layout() {
  make_layout | same layout.txt
  local name missing=0
  local code
  # Reads the headers without comments.
  code="$(cat "${headers[@]}" | gcc -fpreprocessed -dD -E -P -xc - 2>/dev/null)"
  for name in $(grep -oE 'SHARD_[A-Z0-9_]+ = -?[0-9]+' <<<"$code" |
    cut -d' ' -f1); do
    grep -q "^constant $name " "$records/layout.txt" ||
      { echo "constant $name" && missing=1; }
  done
  for name in $(grep -oE 'define SHARD_[A-Z_]+_INIT' <<<"$code" |
    cut -d' ' -f2); do
    grep -qE "^init $name [0-9]+ zero$" "$records/layout.txt" ||
      { echo "init $name, zero but for struct_size" && missing=1; }
  done
  # Lists "struct.field" for every field: the last word before each semicolon,
  # or before an array's length.
  for name in $(awk '
      /^typedef struct shard_[a-z_]+ \{/ { type = $3; next }
      /^}/ { type = "" }
      type != "" && /;/ { sub(/[[;].*/, ""); sub(/.*[ *]/, "")
                          print type "." $0 }' <<<"$code"); do
    grep -q "^field $name " "$records/layout.txt" ||
      { echo "field $name" && missing=1; }
  done
  ((!missing)) || fail "the names above are in the headers and not in layout.c"
}

# The types of arguments and results in the debug information are those on
# record.
types() {
  local code=0
  make_abi >"$TEST_TMPDIR/now.abi"
  abidiff "$records/libshard.abi" "$TEST_TMPDIR/now.abi" \
    >"$TEST_TMPDIR/diff" 2>&1 || code=$?
  if ((code == 0)); then return; fi
  cat "$TEST_TMPDIR/diff"
  fail "abidiff says $code (4: changed, 8: incompatible); if it is meant:" \
    "bazel run //tests/abi:record"
}

# The library needs libc, libm and the C++ runtime; it reaches all others by
# dlopen.
needed() {
  local name
  readelf -d "$library" | grep -q 'SONAME.*\[libshard\.so\.0\]' ||
    fail "the SONAME is not libshard.so.0"
  for name in $(readelf -d "$library" | sed -nE 's/.*NEEDED.*\[(.*)\]/\1/p'); do
    case "$name" in
      libc.so.6 | libm.so.6 | libstdc++.so.6 | libgcc_s.so.1) ;;
      ld-linux*.so.*) ;;
      *) fail "the library needs $name" ;;
    esac
  done
  if readelf -d "$library" | grep -E 'R(UN)?PATH|TEXTREL'; then
    fail "the library has a search path of this build, or text relocations"
  fi
  if readelf -lW "$library" | grep -E 'GNU_STACK.* RWE'; then
    fail "the library asks for an executable stack"
  fi
}

# The library changes nothing of its host: it does not even call functions that
# would. The check reads the relocations and not the symbol table, which still
# lists functions that only dropped code uses (hwy::Abort in
# tools/bazel/highway/runtime.cc uses abort, fprintf and stderr).
imports() {
  local name
  local -A forbidden=()
  for name in \
    abort exit _exit _Exit quick_exit atexit at_quick_exit on_exit raise kill \
    tgkill __assert_fail __assert_perror_fail _ZSt9terminatev \
    printf vprintf fprintf vfprintf dprintf vdprintf __printf_chk \
    __vprintf_chk __fprintf_chk __vfprintf_chk puts putchar putc fputs fputc \
    fwrite perror stdout stderr psignal syslog vsyslog error warn \
    warnx err errx _ZSt4cout _ZSt4cerr _ZSt4clog \
    signal sigaction sigprocmask sigset sigignore sysv_signal bsd_signal \
    setlocale uselocale newlocale _ZNSt6locale6globalERKS_ \
    umask chdir fchdir chroot setenv putenv unsetenv clearenv setrlimit \
    prlimit nice setpriority prctl fork vfork system popen execve execv execvp \
    posix_spawn setuid setgid seteuid setegid srand srandom alarm setitimer \
    mlockall dup2 __cxa_atexit __cxa_thread_atexit_impl; do
    forbidden[$name]=1
  done
  local bad="" count=0
  for name in $(readelf -rW "$library" |
    awk '$3 ~ /^R_/ && $5 ~ /^[A-Za-z_]/ { sub(/@.*/, "", $5); print $5 }'); do
    count=$((count + 1))
    if [[ -n "${forbidden[$name]:-}" ]]; then bad+=" $name"; fi
  done
  ((count > 20)) || fail "found only $count relocations with a name"
  [[ -z "$bad" ]] || fail "the library refers to$bad"
}

# Each header compiles alone, first and twice, in both languages, and so does
# every _INIT.
header_alone() {
  local header source="$TEST_TMPDIR/alone" compiler
  local flags=(-I api/include -fsyntax-only -Wall -Wextra -Wpedantic -Werror
    -Wundef -Wmissing-field-initializers)
  for header in "${headers[@]}"; do
    printf '#include "shard/%s"\n' "${header##*/}" "${header##*/}" \
      >"$source.c"
    # Writes "shard_x y = SHARD_X_INIT;" for every _INIT of the header.
    sed -nE 's/^#define (SHARD_[A-Z_]+)_INIT.*/\1/p' "$header" |
      while read -r name; do
        echo "extern ${name,,} $name; ${name,,} $name = ${name}_INIT;"
      done >>"$source.c"
    echo 'int main(void) { return SHARD_OK; }' >>"$source.c"
    cp "$source.c" "$source.cc"
    for compiler in gcc clang-14; do
      "$compiler" -std=c11 "${flags[@]}" -Wstrict-prototypes "$source.c" ||
        fail "$header, $compiler, C11"
    done
    for compiler in g++ clang++-14; do
      # A host may use an older standard than libshard.
      for standard in c++20 c++11; do
        "$compiler" -std=$standard "${flags[@]}" -Wold-style-cast \
          -Wzero-as-null-pointer-constant "$source.cc" ||
          fail "$header, $compiler, $standard"
      done
    done
  done
}

"$1"
