#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
#
# Usage: report_page_test SHARDCTL MAKE_CHECKPOINT
#
# Tests the page of `shardctl report` as a browser shows it: Chromium draws it
# on wide and on narrow windows, light and dark. From its DOM: nothing is wider
# than the window, bars are as long as their bytes, and keys are text. From its
# picture: every part of a bar has its color where the DOM says that it is.

import html
import html.parser
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

SCRATCH = os.environ.get("TEST_TMPDIR") or tempfile.mkdtemp()
HEIGHT = 900

# This script runs before the page's Content-Security-Policy is read, which
# forbids scripts.
MEASURE = """<script>
addEventListener("load", () => {
  const box = (e) => {
    const r = e.getBoundingClientRect();
    return {x: r.x, y: r.y, width: r.width, height: r.height};
  };
  const bars = [...document.querySelectorAll(".bar")].map((bar) => ({
    stripe: bar.classList.contains("stripe"),
    label: bar.getAttribute("aria-label"),
    track: box(bar.parentElement),
    parts: [...bar.children].map((part) => ({
      size: Number(part.dataset.bytes || part.dataset.numel),
      color: getComputedStyle(part).backgroundColor,
      box: box(part)})),
  }));
  const wide = [...document.querySelectorAll("body *")].filter(
      (e) => !e.closest("thead") &&
             e.getBoundingClientRect().right > innerWidth + 0.5);
  const pre = parent.document.createElement("pre");
  pre.id = "measured";
  pre.textContent = JSON.stringify({
    window: innerWidth, scroll: document.documentElement.scrollWidth,
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
    page: getComputedStyle(document.body).backgroundColor,
    wide: wide.map((e) => e.outerHTML.slice(0, 200)), bars});
  parent.document.body.append(pre);
});
</script>"""


def run(*command):
    done = subprocess.run(command, capture_output=True, timeout=120)
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.stderr.decode()[-2000:]}")
    return done.stdout.decode()


def chromium(page, width, dark, *options):
    browser = shutil.which("chromium")
    if browser is None:
        raise AssertionError("no chromium; run tools/setup")
    profile = tempfile.mkdtemp(dir=SCRATCH)
    environment = dict(os.environ, HOME=profile)
    # The crash handler would write where a sandbox has no folder.
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu",
               "--disable-dev-shm-usage", "--disable-crash-reporter",
               "--no-first-run", "--hide-scrollbars", "--force-color-profile=srgb",
               f"--user-data-dir={profile}", f"--window-size={width},{HEIGHT}",
               f"--blink-settings=preferredColorScheme={0 if dark else 1}",
               *options, "file://" + page]
    done = subprocess.run(command, capture_output=True, timeout=120,
                          env=environment)
    shutil.rmtree(profile, ignore_errors=True)
    if done.returncode != 0:
        raise AssertionError(f"chromium: {done.stderr.decode()[-2000:]}")
    return done.stdout.decode()


def measure(page, width, dark):
    """Measures the page in a frame: windows are not as narrow as phones."""
    with open(page) as file:
        text = file.read().replace("<head>", "<head>" + MEASURE, 1)
    frame = os.path.join(SCRATCH, "frame.html")
    with open(frame, "w") as file:
        file.write('<!DOCTYPE html><meta name="color-scheme" '
                   'content="light dark"><body style="margin:0">'
                   f'<iframe style="border:0;width:{width}px;height:{HEIGHT}px"'
                   f' srcdoc="{html.escape(text)}"></iframe>')
    dom = chromium(frame, max(width, 800), dark, "--dump-dom")
    begin = dom.index('<pre id="measured">') + len('<pre id="measured">')
    return json.loads(html.unescape(dom[begin:dom.index("</pre>", begin)]))


class Picture:
    """The pixels of a PNG of 8 bits per channel."""

    def __init__(self, path):
        with open(path, "rb") as file:
            data = file.read()
        at, packed = 8, b""
        while at < len(data):
            size, kind = struct.unpack(">I4s", data[at:at + 8])
            chunk = data[at + 8:at + 8 + size]
            if kind == b"IHDR":
                self.width, self.height, depth, color = struct.unpack(
                    ">IIBB", chunk[:10])
                assert depth == 8 and color in (2, 6), (depth, color)
                self.channels = 3 if color == 2 else 4
            elif kind == b"IDAT":
                packed += chunk
            at += 12 + size
        self.rows = self._unfilter(zlib.decompress(packed))

    def _unfilter(self, raw):
        n, stride = self.channels, self.width * self.channels
        rows, above = [], bytearray(stride)
        for y in range(self.height):
            kind = raw[y * (stride + 1)]
            row = bytearray(raw[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
            if kind == 1:
                for i in range(n, stride):
                    row[i] = (row[i] + row[i - n]) & 255
            elif kind == 2:
                row = bytearray((a + b) & 255 for a, b in zip(row, above))
            elif kind == 3:
                for i in range(stride):
                    left = row[i - n] if i >= n else 0
                    row[i] = (row[i] + (left + above[i]) // 2) & 255
            elif kind == 4:
                for i in range(stride):
                    a = row[i - n] if i >= n else 0
                    b, c = above[i], above[i - n] if i >= n else 0
                    pa, pb, pc = abs(b - c), abs(a - c), abs(a + b - 2 * c)
                    best = a if pa <= pb and pa <= pc else b if pb <= pc else c
                    row[i] = (row[i] + best) & 255
            rows.append(bytes(row))
            above = row
        return rows

    def pixel(self, x, y):
        at = int(x) * self.channels
        return tuple(self.rows[int(y)][at:at + 3])

    def colors(self):
        """Counts the colors of every second pixel of every second row."""
        counts = {}
        step = 2 * self.channels
        for row in self.rows[::2]:
            for at in range(0, len(row), step):
                color = row[at:at + 3]
                counts[color] = counts.get(color, 0) + 1
        return counts


def rgb(text):
    """Returns the color "rgb(1, 2, 3)", or None for one of another space."""
    if not text.startswith("rgb("):
        return None
    return tuple(int(part) for part in text[4:-1].split(","))


class Markup(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data


class ReportPageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.mkdtemp(dir=SCRATCH)
        run(MAKE_CHECKPOINT, folder + "/ckpt", "4", "12")
        run(SHARDCTL, "reshard", folder + "/ckpt", folder + "/many",
            "--ranks", "200")
        cls.few, cls.many = folder + "/few.html", folder + "/many.html"
        run(SHARDCTL, "report", folder + "/ckpt", "-o", cls.few)
        run(SHARDCTL, "report", folder + "/many", "-o", cls.many)

    def test_keys_are_text(self):
        for page in (self.few, self.many):
            with open(page) as file:
                markup = Markup()
                markup.feed(file.read())
            self.assertNotIn("script", markup.tags)
            for tag in ("img", "link", "iframe", "object", "b"):
                self.assertNotIn(tag, markup.tags)
            for name, value in markup.attributes:
                self.assertFalse(name.startswith("on"), name)
                self.assertNotIn(name, ("src", "href"))
                self.assertNotIn("url(", value or "")
            self.assertIn('<script>document["body"]=0</script>', markup.text)
            self.assertIn("\"onmouseover=alert(1) x='&amp;", markup.text)
            self.assertIn("a\\\\nb\\u{202e} gnp", markup.text)
            self.assertEqual(markup.tags.count("table"),
                             markup.tags.count("caption"))

    def test_a_page_of_many_files_is_short(self):
        self.assertLess(os.path.getsize(self.many), 200_000)

    def check(self, page, width, dark):
        seen = measure(page, width, dark)
        self.assertEqual(seen["window"], width)
        self.assertLessEqual(seen["scroll"], width)
        self.assertEqual(seen["wide"], [])
        self.assertEqual(seen["dark"], dark)
        self.assertGreater(len(seen["bars"]), 8)

        files = [bar for bar in seen["bars"] if not bar["stripe"]]
        # Widths are bytes: a pixel stands for the same number of bytes in every
        # bar.
        sums = [sum(part["size"] for part in bar["parts"]) for bar in files]
        scale = files[0]["track"]["width"] / max(sums)
        self.assertGreater(files[0]["track"]["width"], width / 3)
        for bar in seen["bars"]:
            self.assertTrue(bar["label"])
            if bar["stripe"]:
                scale_here = bar["track"]["width"] / sum(
                    part["size"] for part in bar["parts"])
            else:
                scale_here = scale
            for part in bar["parts"]:
                self.assertAlmostEqual(part["box"]["width"],
                                       part["size"] * scale_here, delta=1)

        path = os.path.join(SCRATCH, f"page-{width}-{dark}.png")
        chromium(page, width, dark, "--screenshot=" + path)
        picture = Picture(path)
        self.assertEqual((picture.width, picture.height), (width, HEIGHT))
        colors = picture.colors()
        self.assertGreater(len(colors), 50)
        self.assertIn(bytes(rgb(seen["page"])), colors)
        brightness = sum(sum(c) * n for c, n in colors.items()) / (
            3 * sum(colors.values()))
        (self.assertLess if dark else self.assertGreater)(brightness, 128)
        checked = 0
        for bar in seen["bars"]:
            for part in bar["parts"]:
                box = part["box"]
                expected = rgb(part["color"])
                y = box["y"] + box["height"] / 2
                if box["width"] < 4 or y >= HEIGHT - 2 or expected is None:
                    continue
                self.assertEqual(
                    picture.pixel(box["x"] + box["width"] / 2, y), expected)
                checked += 1
        self.assertGreater(checked, 2)

    def test_drawn(self):
        for page, width, dark in ((self.few, 1280, False),
                                  (self.few, 1280, True),
                                  (self.few, 390, False),
                                  (self.few, 390, True),
                                  (self.many, 1280, True),
                                  (self.many, 390, False)):
            with self.subTest(page=page, width=width, dark=dark):
                self.check(page, width, dark)


if __name__ == "__main__":
    SHARDCTL, MAKE_CHECKPOINT = (os.path.abspath(p) for p in sys.argv[1:3])
    unittest.main(argv=sys.argv[:1])
