#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: install.sh BUILT PREFIX
#
# Copies the headers and the sources of the packages for Go, Rust and Python in
# the current folder, and the results of Bazel in the folder BUILT, to the places
# below PREFIX where hosts look for them. tools/package --help lists these.

set -euo pipefail
built="$1"
prefix="$2"

# put MODE FROM TO: installs FROM as TO. The new file takes the name of the old
# one and never its bytes, so running programs go on, and a link to a file
# elsewhere is replaced and not followed. A folder of that name is an error, not
# the place to put the file (-T).
put() {
  local mode="$1" from="$2" to="$3"
  install -D -T -m "$mode" "$from" "$to.new"
  case "$from" in
    *.so | *.so.* | */shardctl | */shard-network) strip --strip-unneeded "$to.new" ;;
  esac
  take_name "$to"
}

# take_name TO: renames TO.new to TO.
take_name() {
  mv -fT "$1.new" "$1" && return
  rm -f "$1.new"
  exit 1
}

for header in api/include/shard/*.h sdk/cpp/include/shard/*.hpp; do
  put 644 "$header" "$prefix/include/shard/${header##*/}"
done
put 644 "$built/api/libshard.so.0" "$prefix/lib/libshard.so.0"
ln -sfT libshard.so.0 "$prefix/lib/libshard.so.new"
take_name "$prefix/lib/libshard.so"
put 644 "$built/api/libshard_cuda.so" "$prefix/lib/libshard_cuda.so"
put 755 "$built/sdk/cli/shardctl" "$prefix/bin/shardctl"
put 755 "$built/sdk/network/shard-network" "$prefix/libexec/libshard/shard-network"

version="$(sed -nE 's/^#define SHARD_VERSION_(MAJOR|MINOR|PATCH) +//p' \
  api/include/shard/base.h | paste -sd.)"
put 644 /dev/stdin "$prefix/lib/pkgconfig/shard.pc" <<END
prefix=\${pcfiledir}/../..
includedir=\${prefix}/include
libdir=\${prefix}/lib

Name: shard
Description: Sharded data-parallel training (ZeRO) for engines in any language
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -lshard
END

# find_package(shard) makes the target shard::shard.
cmake="$prefix/lib/cmake/shard"
put 644 /dev/stdin "$cmake/shard-config.cmake" <<'END'
# Where /lib is a link to /usr/lib, this file is found by both names.
get_filename_component(_shard_prefix "${CMAKE_CURRENT_LIST_DIR}" REALPATH)
get_filename_component(_shard_prefix "${_shard_prefix}/../../.." ABSOLUTE)
if(NOT TARGET shard::shard)
  add_library(shard::shard SHARED IMPORTED)
  set_target_properties(shard::shard PROPERTIES
    IMPORTED_LOCATION "${_shard_prefix}/lib/libshard.so.0"
    IMPORTED_SONAME "libshard.so.0"
    INTERFACE_INCLUDE_DIRECTORIES "${_shard_prefix}/include")
endif()
unset(_shard_prefix)
END
put 644 /dev/stdin "$cmake/shard-config-version.cmake" <<END
# A library serves hosts of its own version and of older ones with the same
# first number: docs/abi.md.
set(PACKAGE_VERSION $version)
set(PACKAGE_VERSION_COMPATIBLE FALSE)
if(NOT PACKAGE_VERSION VERSION_LESS PACKAGE_FIND_VERSION
   AND PACKAGE_FIND_VERSION_MAJOR EQUAL ${version%%.*})
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
if(PACKAGE_VERSION VERSION_EQUAL PACKAGE_FIND_VERSION)
  set(PACKAGE_VERSION_EXACT TRUE)
endif()
if(DEFINED CMAKE_SIZEOF_VOID_P AND NOT CMAKE_SIZEOF_VOID_P EQUAL 8)
  set(PACKAGE_VERSION_UNSUITABLE TRUE)
endif()
END

# A repository for Bazel's local_repository, with the target @shard. Its links
# lead to the headers and the library above.
bazel="$prefix/share/shard/bazel"
put 644 /dev/stdin "$bazel/WORKSPACE" <<'END'
workspace(name = "shard")
END
put 644 /dev/stdin "$bazel/BUILD.bazel" <<'END'
cc_library(
    name = "shard",
    srcs = ["lib/libshard.so.0"],
    hdrs = glob(["include/shard/**"]),
    includes = ["include"],
    visibility = ["//visibility:public"],
)
END
for name in include/shard lib/libshard.so.0; do
  install -d -m 755 "$bazel/${name%/*}"
  ln -sfT "../../../../$name" "$bazel/$name.new"
  take_name "$bazel/$name"
done

# put_all FOLDER TO FILE...: installs FILEs, whose names begin with FOLDER, below
# TO, and nothing else: a source of an earlier version would be compiled too.
put_all() {
  local folder="$1" to="$2"
  shift 2
  rm -rf -- "$to"
  install -d -m 755 -- "$to"
  to="$(realpath -- "$to")"
  (cd "$folder" && cp -L --parents -t "$to" "${@#"$folder"/}")
  find "$to" -type d -exec chmod 755 {} + -o -exec chmod 644 {} +
}

put_all sdk/go "$prefix/share/shard/go" sdk/go/go.mod sdk/go/*.{go,c,h}
put_all sdk/rust "$prefix/share/shard/rust" sdk/rust/{,shard/,shard-sys/}Cargo.toml \
  sdk/rust/shard-sys/build.rs sdk/rust/*/src/*.rs

# Debian's Python looks in this folder of /usr; elsewhere PYTHONPATH names it. The
# link makes the library that is installed here the one that the package loads.
python="$prefix/lib/python3/dist-packages/shard"
shopt -s globstar
put_all sdk/python/shard "$python" sdk/python/shard/**/*.py
install -d -m 755 "$python/lib"
ln -sfT ../../../../libshard.so.0 "$python/lib/libshard.so.0.new"
take_name "$python/lib/libshard.so.0"
