#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: build.sh LIBRARY DOCUMENT TESTS EXAMPLE
#
# Vets the Go package and its tests, and compiles the tests as TESTS, and the
# program in DOCUMENT, which is its first block, as EXAMPLE, together with the
# other blocks. All have Go's race detector: the standard library and the package
# are compiled with it once.

set -euo pipefail

root="$PWD"
scratch="$(mktemp -d)"
trap 'chmod -R u+w "$scratch"; rm -rf "$scratch"' EXIT

export GOCACHE="$scratch/cache" GOPATH="$scratch/path"
export GOENV=off GOFLAGS= GOPROXY=off GOTOOLCHAIN=local CGO_ENABLED=1
# The name that -lshard looks for.
ln -s "$root/$1" "$scratch/libshard.so"
export CGO_CFLAGS="-O1 -Wall -Werror -I$root/api/include"
export CGO_LDFLAGS="-L$scratch"

# Bazel's links lead out of the sandbox, where Go would look for modules.
mkdir -p "$scratch/source/sdk" "$scratch/source/tests/sdk"
cp -rL sdk/go "$scratch/source/sdk"
cp -rL tests/sdk/go "$scratch/source/tests/sdk"

cd "$scratch/source/tests/sdk/go"
unformatted="$(gofmt -l . ../../../sdk/go)"
[[ -z "$unformatted" ]] || { echo "gofmt -w mends $unformatted" >&2; exit 1; }
go vet -race ./... libshard/shard
go test -race -c -o "$root/$3"

mkdir "$scratch/source/example"
cd "$scratch/source/example"
awk '$0 == "```go" { code = 1; next } code && /^```$/ { exit } code' \
  "$root/$2" >main.go
# The other blocks are bodies of functions.
awk '
  BEGIN {
    print "package main\nimport (\"context\"; \"errors\"; \"fmt\"; \"libshard/shard\")"
  }
  $0 == "```go" && ++count > 1 {
    code = 1
    print "func block" count "(ctx context.Context, engine *shard.Engine," \
      " id shard.ParamID, err error) error {\nif engine != nil {"
    next
  }
  /^```$/ && code { code = 0; print "}\nreturn nil\n}" }
  code' "$root/$2" >blocks.go
grep -q "^func block3" blocks.go ||
  { echo "$2 has fewer than 3 blocks of Go" >&2; exit 1; }
cat >go.mod <<END
module example
go 1.19
require libshard/shard v0.0.0
replace libshard/shard v0.0.0 => ../sdk/go
END
go vet -race .
go build -race -o "$root/$4"
