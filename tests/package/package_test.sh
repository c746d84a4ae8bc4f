#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests what tools/package makes: packs it twice, unpacks it in a folder of
# another name, and builds the quickstart there with nothing else, in each of the
# ways that docs/packages.md shows. Then installs, upgrades and purges the Debian
# package.

set -euo pipefail

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

here="$PWD"
made="$TEST_TMPDIR/made"
moved="$TEST_TMPDIR/some-where/else"
hosts="$TEST_TMPDIR/hosts"
mkdir -p "$moved" "$hosts"
export HOME="$TEST_TMPDIR"

install_to() {
  tools/bazel/install.sh . "$1"
  tools/packaging/documents.sh . "$1"
}

# check_documents PREFIX: the links of the installed documents lead somewhere.
check_documents() {
  local documents
  mapfile -t documents < <(find "$1" -name '*.md')
  ((${#documents[@]} > 15)) || fail "$1 has ${#documents[@]} documents"
  tests/docs/links.sh "${documents[@]}" || fail "links of documents"
}

# ---- The archives ------------------------------------------------------------

# Both archives have the same bytes when they are made once more, from files of
# another time that others cannot read.
export SOURCE_DATE_EPOCH=1600000000
install_to "$made"
tar="$(tools/packaging/tar.sh "$made" "$TEST_TMPDIR/first")"
deb="$(tools/packaging/deb.sh "$made" "$TEST_TMPDIR/first")"
(umask 077 && install_to "$TEST_TMPDIR/again")
find "$TEST_TMPDIR/again" -exec touch -h -d "3 days ago" {} +
chmod -R go-rwx "$TEST_TMPDIR/again"
cmp "$tar" "$(tools/packaging/tar.sh "$TEST_TMPDIR/again" "$TEST_TMPDIR/second")"
cmp "$deb" "$(tools/packaging/deb.sh "$TEST_TMPDIR/again" "$TEST_TMPDIR/second")"
[[ "$(find "$made" -name '*.new')" == "" ]] || fail "drafts stay"

# The tests from here on use an archive that is unpacked at another place.
tar -xzf "$tar" -C "$moved"
rm -r "$made" "$TEST_TMPDIR/again"
prefix="$(echo "$moved"/libshard-*-linux-*)"
[[ -f "$prefix/include/shard/shard.h" ]] || fail "$tar has no folder of its own"
version="$(sed -n 's/^Version: //p' "$prefix/lib/pkgconfig/shard.pc")"
! grep -rlF -e "$TEST_TMPDIR" -e "$here" "$prefix" ||
  fail "the files above name the place where they were made"
[[ -z "$(find "$prefix" -xtype l)" ]] || fail "links lead nowhere"
check_documents "$prefix"

# The library is small.
bytes="$(stat -c %s "$prefix/lib/libshard.so.0")"
((bytes < 4 << 20)) || fail "libshard.so.0 has $bytes bytes, 4 MiB at most"

# The device for GPUs exports one name, and needs no library of CUDA.
cuda="$prefix/lib/libshard_cuda.so"
[[ "$(nm -D --defined-only "$cuda" | cut -d' ' -f3)" == shard_plugin ]] ||
  fail "$cuda exports $(nm -D --defined-only "$cuda")"
! readelf -d "$cuda" | grep -E "NEEDED.*(libcu|libnv)" || fail "$cuda needs CUDA"

# The network helper runs from where it is installed.
[[ "$("$prefix/libexec/libshard/shard-network" --version)" == *" $version" ]] ||
  fail "shard-network --version"

# The document says what the binaries need of the system.
needs="$(tools/packaging/needs.sh "$prefix/lib/libshard.so.0" "$cuda" \
  "$prefix/bin/shardctl" "$prefix/libexec/libshard/shard-network")"
for need in $(cut -d' ' -f2 <<<"$needs" | grep -E '^(GLIBC|GLIBCXX)_'); do
  grep -qF "\`$need\`" docs/packages.md || fail "docs/packages.md has no $need"
done
[[ "$(grep -oE '`GLIBC(XX)?_[0-9.]+`' docs/packages.md | sort -u | wc -l)" == 2 ]] ||
  fail "docs/packages.md has other versions of symbols than $needs"

# ---- Hosts -------------------------------------------------------------------

export PATH="$prefix/bin:$PATH"
quickstart="$prefix/share/shard/samples/quickstart/quickstart.c"
document="$prefix/share/doc/libshard/docs/packages.md"
expected=""

# block LANGUAGE NUMBER: prints a block of docs/packages.md, from 1.
block() {
  awk -v open="\`\`\`$1" -v number="$2" '
    $0 == open { code = ++found == number; next }
    /^```$/ { code = 0 } code' "$document" | sed "s,PREFIX,$prefix,g"
}

# commands SECTION: prints the commands of a section of docs/packages.md.
commands() {
  awk -v begin="## $1" '/^## / { section = $0 == begin }
    section && /^    / { print substr($0, 5) }' "$document" |
    sed "s,PREFIX,$prefix,g"
}

# run_in FOLDER: runs commands, which build the quickstart as host.c there. It
# needs libm, which other hosts may not.
run_in() {
  cp "$quickstart" "$1/host.c"
  (cd "$1" && bash -euo pipefail <(sed '/^cc /s/$/ -lm/') >log 2>&1) ||
    fail "$1: $(<"$1/log")"
}

# trains HOST: runs it on two ranks. All hosts print the same.
trains() {
  local printed
  printed="$(shardctl run -n 2 --timeout 40 -- "$1" "$1.checkpoints" 50)" ||
    fail "$1: exit code $?"
  [[ "$printed" =~ ^\[0\]\ step\ 50:\ loss\ [0-9.]+$ ]] || fail "$1: '$printed'"
  if [[ -z "$expected" ]]; then expected="$printed"; fi
  [[ "$printed" == "$expected" ]] || fail "$1: '$printed', not '$expected'"
}

by_compiler() {
  mkdir "$hosts/bare"
  commands "The compiler alone" | run_in "$hosts/bare"
  trains "$hosts/bare/host"
}

by_pkg_config() {
  mkdir "$hosts/pkg-config"
  commands "pkg-config" | run_in "$hosts/pkg-config"
  LD_LIBRARY_PATH="$prefix/lib" trains "$hosts/pkg-config/host"
  [[ "$(PKG_CONFIG_PATH="$prefix/lib/pkgconfig" pkg-config --modversion shard)" == \
    "$version" ]] || fail "pkg-config: another version than $version"
}

by_cmake() {
  local source="$hosts/cmake"
  mkdir "$source"
  {
    echo "cmake_minimum_required(VERSION 3.16)"
    echo "project(host C)"
    block cmake 1
    echo "target_link_libraries(host PRIVATE m)"
  } >"$source/CMakeLists.txt"
  { commands "CMake"; echo "cmake --build build"; } | run_in "$source"
  trains "$source/build/host"

  # Another version is refused, with the one that is there.
  local wanted
  for wanted in "${version%%.*}.99" "$((${version%%.*} + 1)).0"; do
    sed -i 's/ C)/ NONE)/; s/^\(find_package(shard\) [^ ]*/\1 '"$wanted"'/; 4,$d' \
      "$source/CMakeLists.txt"
    ! cmake -S "$source" -B "$hosts/refused" -DCMAKE_PREFIX_PATH="$prefix" \
      >/dev/null 2>"$hosts/err" || fail "CMake takes $version for $wanted"
    grep -q "version: $version" "$hosts/err" || fail "$(<"$hosts/err")"
  done
}

# Debian's Bazel asks for two repositories; others download them.
by_bazel() {
  local source="$hosts/bazel" rules
  mkdir -p "$source"
  cp "$quickstart" "$source/host.c"
  for rules in rules_cc rules_java; do
    cp -RL "$TEST_SRCDIR/$rules" "$source.$rules"
  done
  block python 1 >"$source/WORKSPACE"
  block python 2 >"$source/BUILD.bazel"
  (cd "$source" && bazel --output_user_root="$TEST_TMPDIR/bazel" --batch \
    --nohome_rc build --spawn_strategy=local --compilation_mode=opt --linkopt=-lm \
    --override_repository=rules_cc="$source.rules_cc" \
    --override_repository=rules_java="$source.rules_java" //:host) \
    >"$hosts/log" 2>&1 || fail "bazel: $(<"$hosts/log")"
  trains "$source/bazel-bin/host"
}

by_compiler
by_pkg_config
by_cmake
by_bazel

# ---- The pages of shardctl ---------------------------------------------------

# complete WORD...: prints what bash offers for the last word.
complete_words() {
  # The file defines _shardctl, and tells bash of it.
  # shellcheck disable=SC1091
  (source "$prefix/share/bash-completion/completions/shardctl"
    COMP_WORDS=("$@")
    COMP_CWORD=$(($# - 1))
    _shardctl
    echo "${COMPREPLY[*]}")
}

[[ "$(complete_words shardctl re)" == "reshard report" ]] || fail "commands"
[[ "$(complete_words shardctl run --ti)" == "--timeout" ]] || fail "options"
[[ "$(complete_words shardctl inspect --role "")" == "param buffer state" ]] ||
  fail "values"
[[ "$(complete_words shardctl verify "$prefix/in")" == "$prefix/include" ]] ||
  fail "files"
grep -qF "'*--match[" "$prefix/share/zsh/site-functions/_shardctl" ||
  fail "zsh offers a repeated option once"
if command -v fish >/dev/null; then
  fish -n "$prefix/share/fish/vendor_completions.d/shardctl.fish"
fi
if command -v zsh >/dev/null; then
  zsh -n "$prefix/share/zsh/site-functions/_shardctl"
fi

# Each command has a page, which has its options.
for command in $(shardctl --help | sed -nE '/^Subcommands/,/^$/s/^  ([a-z]+) .*/\1/p'); do
  page="$prefix/share/man/man1/shardctl-$command.1"
  [[ -s "$page" ]] || fail "$command has no page"
  for option in $(shardctl "$command" --help |
    sed -nE 's/^  (-[a-z],)?(--[a-z0-9-]+).*/\2/p'); do
    grep -qF -- "\\fB${option//-/\\-}\\fR" "$page" || fail "$page has no $option"
  done
done
if command -v groff >/dev/null; then
  for page in "$prefix"/share/man/man1/*; do
    [[ -z "$(groff -man -ww -Tutf8 -z "$page" 2>&1)" ]] || fail "groff warns of $page"
  done
fi

# ---- The Debian package ------------------------------------------------------

control() {
  dpkg-deb --field "$1" "$2"
}

for pattern in 'libc6 \(>= 2\.[0-9]+\)' 'libstdc\+\+6 \(>= [0-9.]+\)' \
  'libgcc-s1 \(>= [0-9.]+\)' 'libgloo0' 'libsodium23'; do
  [[ "$(control "$deb" Depends)" =~ $pattern ]] || fail "$(control "$deb" Depends)"
done
[[ "$(control "$deb" Version)" == "$version" ]] || fail "$(control "$deb" Version)"

# A system with nothing but dpkg's records.
root="$TEST_TMPDIR/root"
mkdir -p "$root/var/lib/dpkg"/{info,updates,triggers} "$root/var/log"
touch "$root/var/lib/dpkg/status"
# Lists the files of the system that are not dpkg's.
system_files() {
  find "$root" -mindepth 1 -not -path "$root/var*" | sort
}
debian() {
  PATH="$PATH:/usr/sbin:/sbin" dpkg --root="$root" --force-not-root \
    --force-depends --force-script-chrootless "$@" >"$TEST_TMPDIR/dpkg" 2>&1 || fail "$(<"$TEST_TMPDIR/dpkg")"
}

debian --install "$deb"
"$root/usr/bin/shardctl" --version | grep -q " $version\$" || fail "shardctl"
[[ "$(readlink "$root/usr/lib/libshard.so")" == libshard.so.0 ]] || fail "link"
check_documents "$root/usr"
(cd "$root" && md5sum --quiet -c var/lib/dpkg/info/libshard.md5sums)
grep -qx "prefix=/usr" "$root/usr/lib/pkgconfig/shard.pc" ||
  fail "pkg-config gives folders that the compiler knows"
[[ "$(dpkg-deb --info "$deb" triggers)" == "activate-noawait ldconfig" ]] ||
  fail "no trigger of ldconfig"

# The next version has one file less.
next="$TEST_TMPDIR/next"
cp -a "$prefix" "$next"
rm "$next/include/shard/units.h"
sed -i "s/^Version: .*/Version: $version.1/" "$next/lib/pkgconfig/shard.pc"
debian --install "$(tools/packaging/deb.sh "$next" "$TEST_TMPDIR/second")"
[[ ! -e "$root/usr/include/shard/units.h" ]] || fail "an old file stays"
dpkg --root="$root" --status libshard | grep -q "^Version: $version.1\$" ||
  fail "no upgrade"

# Root has used the Python package, which leaves compiled files.
PYTHONPATH="$root/usr/lib/python3/dist-packages" /usr/bin/python3 -c "import shard"
[[ -n "$(find "$root" -name '*.pyc')" ]] || fail "Python compiles nothing"
debian --purge libshard
[[ -z "$(system_files)" ]] || fail "after purging there is: $(system_files)"
