# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# Sourced by the programs in tools/. Leaves the caller in the repository root.
#
# BAZEL              the bazel to run (default: bazel)
# BAZEL_STARTUP      startup options for it, such as --output_base=/some/folder

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
cd "$root"

# The comment at the top of a tool is its help text.
show_help() {
  awk 'NR > 2 && !/^#/ { exit } NR > 2 && !/SPDX/ { sub(/^# ?/, ""); print }' \
    "$1" | sed '/./,$!d'
}

die() {
  echo "$(basename "$0"): $*" >&2
  exit 1
}

# Prints the seconds that the cores of this machine have been busy since it
# started.
busy_seconds() {
  awk -v hz="$(getconf CLK_TCK)" \
    '$1 == "cpu" { printf "%d", ($2 + $3 + $4 + $7 + $8) / hz }' /proc/stat
}

run_bazel() {
  # BAZEL_STARTUP is a list of options: it must be split.
  # shellcheck disable=SC2086
  "${BAZEL:-bazel}" ${BAZEL_STARTUP:-} "$@"
}

# Where `bazel build` of the default configuration leaves its results. The
# bazel-bin link would do, were it not for whoever built last.
bazel_bin() {
  run_bazel info bazel-bin 2>/dev/null
}

# Some builds of Bazel's sandbox describe every mount of every action.
drop_sandbox_noise() {
  grep --line-buffered -avE \
    '(^There were tests whose specified size is too big|^[0-9]+\.[0-9]+: src/main/tools/(linux-sandbox|process-|logging))' || true
}
