#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: deb.sh PREFIX FOLDER
#
# Packs what was installed in PREFIX as the Debian package
# FOLDER/libshard_VERSION_ARCHITECTURE.deb, which installs it in /usr, and prints
# this path. The same files give the same bytes, as in tar.sh.
#
# The package depends on the packages whose libraries the binaries name, in the
# versions that have their symbols (needs.sh). dpkg runs ldconfig by a trigger.
# The one script removes what Python compiles beside its sources when root runs it,
# and dpkg does not know.

set -euo pipefail
prefix="$1"
folder="$2"

export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-0}"
version="$(sed -n 's/^Version: //p' "$prefix/lib/pkgconfig/shard.pc")"
architecture="$(dpkg --print-architecture)"
name="libshard_${version}_$architecture"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
root="$scratch/root"

# unversioned PROGRAM: prints "libgloo0 0.0~git20220518.5b14351" for each library
# that PROGRAM needs and whose symbols have no versions, which needs.sh leaves out.
# The package of a library says in its .shlibs file what programs depend on:
# "libgloo 0 libgloo0 (>= 0.0~git20220518.5b14351)".
unversioned() {
  LC_ALL=C readelf -d "$1" |
    sed -n 's/.*(NEEDED).*\[\(.*\)\.so\.\(.*\)\]/\1 \2/p' |
    while read -r library version; do
      case "$library" in libc | libm | libgcc_s | libstdc++ | ld-linux*) continue ;; esac
      awk -v library="$library" -v version="$version" '
        $1 == library && $2 == version {
          sub(/\)/, "", $5)
          print $3, $5
          exit
        }' /var/lib/dpkg/info/*.shlibs
    done
}

# Prints "libc6 (>= 2.34), ...". The Debian package of a library lists, in its
# .symbols file, the version of the package that brought each symbol version.
dependencies() {
  local library needed found
  {
    unversioned "$root/usr/libexec/libshard/shard-network"
    "$(dirname "${BASH_SOURCE[0]}")/needs.sh" \
      "$root/usr/lib/libshard.so.0" "$root/usr/bin/shardctl" \
      "$root/usr/libexec/libshard/shard-network" |
      while read -r library needed; do
        found="$(awk -v library="$library" -v symbol="$needed@$needed" '
          /^[^ |*]/ { package = $1 == library ? $2 : "" }
          package != "" && $1 == symbol { print package, $2; exit }' \
          /var/lib/dpkg/info/*":$architecture.symbols")"
        if [[ -z "$found" ]]; then
          echo "deb.sh: no installed package has $needed of $library" >&2
          return 1
        fi
        echo "$found"
      done
  } | sort -k1,1 -k2,2V | awk '
    { newest[$1] = $2 }
    END {
      for (package in newest) {
        print package (newest[package] != "" ? " (>= " newest[package] ")" : "")
      }
    }' |
    sort | paste -sd, | sed 's/,/, /g'
}

mkdir -p "$root/usr" "$root/DEBIAN"
cp -a "$prefix/." "$root/usr"
# Debian's names, and compressed as Debian has them. The documents link to
# CHANGELOG.md.
documents="$root/usr/share/doc/libshard"
cp "$documents/CHANGELOG.md" "$documents/changelog"
gzip -9n "$documents/changelog" "$root/usr/share/man/man1"/*.1
# The place is known here, so that pkg-config need not name it.
sed -i 's,^prefix=.*,prefix=/usr,' "$root/usr/lib/pkgconfig/shard.pc"
chmod -R u=rwX,go=rX "$root"
depends="$(dependencies)"

cat >"$root/DEBIAN/control" <<END
Package: libshard
Version: $version
Architecture: $architecture
Maintainer: The libshard authors <libshard@localhost>
Installed-Size: $(find "$root/usr" -type f -printf '%s\n' |
  awk '{ bytes += $1 } END { printf "%d", bytes / 1024 + 1 }')
Depends: $depends
Suggests: libopenblas0, python3-numpy
Section: libs
Priority: optional
Description: sharded data-parallel training for engines in any language
 libshard lays the parameters of a model out in flat buffers, shards them, their
 gradients and the optimizer states over ranks (ZeRO 1, 2 and 3), reduces the
 gradients, takes the optimizer step, and saves checkpoints that load at any
 number of ranks.
 .
 This package has the shared library, its headers for C and C++, the packages
 for Rust, Go and Python, files for pkg-config, CMake and Bazel, the program
 shardctl and the documents. The optimizer muon loads a BLAS at run time, such as
 that of libopenblas0.
END
echo "libshard 0 libshard (>= $version)" >"$root/DEBIAN/shlibs"
echo "activate-noawait ldconfig" >"$root/DEBIAN/triggers"
(cd "$root" && find usr -type f -print0 | LC_ALL=C sort -z |
  xargs -0 md5sum) >"$root/DEBIAN/md5sums"
cat >"$root/DEBIAN/prerm" <<'END'
#!/bin/sh
find "${DPKG_ROOT:-}/usr/lib/python3/dist-packages/shard" -name __pycache__ \
  -exec rm -rf {} +
END
chmod 644 "$root"/DEBIAN/*
chmod 755 "$root/DEBIAN/prerm"
# dpkg-deb lowers later times to SOURCE_DATE_EPOCH and leaves earlier ones.
find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +

mkdir -p "$folder"
dpkg-deb --root-owner-group -Zxz --threads-max=1 --build "$root" \
  "$folder/$name.deb.new" >/dev/null
mv -fT "$folder/$name.deb.new" "$folder/$name.deb"
echo "$folder/$name.deb"
