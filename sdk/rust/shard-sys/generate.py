# SPDX-License-Identifier: Apache-2.0
"""Writes the Rust declarations of libshard's C interface.

Usage: generate.py [--check]

Run it in the root of the repository after a change of api/include/shard. It
writes src/bindings.rs beside itself, and tests/sdk/rust/layout_names.rs, by
which a test compares the layout of the Rust structs with that of C. --check
writes nothing, prints the differences and returns 1 if there are any.
"""

import difflib
import pathlib
import sys

sys.path.insert(0, "tools/bindings")
import c_headers  # noqa: E402: the path above leads to it.

HEAD = """\
// SPDX-License-Identifier: Apache-2.0
//
// Written by sdk/rust/shard-sys/generate.py from the headers in
// api/include/shard. Change these, and run it again.
"""

TYPES = {
    "void": "c_void", "char": "c_char", "bool": "bool", "float": "f32",
    "double": "f64", "size_t": "usize", "int8_t": "i8", "int16_t": "i16",
    "int32_t": "i32", "int64_t": "i64", "uint8_t": "u8", "uint16_t": "u16",
    "uint32_t": "u32", "uint64_t": "u64",
}

KEYWORDS = {"type", "in", "match", "move", "ref", "where", "loop"}


def rust_type(c):
    if c.to:
        return f"*{'const' if c.to.const else 'mut'} {rust_type(c.to)}"
    return TYPES.get(c.name, c.name)


def rust_name(name):
    return f"r#{name}" if name in KEYWORDS else name


def docs(declaration, indent=""):
    """Returns the comment of a declaration as a doc comment. Rustdoc takes
    indented lines for code, so paragraphs that have some are fenced."""
    lines = []
    for paragraph in filter(None, declaration.comment.split("\n\n")):
        text = paragraph.split("\n")
        if any(line.startswith("  ") for line in text):
            text = ["```text", *text, "```"]
        lines += [""] * bool(lines) + text
    return "".join(f"{indent}/// {line}".rstrip() + "\n" for line in lines)


def params_of(declaration):
    return ", ".join(f"{rust_name(p.name)}: {rust_type(p.type)}"
                     for p in declaration.params)


def result_of(declaration):
    if declaration.result == c_headers.Type("void"):
        return ""
    return f" -> {rust_type(declaration.result)}"


class Bindings:
    """Makes the text of bindings.rs."""

    def __init__(self, api):
        self.api = api
        self.aliases = {a.name: a.type for a in api.aliases}
        self.structs = {s.name: s for s in api.structs}
        self.callbacks = {c.name for c in api.callbacks}

    def zero(self, variable):
        """Returns the zero value of a field."""
        if variable.length is not None:
            return f"[0; {variable.length}]"
        c = variable.type
        if c.to:
            return "ptr::null()" if c.to.const else "ptr::null_mut()"
        if c.name in self.callbacks:
            return "None"
        if c.name in self.structs:
            return self.zeros(self.structs[c.name])
        c = self.aliases.get(c.name, c)
        return "0.0" if c.name in ("float", "double") else "0"

    def zeros(self, struct, size=None):
        values = [f"{f.name}: {size if size and i == 0 else self.zero(f)}"
                  for i, f in enumerate(struct.fields)]
        return f"{struct.name} {{ {', '.join(values)} }}"

    def constant(self, constant, c_type):
        return (f"{docs(constant)}pub const {constant.name}: {c_type} ="
                f" {constant.value};\n")

    def declaration(self, d):
        if isinstance(d, c_headers.Constant):
            return self.constant(d, "i32")
        if isinstance(d, c_headers.Enum):
            return "".join(self.constant(c, d.alias or "i32")
                           for c in d.constants)
        if isinstance(d, c_headers.Alias):
            return f"{docs(d)}pub type {d.name} = {rust_type(d.type)};\n"
        if isinstance(d, c_headers.Handle):
            return (f"{docs(d)}#[repr(C)]\npub struct {d.name} {{\n"
                    "    _private: [u8; 0],\n"
                    "    _marker: PhantomData<(*mut u8, PhantomPinned)>,\n}\n")
        if isinstance(d, c_headers.Callback):
            return (f"{docs(d)}pub type {d.name} = Option<unsafe extern \"C\""
                    f" fn({params_of(d)}){result_of(d)}>;\n")
        if isinstance(d, c_headers.Struct):
            return self.struct(d)
        return (f"extern \"C\" {{\n{docs(d, '    ')}"
                f"{'    #[must_use]' + chr(10) if d.nodiscard else ''}"
                f"    pub fn {d.name}({params_of(d)}){result_of(d)};\n}}\n")

    def struct(self, d):
        text = (f"{docs(d)}#[repr(C)]\n#[derive(Clone, Copy)]\n"
                f"pub struct {d.name} {{\n")
        for field in d.fields:
            c_type = rust_type(field.type)
            if field.length is not None:
                c_type = f"[{c_type}; {field.length}]"
            text += f"{docs(field, '    ')}    pub {field.name}: {c_type},\n"
        text += "}\n"
        if d.init:
            value = self.zeros(d, f"mem::size_of::<{d.name}>()")
            text += (f"/// All fields zero, but for struct_size.\n"
                     f"pub const {d.init}: {d.name} = {value};\n")
        return text

    def text(self):
        parts = [HEAD, "use std::marker::{PhantomData, PhantomPinned};\n"
                 "use std::mem;\nuse std::os::raw::{c_char, c_void};\n"
                 "use std::ptr;\n"]
        return "\n".join(parts + [self.declaration(d) for d in self.api.order])


def layout_names(api):
    """Returns a block of calls of macros for what is in tests/abi/layout.txt."""
    lines = []
    for d in api.order:
        if isinstance(d, c_headers.Struct):
            fields = ", ".join(f.name for f in d.fields)
            lines.append(f"layout!({d.name} {{ {fields} }});")
            if d.init:
                lines.append(f"init!({d.init}, {d.name});")
        elif isinstance(d, c_headers.Enum):
            lines += [f"constant!({c.name});" for c in d.constants]
    return f"{HEAD}\n{{\n" + "".join(f"    {line}\n" for line in lines) + "}\n"


def main(arguments):
    if arguments not in ([], ["--check"]):
        sys.exit(__doc__)
    api = c_headers.read("api/include/shard")
    made = {
        "sdk/rust/shard-sys/src/bindings.rs": Bindings(api).text(),
        "tests/sdk/rust/layout_names.rs": layout_names(api),
    }
    differ = False
    for path, text in made.items():
        file = pathlib.Path(path)
        if not arguments:
            file.write_text(text, encoding="utf-8")
            continue
        there = file.read_text(encoding="utf-8")
        difference = list(difflib.unified_diff(
            there.splitlines(), text.splitlines(), path, "generate.py",
            lineterm=""))
        differ = differ or bool(difference)
        print("\n".join(difference), end="\n" if difference else "")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
