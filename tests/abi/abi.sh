# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# Makes the records of the ABI. Sourced by abi_test.sh and record.sh, in a
# folder that holds this tree's files.

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
