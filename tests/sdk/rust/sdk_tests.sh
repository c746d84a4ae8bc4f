#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the Rust crates with cargo, and runs all their tests with the
# libshard.so.0 that LD_LIBRARY_PATH leads to.

set -euo pipefail

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# The checked-in declarations are those that the program makes.
python3 sdk/rust/shard-sys/generate.py --check ||
  fail "run sdk/rust/shard-sys/generate.py"

# Cargo writes beside its sources.
readonly root="$TEST_TMPDIR/rust"
mkdir -p "$root/lib"
cp -RL --parents sdk/rust tests/sdk/rust tests/abi/layout.txt docs/rust.md "$root"
ln -s "$PWD/api/libshard.so.0" "$root/lib/libshard.so"
export SHARD_TEST_FAKE_CUDA="$PWD/tests/fake_cuda"
cd "$root"
export CARGO_HOME="$root/home" CARGO_TARGET_DIR="$root/target"
export CARGO_NET_OFFLINE=true CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0
export RUSTFLAGS="-D warnings" RUST_BACKTRACE=0

in_sdk() {
  cargo "$1" --quiet --manifest-path sdk/rust/Cargo.toml -p "${@:2}"
}

# Expects that the build of shard-sys fails and says why.
refused() {
  local text="$1"
  ! in_sdk build shard-sys >"$root/out" 2>&1 || fail "the build found a library"
  grep -qF "$text" "$root/out" || fail "no '$text' in: $(<"$root/out")"
}

# The build script finds the library, or says where it has looked.
cat >"$root/pkg-config" <<END
#!/bin/sh
case "\$1" in
  --modversion) echo "\$PACKAGE_VERSION" ;;
  *) echo "$root/lib" ;;
esac
END
chmod +x "$root/pkg-config"
PKG_CONFIG=/nowhere/pkg-config refused \
  "error: SHARD_LIB_DIR is not set, and /nowhere/pkg-config does not run"
PKG_CONFIG=false refused "false does not find shard"
SHARD_LIB_DIR=/nowhere refused \
  "SHARD_LIB_DIR gives the folder '/nowhere', which has no libshard.so. Install"
PKG_CONFIG="$root/pkg-config" PACKAGE_VERSION=0.1.9 refused \
  "pkg-config finds libshard 0.1.9, and these crates need 0.2.0 or newer"
PKG_CONFIG="$root/pkg-config" PACKAGE_VERSION=0.10.0 in_sdk build shard-sys ||
  fail "pkg-config gives the folder"

export SHARD_LIB_DIR="$root/lib"
cargo test --quiet --manifest-path tests/sdk/rust/Cargo.toml
in_sdk test shard --doc
