#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tests that each block of code in the documents is known to a test, which the
# table below names, and compiles those blocks of C that are parts of a program.

set -euo pipefail

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# For each document: its blocks by language, and the test that compiles or runs
# them. "this" is the present one.
known() {
  cat <<'END'
README.md                     c=2                //tests/docs:readme_programs_test
docs/abi.md                   c=2                this
docs/adding-an-optimizer.md   diff=6             //tests/docs:adding_an_optimizer_test
docs/checkpoint-format.md     hex=1              //tests/core/checkpoint
docs/checkpoints.md           c=3,text=1         //tests/docs:checkpoints_example_test,this
docs/cpp.md                   cpp=5,text=1       //tests/docs:cpp_test
docs/flat-layout.md           c=2,text=1         //tests/docs:flat_layout_example_test,this
docs/go.md                    go=3,text=1        //tests/sdk/go:example_test
docs/gpu.md                   c=3                this
docs/numerics.md              c=1                this
docs/observability.md         c=1,json=1,log=1,text=2 //tests/docs:observability_test
docs/packages.md              cmake=1,python=2   //tests/package:package_test
docs/porting.md               diff=2,text=*      //tests/docs:porting_diffs_test,porting_errors_test
docs/python.md                python=*,text=*    //tests/sdk/python:uses_test
docs/rust.md                  rust=*,text=*,toml=1   //tests/sdk/rust:uses_test
docs/shardctl.md              json=1             //tests/docs:shardctl_test
docs/training-loop.md         c=4                this
END
}

# languages DOCUMENT: prints the language of each block.
languages() {
  awk '/^```/ { if (inside = !inside) print $0 == "```" ? "none" : substr($0, 4) }' "$1"
}

for document in *.md docs/*.md; do
  found="$(languages "$document" | sort | uniq -c | awk '{ print $2 "=" $1 }')"
  blocks="$(known | awk -v document="$document" '$1 == document { print $2 }')"
  diff <(tr ',' '\n' <<<"$blocks") \
    <(sed -E "$(grep -oE '[a-z]+=\*' <<<"$blocks" |
      sed -E 's,(.*)=\*,s/^\1=.*/\1=*/;,')" <<<"$found") ||
    fail "$document has other blocks (>) than a test knows (<); see $0"
done

# Compiles the parts of programs, each as the body of a function.
for document in $(known | awk '$3 ~ /this/ { print $1 }'); do
  awk -v document="$document" '
    BEGIN { print "#include \"tests/docs/fragments.h\"" }
    $0 == "```c" {
      code = 1
      text = "#line " NR + 1 " \"" document "\"\n"
      next
    }
    /^```$/ && code {
      if (text !~ /int main/) {
        print "void fragment" ++count "(void) {\n" text "}"
      }
      code = 0
    }
    code { text = text $0 "\n" }' "$document" >"$TEST_TMPDIR/fragments.c"
  grep -q "^void fragment1" "$TEST_TMPDIR/fragments.c" ||
    fail "$document has no parts of programs"
  gcc -std=c11 -Wall -Wextra -Werror -Wno-unused -fsyntax-only -I . \
    -I api/include "$TEST_TMPDIR/fragments.c" || fail "$document"
done
