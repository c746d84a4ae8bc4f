#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the Python package's wheel, which carries libshard.so.0.

    sdk/python/make_wheel.py --library PATH [--plugin PATH] --output FOLDER

prints the wheel's path. pip installs the wheel without a network (--no-index),
for any Python 3.9 or newer on Linux with the C libraries that the wheel's
metadata states. The same sources and library make the same bytes."""

import argparse
import base64
import hashlib
import pathlib
import platform
import re
import subprocess
import tempfile
import zipfile

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
HELPER = "shard/libexec/libshard/shard-network"
EPOCH = (1980, 1, 1, 0, 0, 0)  # The first date that a zip file can have.

METADATA = """\
Metadata-Version: 2.1
Name: libshard
Version: {version}
Summary: Sharded data-parallel training (ZeRO), and its checkpoints
License: Apache-2.0
Requires-Python: >=3.9
Provides-Extra: numpy
Requires-Dist: numpy ; extra == 'numpy'
Description-Content-Type: text/markdown

libshard for Python: read checkpoints as numpy arrays, and train.

Needs Linux on {machine} with {needs} or newer.
"""

WHEEL = """\
Wheel-Version: 1.0
Generator: libshard
Root-Is-Purelib: false
Tag: {tag}
"""


def version():
    text = (HERE / "shard/_c.py").read_text(encoding="utf-8")
    numbers = re.search(r"^VERSION = \((\d+), (\d+), (\d+)\)$", text, re.M)
    return ".".join(numbers.groups())


def stripped(library):
    """Returns the library's bytes without debug information."""
    with tempfile.TemporaryDirectory() as folder:
        target = pathlib.Path(folder) / "library"
        subprocess.run(["strip", "--strip-unneeded", "-o", target, library],
                       check=True)
        return target.read_bytes()


def needs(library):
    """Returns the newest versions of the C and C++ libraries whose symbols the
    library uses: "glibc 2.34 and libstdc++ GLIBCXX_3.4.30"."""
    text = subprocess.run(["readelf", "-VW", library], check=True, text=True,
                          capture_output=True).stdout
    floors = {}
    for name, number in re.findall(r"Name: (GLIBC|GLIBCXX)_([\d.]+) ", text):
        key = tuple(map(int, number.split(".")))
        floors[name] = max(floors.get(name, ()), key)
    if "GLIBC" not in floors:
        raise SystemExit(f"{library} is no shared library that uses glibc")
    parts = ["glibc " + ".".join(map(str, floors["GLIBC"]))]
    if "GLIBCXX" in floors:
        parts.append("libstdc++ GLIBCXX_" +
                     ".".join(map(str, floors["GLIBCXX"])))
    return " and ".join(parts)


def contents(library, plugin, helper):
    """Returns the name of the wheel, and its files but for RECORD."""
    tag = f"py3-none-linux_{platform.machine()}"
    info = f"libshard-{version()}.dist-info"
    files = {str(path.relative_to(HERE)): path.read_bytes()
             for path in sorted((HERE / "shard").rglob("*.py"))}
    files["shard/lib/libshard.so.0"] = stripped(library)
    if plugin is not None:
        files["shard/lib/libshard_cuda.so"] = stripped(plugin)
    if helper is not None:
        # Where the library looks for it.
        files[HELPER] = stripped(helper)
    files[f"{info}/METADATA"] = METADATA.format(
        version=version(), machine=platform.machine(),
        needs=needs(library)).encode()
    files[f"{info}/WHEEL"] = WHEEL.format(tag=tag).encode()
    files[f"{info}/LICENSE"] = (ROOT / "LICENSE").read_bytes()
    return f"libshard-{version()}-{tag}.whl", info, files


def record(info, files):
    lines = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
        lines.append(f"{name},sha256={digest.decode().rstrip('=')},{len(data)}")
    return "".join(f"{line}\n" for line in [*lines, f"{info}/RECORD,,"])


def write(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix, whose modes these are.
            mode = 0o755 if ".so" in name or name == HELPER else 0o644
            entry.external_attr = (0o100000 | mode) << 16
            archive.writestr(entry, data, compresslevel=6)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--library", required=True, type=pathlib.Path)
    parser.add_argument("--plugin", type=pathlib.Path,
                        help="libshard_cuda.so; without it the wheel has no "
                        "device cuda")
    parser.add_argument("--helper", type=pathlib.Path,
                        help="shard-network; without it ranks of the wheel are "
                        "on one host")
    parser.add_argument("--output", required=True, type=pathlib.Path)
    arguments = parser.parse_args()
    name, info, files = contents(arguments.library, arguments.plugin,
                                 arguments.helper)
    files[f"{info}/RECORD"] = record(info, files).encode()
    arguments.output.mkdir(parents=True, exist_ok=True)
    path = arguments.output / name
    write(path, files)
    print(path)


if __name__ == "__main__":
    main()
