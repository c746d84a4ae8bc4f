#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Compiles the headers of the C++ SDK as hosts do: each alone, by two compilers,
# with more warnings than this tree uses, and without run-time type information.
# Among the warnings is that of fields that an initializer leaves out: a field
# that is new in an option struct of the C interface is missing here, too, until
# the SDK has it. Then compiles programs with mistakes, which the headers refuse.

set -euo pipefail

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

readonly flags=(-std=c++20 -fsyntax-only -I api/include -I sdk/cpp/include
  -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wold-style-cast
  -Wmissing-field-initializers -Werror)

source="$TEST_TMPDIR/source.cc"

for header in sdk/cpp/include/shard/*.hpp; do
  echo "#include \"shard/${header##*/}\"" >"$source"
  g++ "${flags[@]}" "$source" || fail "$header alone, g++"
done
clang++-14 "${flags[@]}" -Wzero-as-null-pointer-constant "$source" ||
  fail "$header, clang++"

# Uses every template once.
cat >"$source" <<'END'
#include "shard/shard.hpp"
void use(shard::Engine& engine, shard::Unit& unit, shard::ParamId param,
         std::vector<float>& values) {
  unit.param<float>(param);
  unit.grad<std::byte>(param);
  unit.param_ptr<float>(param);
  unit.grad_ptr<std::byte>(param);
  engine.param_ptr<float>(param);
  engine.writable_param_ptr<float>(param);
  engine.grad_ptr<float>(param);
  engine.set_param(param, values);
  engine.bind_param(param, std::span(values), std::span(values));
  engine.buffer<std::int64_t>(shard::ModelBufferId{0});
  auto state = shard::StateDict::get(engine);
  state.add("key", {2, 3}, std::span(values));
  state.local<double>(0);
  state.local_ptr<double>(0);
  auto checkpoint = shard::Checkpoint::open("ckpt");
  values = checkpoint.read<float>(0);
  shard::Checkpoint::save(engine, "ckpt", {.progress = [](auto, auto) {}});
}
END
g++ "${flags[@]}" -fno-rtti "$source" || fail "g++ -fno-rtti"
clang++-14 "${flags[@]}" -fno-rtti "$source" || fail "clang++ -fno-rtti"

# Each line is a mistake, behind the error that clang++ has for it.
cat >"$TEST_TMPDIR/mistakes" <<'END'
deleted|auto copy = engine;
cannot initialize|model.freeze(shard::UnitId{0});
nodiscard|engine.unit_acquire(shard::UnitId{0}, shard::Pass::forward);
no element type|(void)shard::dtype_of<long double>;
deleted|model.add_module(shard::root_module, nullptr);
temporary|auto p = engine.unit_acquire(shard::UnitId{0}, shard::Pass::forward).param<float>(shard::ParamId{0}); (void)p;
end of the full-expression|auto name = engine.plan().param_name(shard::ParamId{0}); (void)name;
no matching|state.add("key", {2}, std::vector<float>(2));
END
{
  echo '#include "shard/shard.hpp"'
  echo 'void use(shard::Engine& engine, shard::Model& model,' \
    'shard::StateDict& state) {'
  echo '#line 1 "mistakes"'
  cut -d'|' -f2- "$TEST_TMPDIR/mistakes" | sed 's/.*/{ & }/'
  echo '}'
} >"$source"
! clang++-14 "${flags[@]}" -ferror-limit=0 "$source" 2>"$TEST_TMPDIR/errors" ||
  fail "the mistakes compile"
line=0
while IFS='|' read -r error code; do
  line=$((line + 1))
  # An error in a template names the line in a note.
  awk -v at="mistakes:$line:" -v error="$error" '
    / error: / { text = $0; here = 0 }
    index($0, at) { here = 1 }
    here && index(text, error) { found = 1 } END { exit !found }' \
    "$TEST_TMPDIR/errors" ||
    fail "'$code' has no error '$error': $(<"$TEST_TMPDIR/errors")"
done <"$TEST_TMPDIR/mistakes"

echo '#include "shard/shard.hpp"' >"$source"
! g++ "${flags[@]}" -fno-exceptions "$source" 2>"$TEST_TMPDIR/errors" ||
  fail "it compiles without exceptions"
grep -q 'needs exceptions' "$TEST_TMPDIR/errors" ||
  fail "no word of exceptions: $(<"$TEST_TMPDIR/errors")"
