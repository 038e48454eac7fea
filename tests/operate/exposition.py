"""A strict reader of Prometheus' text format: what Prometheus forgives is an error here."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"')
_SAMPLE = re.compile(r"([^{ ]+)\{(.*)\} (\S+)")
_ESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}

Labels = tuple[tuple[str, str], ...]


class WrongExposition(Exception):
    """The text is not as it should be."""


@dataclass
class Family:
    """One metric with all its samples."""

    name: str
    help: str
    type: str = ""
    samples: dict[Labels, float] = field(default_factory=dict)


def parse(text: str) -> dict[str, Family]:
    """Return the metrics by name; raise at the first thing that is not as it should be."""
    families: dict[str, Family] = {}
    _require(text == "" or text.endswith("\n"), "the last line has no end")
    current: Family | None = None
    for line in text.splitlines():
        if line.startswith("# HELP "):
            _require(current is None or bool(current.samples), f"no samples before {line!r}")
            _, _, name, explanation = line.split(" ", 3)
            _require(_NAME.fullmatch(name) is not None, f"not a name: {name!r}")
            _require(name not in families, f"{name} is described twice, or its samples are apart")
            families[name] = current = Family(name, explanation)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            fits = current is not None and current.name == name and not current.type
            _require(fits and current is not None and not current.samples, f"misplaced: {line!r}")
            _require(kind in ("counter", "gauge"), f"not a type: {kind!r}")
            _require(name.endswith("_total") == (kind == "counter"), f"{name} is a {kind}")
            assert current is not None
            current.type = kind
        else:
            _require(current is not None and bool(current.type), f"not described: {line!r}")
            assert current is not None
            _add(current, line)
    _require(current is None or bool(current.samples), "a description without samples")
    return families


def _add(family: Family, line: str) -> None:
    match = _SAMPLE.fullmatch(line)
    _require(match is not None and match[1] == family.name, f"not a sample: {line!r}")
    assert match is not None
    labels = _labels(match[2])
    _require(len({key for key, _ in labels}) == len(labels), f"a label twice: {line!r}")
    _require(labels not in family.samples, f"the same sample twice: {line!r}")
    value = float(match[3])
    _require(family.type != "counter" or value >= 0, f"a negative counter: {line!r}")
    family.samples[labels] = value


def _labels(text: str) -> Labels:
    found: list[tuple[str, str]] = []
    position = 0
    while position < len(text):
        match = _LABEL.match(text, position)
        _require(match is not None, f"not labels: {text!r}")
        assert match is not None
        found.append((match[1], re.sub(r"\\.", lambda one: _ESCAPED[one[0]], match[2])))
        position = match.end()
        if position < len(text):
            _require(text[position] == "," and position + 1 < len(text), f"not labels: {text!r}")
            position += 1
    return tuple(found)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise WrongExposition(what)
