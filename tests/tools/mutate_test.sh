#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests what tools/mutate concludes, with a fake of Bazel: its "tests" fail while
# code.txt has no line "edge", and its "build" while it has a line "broken".

set -euo pipefail

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# expect CODE TEXT COMMAND...: expects this exit code, and the text in what the
# command prints.
expect() {
  local code="$1" text="$2" printed got=0
  shift 2
  printed="$("$@" 2>&1)" || got=$?
  [[ "$printed" == *"$text"* ]] || fail "$*: no '$text' in: $printed"
  ((got == code)) || fail "$*: exit code $got, not $code: $printed"
}

# mutation NAME OLD NEW
mutation() {
  cat >>tests/mutations/lines.toml <<END
[[mutation]]
name = "$1"
file = "code.txt"
old = "$2"
new = "$3"
test = "//fake:test"
filter = "*"
END
}

tool="$TEST_SRCDIR/$TEST_WORKSPACE/tools/mutate"
export HOME="$TEST_TMPDIR" BAZEL="$TEST_TMPDIR/fake_bazel" BAZEL_STARTUP=""
export GIT_AUTHOR_NAME=test GIT_AUTHOR_EMAIL=test@example.com
export GIT_COMMITTER_NAME=test GIT_COMMITTER_EMAIL=test@example.com
cat >"$BAZEL" <<'END'
#!/usr/bin/env bash
if grep -q broken code.txt; then exit 1; fi
if grep -q late code.txt && [[ ! -e late ]]; then touch late; exit 3; fi
if grep -q edge code.txt; then exit 0; fi
if grep -q hangs code.txt; then exit 3; fi
echo "[  FAILED  ] EdgeTest.IsThere (3 ms)"
exit 3
END
chmod +x "$BAZEL"
mkdir -p "$TEST_TMPDIR/tree"/{tools,tests/mutations}
cd "$TEST_TMPDIR/tree"
cp "$tool" tools/mutate
printf 'edge\nother\nsame\nsame\n' >code.txt
mutation "no edge" edge none
git init --quiet .
git add .
git commit --quiet -m "the code"

expect 0 "1 mutations can be made" tools/mutate --check
expect 0 "no edge: found by EdgeTest.IsThere" tools/mutate
expect 0 "1 found, 0 missed" tools/mutate lines
[[ "$(git status --porcelain --untracked-files=no)" == "" ]] ||
  fail "the tree was changed"

mutation "another line" other another
mutation "no build" other broken
expect 1 "another line: MISSED" tools/mutate
expect 1 "no build: MISSED: it does not build" tools/mutate
expect 1 "1 found, 2 missed" tools/mutate
expect 1 "no mutation is named 'any'" tools/mutate any
expect 1 "unknown option '--jobs=2'" tools/mutate --jobs=2

# A test that names no failure has failed where it does so twice.
mutation "hangs" edge hangs
mutation "late once" other late
expect 0 "hangs: found by a test that ended early, or too late" \
  tools/mutate hangs
expect 1 "late once: MISSED" tools/mutate "late once"

# What git gives to hooks, and a checkout that was moved or is not whole.
GIT_DIR=/none GIT_INDEX_FILE=/none expect 0 "1 found, 0 missed" \
  tools/mutate "no edge"
rm .cache/mutated/code.txt .cache/mutated/.git
expect 0 "1 found, 0 missed" tools/mutate "no edge"
rm -r .cache/mutated
touch .git/worktrees/mutated/locked
expect 0 "1 found, 0 missed" tools/mutate "no edge"
cp -r "$TEST_TMPDIR/tree" "$TEST_TMPDIR/copied"
(cd "$TEST_TMPDIR/copied" &&
  expect 0 "1 found, 0 missed" tools/mutate "no edge" &&
  git -C .cache/mutated rev-parse --git-common-dir | grep -q copied) ||
  fail "a copied tree uses the checkout of another"
mv "$TEST_TMPDIR/tree" "$TEST_TMPDIR/moved"
cd "$TEST_TMPDIR/moved"
expect 0 "1 found, 0 missed" tools/mutate "no edge"

# Mutations that cannot be made, and code whose tests fail.
mutation "twice" same other
expect 1 "'twice': code.txt has its old text 2 times" tools/mutate --check
sed -i 's/^edge$/none/' code.txt
expect 1 "'no edge': code.txt has its old text 0 times" tools/mutate --check
git commit --quiet -am "no edge"
expect 1 "the tests do not pass on the code as it is" \
  tools/mutate "another line"
# The checkout is of HEAD, which lacks what is not committed.
echo edge >>code.txt
expect 1 "'no edge': code.txt has its old text 0 times" tools/mutate "no edge"
git checkout --quiet code.txt
echo 'more = 1' >>tests/mutations/lines.toml
expect 1 "lines.toml: a mutation has the keys" tools/mutate --check
rm tests/mutations/lines.toml
expect 1 "tests/mutations has no mutation" tools/mutate --check
