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

# trim_objects FOLDER: deletes the objects in FOLDER that were not used for two
# weeks, then those that were used least recently until the others take no more
# than SHARD_BUILD_CACHE_GB (default: 16; one run of all tests leaves 10). Another
# run may delete them at the same time.
trim_objects() {
  local limit="${SHARD_BUILD_CACHE_GB:-16}"
  if [[ ! "$limit" =~ ^[0-9]{1,6}([.][0-9]+)?$ ]]; then
    echo "SHARD_BUILD_CACHE_GB is '$limit', not a number of gigabytes; 16 it is" >&2
    limit=16
  fi
  (
    cd "$1" || exit
    # Only files that Bazel put there, in this layout.
    local ours=(-regextype posix-extended -regex "./[0-9a-f]{16}/(ac|cas)/.*")
    find . "${ours[@]}" -type f -atime +14 -delete || true
    # Bazel sets the time of writing when it uses an object; a file system may not
    # keep that of reading.
    { find . "${ours[@]}" -type f -printf '%A@ %T@ %b %p\n' || true; } |
      awk '{ print ($1 > $2 ? $1 : $2), $3, $4 }' | sort -rn |
      awk -v limit="$limit" '(used += $2 * 512) > limit * 1e9 { print $3 }' |
      xargs -r rm -f
    find . "${ours[@]}" -type d -empty -mtime +14 -delete || true
  ) 2>/dev/null
}

# object_cache KEY: makes and prints the folder that keeps compiled objects for
# KEY, 16 digits of hex, and trims it and those of other KEYs (trim_objects).
# Where there can be no such folder it prints nothing, and the reason on stderr.
# SHARD_BUILD_CACHE is the folder around it (default: ~/.cache/libshard/objects).
object_cache() {
  local base="${XDG_CACHE_HOME:-}" caches="${SHARD_BUILD_CACHE:-}" cache
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
  trim_objects "$caches"
  printf '%s' "$cache"
}
