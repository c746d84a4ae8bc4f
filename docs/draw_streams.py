#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the picture in streams.md: a step on three streams, in both ways.

Usage: draw_streams.py > streams.svg

A panel has a lane per stream. Time goes from left to right, and all numbers are
pixels. Boxes are work, arrows are edges between streams, and dashed lines are
meetings of the ranks.
"""

WIDTH = 760
LANE = 44  # From the middle of a lane to that of the next.
BOX = 26  # The height of a box.
LEFT = 116  # Where time begins.
COLORS = {"host": "#dbe7f6", "compute": "#dff0d8", "communication": "#fbe6c8"}
STYLE = """\
text { font: 11px sans-serif; fill: #222 }
.title { font-size: 12px; font-weight: bold }
.note { fill: #555 }
rect.box { stroke: #555 }
line.lane { stroke: #ddd }
path.edge { stroke: #b03030; stroke-width: 1.5; fill: none }
line.meeting { stroke: #333; stroke-dasharray: 5 4 }"""


class Panel:
    """The streams of one way to step, below a title."""

    def __init__(self, top, title, streams, end):
        self.shapes = []
        self.boxes = {}  # By name: the stream, and the ends in time.
        self.top = top
        self.streams = streams
        self.bottom = self.middle(streams[-1]) + BOX
        self.text(16, top, title, "title")
        for stream in streams:
            y = self.middle(stream)
            self.shapes.append(f'<line class="lane" x1="{LEFT}" y1="{y}"'
                               f' x2="{end}" y2="{y}"/>')
            self.text(16, y + 4, stream)

    def middle(self, stream):
        return self.top + 36 + LANE * self.streams.index(stream)

    def text(self, x, y, words, kind="", anchor="start"):
        self.shapes.append(f'<text class="{kind}" x="{x}" y="{y}"'
                           f' text-anchor="{anchor}">{words}</text>')

    def box(self, stream, name, begin, end):
        y = self.middle(stream)
        self.boxes[name] = (stream, begin, end)
        self.shapes.append(
            f'<rect class="box" x="{begin}" y="{y - BOX // 2}"'
            f' width="{end - begin}" height="{BOX}" rx="4"'
            f' fill="{COLORS[stream]}"/>')
        self.text((begin + end) // 2, y + 4, name, anchor="middle")

    def edge(self, before, after):
        """Draws that the box `after` comes after the box `before`."""
        lane, _, x1 = self.boxes[before]
        other, x2, _ = self.boxes[after]
        down = 1 if self.middle(other) > self.middle(lane) else -1
        y1 = self.middle(lane) + down * BOX // 2
        y2 = self.middle(other) - down * BOX // 2
        self.shapes.append(
            f'<path class="edge" marker-end="url(#arrow)" d="M {x1 - 5} {y1}'
            f' C {x1 - 5} {y1 + down * 9} {x2 + 6} {y2 - down * 13}'
            f' {x2 + 6} {y2 - down * 2}"/>')

    def meeting(self, x, words):
        self.shapes.append(f'<line class="meeting" x1="{x}" y1="{self.top + 12}"'
                           f' x2="{x}" y2="{self.bottom}"/>')
        self.text(x, self.bottom + 14, words, "note", "middle")


def shared(top):
    """Ranks that share memory, with whole gradients."""
    panel = Panel(top, "Ranks share memory", ["host", "compute"], WIDTH - 16)
    panel.box("host", "backward", LEFT, 300)
    panel.box("compute", "update 3", 330, 408)
    panel.box("compute", "update 2", 408, 486)
    panel.box("compute", "update 1", 486, 564)
    panel.box("host", "forward", 594, 744)
    panel.edge("backward", "update 3")
    panel.edge("update 1", "forward")
    panel.meeting(315, "all gradients are there")
    panel.meeting(579, "all parameters are there")
    return panel


def collectives(top):
    """Ranks that share none: units are reduced and published one by one."""
    panel = Panel(top, "They do not: collectives",
                  ["host", "communication", "compute"], WIDTH - 16)
    for i, unit in enumerate((3, 2, 1)):
        panel.box("host", f"backward {unit}", LEFT + 72 * i, LEFT + 72 * (i + 1))
        panel.box("communication", f"reduce {unit}", 198 + 72 * i, 254 + 72 * i)
        panel.edge(f"backward {unit}", f"reduce {unit}")
    for i, unit in enumerate((3, 2, 1)):
        panel.box("compute", f"update {unit}", 360 + 58 * i, 414 + 58 * i)
        panel.box("communication", f"gather {unit}", 424 + 58 * i, 478 + 58 * i)
        panel.edge(f"reduce {unit}", f"update {unit}")
        panel.edge(f"update {unit}", f"gather {unit}")
    panel.box("host", "forward", 606, 744)
    panel.edge("gather 1", "forward")
    panel.meeting(337, "all ranks make this step")
    return panel


def main():
    panels = [shared(24)]
    panels.append(collectives(panels[0].bottom + 48))
    height = panels[-1].bottom + 28
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}"'
          f' height="{height}" viewBox="0 0 {WIDTH} {height}">')
    print("<title>A step on streams, with shared memory and with collectives"
          "</title>")
    print("<!-- Made by draw_streams.py. -->")
    print(f"<style>\n{STYLE}\n</style>")
    print('<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4"'
          ' markerWidth="6" markerHeight="6" orient="auto">'
          '<path d="M 0 0 L 8 4 L 0 8 z" fill="#b03030"/></marker></defs>')
    print(f'<rect width="{WIDTH}" height="{height}" fill="white"/>')
    for panel in panels:
        print("\n".join(panel.shapes))
    print("</svg>")


if __name__ == "__main__":
    main()
