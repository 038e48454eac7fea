"""The recording at the head of the README: small, well-formed, and of what a terminal said."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

from scripts import recording

SVG = "{http://www.w3.org/2000/svg}"


def said(drawing: str) -> str:
    return "\n".join(
        "".join(row.itertext()) for row in ElementTree.fromstring(drawing).iter(f"{SVG}text")
    )


def test_the_drawing_ends_as_the_demo_does() -> None:
    drawing = recording.DRAWING.read_text()
    assert len(drawing.encode()) <= recording.SIZE_BYTES_MAX
    assert "Nothing accepted was lost:" in said(drawing)
    assert "<script" not in drawing


def test_what_is_redrawn_is_one_picture_each(tmp_path: Path) -> None:
    again = "\r\x1b[2K\x1b[1A\x1b[2K"
    printed = ["\x1b[?25lone <&\r\n1", f"{again}one <&\r\n2", f"{again}two\r\n3", "\r\nend\r\ndone"]
    cast = tmp_path / "demo.cast"
    lines = [{"version": 2}, *([float(at), "o", text] for at, text in enumerate(printed))]
    cast.write_text("\n".join(map(json.dumps, lines)))
    found = list(recording.frames(cast))
    assert [one.text.split() for one in found] == [
        ["one", "<&", "1"], ["one", "<&", "2"], ["two", "3"], ["end", "done"],
    ]  # fmt: skip
    assert "one <&" in said(recording.draw(found))
