#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests that each quickstart can be built from the package alone, at another
# place than where it was installed, with the commands of its README.md, and saves
# the checkpoint that the one in C saves. Python also runs with the wheel.

set -euo pipefail

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

made="$TEST_TMPDIR/made"
prefix="$TEST_TMPDIR/moved"
tools/bazel/install.sh . "$made"
tools/packaging/documents.sh . "$made"
wheel="$(sdk/python/make_wheel.py --library "$made/lib/libshard.so.0" \
  --plugin "$made/lib/libshard_cuda.so" \
  --helper "$made/libexec/libshard/shard-network" \
  --output "$TEST_TMPDIR/wheel")"
mv "$made" "$prefix"

# Nothing comes from elsewhere: neither from the network nor from a home folder.
export HOME="$TEST_TMPDIR/home" CARGO_HOME="$TEST_TMPDIR/cargo"
export CARGO_NET_OFFLINE=true GOPROXY=off PYTHONDONTWRITEBYTECODE=1
mkdir "$HOME"

# commands LINE: prints the commands of README.md that follow the first line that
# begins with LINE.
commands() {
  awk -v line="$1" 'index($0, line) == 1 { found = 1 }
    found && /^    / { print substr($0, 5); inside = 1; next }
    inside { exit }' "$prefix/share/shard/samples/quickstart/README.md" |
    sed "s,/usr/share/,$prefix/share/,; s,PREFIX,$prefix,g"
}

# trains PROGRAM: expects that it saves what the first one has saved.
trains() {
  shardctl run -n 2 --timeout 60 -- "$@" checkpoints 50 || fail "$*"
  if [[ ! -d "$TEST_TMPDIR/expected" ]]; then
    mv checkpoints "$TEST_TMPDIR/expected"
    return
  fi
  shardctl diff "$TEST_TMPDIR/expected" checkpoints ||
    fail "$* saves other checkpoints than the first program"
}

commands "Where libshard is not in" >"$TEST_TMPDIR/environment"
[[ "$(wc -l <"$TEST_TMPDIR/environment")" == 4 ]] || fail "README.md: PREFIX"
# shellcheck disable=SC1091
source "$TEST_TMPDIR/environment"
for language in C C++ Rust Go Python; do
  mkdir "$TEST_TMPDIR/$language"
  cd "$TEST_TMPDIR/$language"
  cp "$prefix"/share/shard/samples/quickstart/quickstart.* .
  commands "**$language** " >commands.sh
  [[ -s commands.sh ]] || fail "README.md has no commands for $language"
  bash -euxo pipefail commands.sh || fail "the commands for $language"
  trains ./quickstart
done

# The wheel needs nothing of the package.
rm "$prefix/lib/libshard.so.0"
unset PYTHONPATH LD_LIBRARY_PATH
cd "$TEST_TMPDIR"
/usr/bin/python3 -m venv --without-pip --system-site-packages venv
/usr/bin/python3 -m pip --python venv/bin/python install --quiet --no-index \
  --no-compile "$wheel"
venv/bin/python Python/quickstart.py expected 51 || fail "the wheel does not train"
venv/bin/python -c 'import shard; print(shard.open("expected").info().step)' |
  diff - <(echo 51) || fail "the wheel reads no checkpoint"
venv/lib/python3*/site-packages/shard/libexec/libshard/shard-network --version ||
  fail "the wheel has no network helper that runs"
