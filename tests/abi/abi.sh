# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# Makes the records of the ABI. Sourced by the tests and programs of this folder,
# where they have this tree's files.

readonly library=api/libshard.so.0
readonly headers=(api/include/shard/*.h)
readonly records=tests/abi

# Prints the name, the version and the kind of each symbol, such as
# "shard_version SHARD_0 T".
make_symbols() {
  nm -D --defined-only --with-symbol-versions "$library" |
    sed -nE 's/^[0-9a-f]+ ([A-Za-z]) ([^@ ]+)@@?([^ ]+)$/\2 \3 \1/p
             s/^[0-9a-f]+ ([A-Za-z]) ([^@ ]+)$/\2 - \1/p' | LC_ALL=C sort
}

make_layout() {
  tests/abi/layout
}

# Prints functions with their types, and the types of the headers. The types
# behind handles are private and left out, and so are line numbers: an edit
# elsewhere in a file is then no difference.
make_abi() {
  abidw --headers-dir api/include/shard --drop-private-types \
    --exported-interfaces-only --no-show-locs --no-corpus-path \
    --no-comp-dir-path --type-id-style hash "$library"
}

# make_release FOLDER: writes what is kept of a release: the three records, the
# headers without their comments, and a host.
make_release() {
  local header
  mkdir -p "$1/include/shard"
  make_symbols >"$1/symbols.txt"
  make_layout >"$1/layout.txt"
  make_abi >"$1/libshard.abi"
  for header in "${headers[@]}"; do
    # gcc takes the branches of an #ifdef for definitions of the same name.
    gcc -fpreprocessed -dD -E -P -xc -w "$header" \
      >"$1/include/shard/${header##*/}"
  done
  cp tests/embed/host.c "$1/host.c"
  chmod 644 "$1/host.c"
}
