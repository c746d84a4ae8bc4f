# SPDX-License-Identifier: Apache-2.0
"""The package itself: generated declarations, the guide, the wheel."""

import hashlib
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import unittest

import shard
from sdk_testing import SdkTest
from shard import _c

ROOT = pathlib.Path(__file__).parents[3]
GUIDE = ROOT / "docs/python.md"


def run(*command, **options):
    done = subprocess.run(command, text=True, capture_output=True, timeout=120,
                          **options)
    if done.returncode:
        raise AssertionError(f"{command} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


class DeclarationsTest(SdkTest):
    def test_the_declarations_are_those_of_the_headers(self):
        run(sys.executable, str(ROOT / "sdk/python/bindings/generate.py"),
            "--check")

    def test_struct_sizes_and_offsets_are_those_of_c(self):
        record = (ROOT / "tests/abi/layout.txt").read_text()
        fields = re.findall(r"^field (\w+)\.(\w+) (\d+) \+(\d+)$", record, re.M)
        self.assertGreater(len(fields), 100)
        for struct, name, offset, size in fields:
            field = getattr(getattr(_c, struct), name)
            self.assertEqual((field.offset, field.size),
                             (int(offset), int(size)), f"{struct}.{name}")


class GuideTest(SdkTest):
    def test_the_table_of_functions_is_complete_and_true(self):
        rows = dict(re.findall(r"^\| `(shard_\w+)` \| `([\w.]+)(?:\(.*?)?` \|",
                               GUIDE.read_text(), re.M))
        left_out = {"shard_error_code", "shard_error_message",
                    "shard_error_rank", "shard_error_detail",
                    "shard_error_free"}
        functions = {name for name in _c.FUNCTIONS
                     if not name.endswith("_free")}
        self.assertEqual(set(rows), functions - left_out)
        for name, path in rows.items():
            with self.subTest(function=name):
                found = shard
                for part in path.split("."):
                    found = getattr(found, part)
                self.assertTrue(callable(found) or isinstance(found, property))

    def test_the_programs_print_what_the_guide_says(self):
        blocks = re.findall(r"```python\n(.*?)```\n+(?:```text\n(.*?)```)?",
                            GUIDE.read_text(), re.S)
        self.assertEqual(len(blocks), 4)
        # gpu_on_fake.py runs those that need GPUs.
        blocks = [block for block in blocks if "cuda:" not in block[0]]
        self.assertEqual(len(blocks), 3)
        if importlib.util.find_spec("torch") is None:
            blocks = [block for block in blocks if "torch" not in block[0]]
            self.assertEqual(len(blocks), 2)
        for number, (code, expected) in enumerate(blocks):
            with self.subTest(code=code[:60]):
                folder = self.folder / str(number)
                folder.mkdir()
                self.assertEqual(run(sys.executable, "-c", code, cwd=folder),
                                 expected)


class WheelTest(SdkTest):
    def make(self, folder):
        return run(sys.executable, str(ROOT / "sdk/python/make_wheel.py"),
                   "--library", os.environ["SHARD_REAL_LIBRARY"], "--output",
                   str(folder)).strip()

    def test_the_wheel_is_installed_without_a_network_and_works(self):
        wheel = self.make(self.folder)
        self.assertRegex(wheel, r"libshard-0\.2\.0-py3-none-linux_\w+\.whl$")
        site = self.folder / "site"
        run(sys.executable, "-m", "pip", "install", "--no-index", "--quiet",
            "--no-compile", "--target", str(site), wheel,
            env={**os.environ, "HOME": str(self.folder),
                 "PIP_ROOT_USER_ACTION": "ignore"})
        metadata = (site / "libshard-0.2.0.dist-info/METADATA").read_text()
        self.assertRegex(metadata, r"Needs Linux on \w+ with glibc 2\.\d+ and"
                         r" libstdc\+\+ GLIBCXX_3\.4\.\d+ or newer")
        for file in (ROOT / "sdk/python/shard").rglob("*.py"):
            installed = site / file.relative_to(ROOT / "sdk/python")
            self.assertEqual(installed.read_bytes(), file.read_bytes())
        environment = {name: value for name, value in os.environ.items()
                       if name not in ("LD_LIBRARY_PATH", "SHARD_LIBRARY")}
        found = run(sys.executable, "-c",
                    "import shard; from shard import _library;"
                    "print(shard.version(), _library.path)",
                    env={**environment, "PYTHONPATH": str(site)})
        self.assertEqual(
            found, f"{shard.version()} {site}/shard/lib/libshard.so.0\n")

    def test_the_same_sources_make_the_same_bytes(self):
        digests = {hashlib.sha256(pathlib.Path(self.make(
            self.folder / name)).read_bytes()).digest() for name in "ab"}
        self.assertEqual(len(digests), 1)


if __name__ == "__main__":
    unittest.main()
