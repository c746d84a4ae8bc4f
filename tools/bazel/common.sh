# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# Sourced by the programs in tools/. Leaves the caller in the repository root;
# `caller` is the folder from which it came.
#
# BAZEL              the bazel to run (default: bazel)
# BAZEL_STARTUP      startup options for it, such as --output_base=/some/folder

caller="$PWD"
# With a CDPATH `cd` may go to another folder, and prints it.
unset CDPATH
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

# Prints the folder in which `bazel build` of the default configuration leaves
# its results. The bazel-bin link may lead to the results of another
# configuration.
bazel_bin() {
  run_bazel info bazel-bin 2>/dev/null
}

# Removes Bazel's remark on the sizes of tests, and the lines that some builds
# of its sandbox print for every mount of every action.
drop_sandbox_noise() {
  grep --line-buffered -avE \
    '(^There were tests whose specified size is too big|^[0-9]+\.[0-9]+: src/main/tools/(linux-sandbox|process-|logging))' || true
}

# object_cache KEY: makes and prints the folder that keeps compiled objects for
# KEY, 16 digits of hex. Removes objects that were not used for two weeks, for
# other KEYs too. Where there can be no such folder it prints nothing, and the
# reason on stderr. SHARD_BUILD_CACHE is the folder around it (default:
# ~/.cache/libshard/objects).
object_cache() {
  local base="${XDG_CACHE_HOME:-}" caches="${SHARD_BUILD_CACHE:-}" cache folder
  # By its specification XDG_CACHE_HOME does not count unless it is absolute.
  [[ "$base" == /* ]] || base="${HOME:+$HOME/.cache}"
  if [[ -z "$caches$base" ]]; then
    echo "compiled objects are not kept: neither SHARD_BUILD_CACHE nor HOME is" \
      "set" >&2
    return
  fi
  caches="${caches:-$base/libshard/objects}"
  [[ "$caches" == /* ]] || caches="$caller/$caches"
  cache="$caches/$1"
  if ! mkdir -p "$cache"/{ac,cas} 2>/dev/null ||
    [[ ! -w "$cache/ac" || ! -w "$cache/cas" ]]; then
    echo "compiled objects are not kept: '$cache' cannot be written; name" \
      "another folder with SHARD_BUILD_CACHE" >&2
    return
  fi
  # Deletes only files that Bazel put there, in this layout. Another run may
  # delete them at the same time.
  for folder in "$caches"/*/{ac,cas}; do
    [[ "$folder" =~ /[0-9a-f]{16}/(ac|cas)$ ]] || continue
    find "$folder" -type f -atime +14 -delete 2>/dev/null || true
    find "$folder" -mindepth 1 -type d -empty -mtime +14 -delete \
      2>/dev/null || true
  done
  printf '%s' "$cache"
}
