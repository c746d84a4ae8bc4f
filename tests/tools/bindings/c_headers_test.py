#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tests the reader of C headers: on the headers that it is for, against the
records of the ABI, and on what it must refuse."""

import pathlib
import re
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tools/bindings"))

import c_headers
from c_headers import Type


def read_text(text):
    """Reads one header with this text."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "shard.h").write_text(text)
        return c_headers.read(folder)


class OurHeaders(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.api = c_headers.read(ROOT / "api/include/shard")
        cls.record = (ROOT / "tests/abi/layout.txt").read_text()

    def find(self, name):
        return next(d for d in self.api.order if d.name == name)

    def test_all_exported_functions_are_read(self):
        exported = re.findall(r"^(shard_\w+) SHARD_0 T$",
                              (ROOT / "tests/abi/symbols.txt").read_text(), re.M)
        self.assertGreater(len(exported), 100)
        self.assertEqual(sorted(f.name for f in self.api.functions), exported)

    def test_all_fields_on_record_are_read_in_their_order(self):
        recorded = re.findall(r"^field (\w+\.\w+) ", self.record, re.M)
        self.assertEqual([f"{s.name}.{f.name}" for s in self.api.structs
                          for f in s.fields
                          if f"{s.name}.{f.name}" not in recorded], [])
        self.assertEqual(len(recorded),
                         sum(len(s.fields) for s in self.api.structs))
        for struct in self.api.structs:
            in_record = [name.split(".")[1] for name in recorded
                         if name.startswith(struct.name + ".")]
            self.assertEqual([f.name for f in struct.fields], in_record)

    def test_all_constants_on_record_are_read(self):
        recorded = dict(re.findall(r"^constant (\w+) (-?\d+)$", self.record, re.M))
        read = {c.name: str(c.value) for e in self.api.enums for c in e.constants}
        read |= {c.name: str(c.value) for c in self.api.constants}
        for name, value in recorded.items():
            self.assertEqual(read[name], value, name)
        self.assertGreater(len(recorded), 50)

    def test_a_type_comes_before_its_uses_by_value(self):
        order = [d.name for d in self.api.order]
        self.assertLess(order.index("shard_state_filter"),
                        order.index("shard_save_options"))
        self.assertLess(order.index("shard_tensor_fn"),
                        order.index("shard_state_dict_gather"))

    def test_params_keep_their_pointers_and_constness(self):
        function = self.find("shard_engine_unit_params")
        self.assertTrue(function.nodiscard)
        self.assertEqual(function.result, Type("*", to=Type("shard_error")))
        self.assertEqual(
            [f"{p.type} {p.name}" for p in function.params],
            ["shard_engine* engine", "int32_t unit", "int32_t* params",
             "const void** data", "void** grads", "size_t capacity",
             "size_t* count"])
        data = function.params[3].type
        self.assertEqual(data.to.to, Type("void", const=True))
        self.assertFalse(data.const or data.to.const)

    def test_a_function_that_cannot_fail(self):
        function = self.find("shard_version")
        self.assertFalse(function.nodiscard)
        self.assertEqual(function.params, ())
        self.assertEqual(str(function.result), "const char*")

    def test_a_struct_has_its_fields_arrays_and_init(self):
        struct = self.find("shard_param_info")
        self.assertEqual(struct.init, "SHARD_PARAM_INFO_INIT")
        shape = next(f for f in struct.fields if f.name == "shape")
        self.assertEqual((shape.type, shape.length), (Type("int64_t"), 8))
        self.assertIsNone(self.find("shard_state_filter").init)

    def test_an_enum_knows_the_type_of_its_values(self):
        self.assertEqual(self.find("shard_code_values").alias, "shard_code")
        self.assertIsNone(self.find("shard_limits").alias)

    def test_a_callback(self):
        callback = self.find("shard_wrap_fn")
        self.assertEqual(callback.result, Type("int32_t"))
        self.assertEqual([p.name for p in callback.params],
                         ["module", "nonwrapped_numel", "user_data"])

    def test_comments_above_and_behind(self):
        self.assertTrue(self.find("shard_engine_step").comment.startswith(
            "Reduces the gradients of all ranks, updates the parameters,"))
        self.assertEqual(self.find("shard_comm_free").comment, "")
        info = {f.name: f.comment for f in self.find("shard_param_info").fields}
        self.assertEqual(info["ndim"], "")
        self.assertEqual(info["num_names"], "The FQN and the aliases.")
        codes = {c.name: c.comment
                 for c in self.find("shard_code_values").constants}
        self.assertEqual(codes["SHARD_RANK_LOST"],
                         "A rank died: shard_error_rank.")
        self.assertEqual(codes["SHARD_OK"], "")


class Refusals(unittest.TestCase):
    def refuses(self, text, message):
        with self.assertRaisesRegex(c_headers.HeaderError, message):
            read_text(text)

    def test_names_the_place(self):
        self.refuses("\n\nstruct x { int32_t a; };",
                     r"^shard\.h:3: an unknown declaration: 'struct'")

    def test_declarations_of_other_forms(self):
        self.refuses("int32_t x;", "an unknown declaration")
        self.refuses("SHARD_API void f(void);", "expected 'SHARD_NOEXCEPT'")
        self.refuses("SHARD_API void f(int32_t) SHARD_NOEXCEPT;",
                     "expected a word, not '\\)'")
        self.refuses("SHARD_API void f(int32_t a[2]) SHARD_NOEXCEPT;",
                     "expected ','")
        self.refuses("typedef struct a { int32_t x, y; } a;", "expected ';'")
        self.refuses("typedef struct a { int32_t x : 1; } a;", "unexpected ':")
        self.refuses("typedef struct a { int32_t x[n]; } a;", "is no constant")
        self.refuses("typedef struct a b;", "has another name")
        self.refuses("enum e { A, B };", "expected '='")
        self.refuses("enum e { A = 1 << 2 };", "unexpected '<< 2")
        self.refuses("enum e_values { A = 1 };", "no type e for e_values")
        self.refuses("union u { int32_t a; };", "an unknown declaration")

    def test_the_end_in_the_middle(self):
        self.refuses("typedef struct a {", "expected a word, not 'the end")
        self.refuses("/* open", "unexpected '/\\* open'")
        self.refuses("#ifdef __cplusplus\n", "has no #endif")

    def test_types_that_nobody_declares(self):
        self.refuses("SHARD_API void f(long a) SHARD_NOEXCEPT;",
                     "f uses the unknown type long")
        self.refuses("SHARD_API void f(void a) SHARD_NOEXCEPT;",
                     "unknown type void")
        self.refuses("typedef struct h h;\nSHARD_API void f(h a) SHARD_NOEXCEPT;",
                     "unknown type h")
        self.refuses("typedef int32_t a;\ntypedef int32_t a;", "a second time")

    def test_directives_of_other_forms(self):
        self.refuses("#if SHARD_VERSION_MAJOR > 1\n#endif", "unknown directive")
        self.refuses("#ifdef NDEBUG\n#endif", "a condition on NDEBUG")
        self.refuses("#else", "#else without a condition")
        self.refuses("#include <stdio.h>", "unknown directive")
        self.refuses('#include "shard/none.h"', "shard.h: no header none.h")
        self.refuses("#define SHARD_SQUARE(x) x", "an unknown macro")
        self.refuses("#define SHARD_API", "SHARD_API is ''")

    def test_an_init_that_sets_something(self):
        struct = "typedef struct shard_a { size_t struct_size; } shard_a;\n"
        self.refuses(struct + "#define SHARD_A_INIT { sizeof(shard_a), 1 }",
                     "not struct_size and zeros")
        self.refuses("#define SHARD_A_INIT { sizeof(shard_a), 0 }", "no structs")


if __name__ == "__main__":
    unittest.main()
