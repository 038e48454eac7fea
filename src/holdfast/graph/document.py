"""A YAML file as plain data, and where each key and value of it stands.

The tree is built from the parser's events, not by a YAML library's constructors, because a
configuration needs less and more than they give:

- scalars as in YAML 1.2 (its core schema): `on`, `12:30` and `0777` are not a boolean, a number of
  seconds and an octal number;
- keys are text, and one that stands there twice is an error;
- every key and value has a line and a column, by its path, such as `("nodes", "marquez", "to", 0)`;
- whatever is wrong is a finding; nothing raises, and depth and size are bounded.

Anchors and aliases work. Tags (other than `!!str`) and merge keys do not, and say so.

`${env:NAME}`, `${env:NAME:-default}` and `${file:PATH}` are replaced in scalars. Only explicit
references are, and only in values that are parsed already: what a variable or a file holds is text,
never YAML, so it cannot add keys or change a structure. A default stands for an unset variable; one
that is set and empty stays empty. `$${` is a plain `${`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from holdfast.errors import ConfigFinding
from holdfast.settings.keys import old_names

# A certificate chain fits; anything larger is a mistake.
REFERENCED_BYTES_MAX = 1024 * 1024

_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<scheme>env|file):(?P<what>[^{}]*)(?P<end>\}?)")
_ENVIRONMENT = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>.*))?", re.DOTALL)
_BARE = re.compile(r"(?<!\$)\$\{[A-Za-z_][A-Za-z0-9_]*\}")
_PLACEHOLDER = re.compile(r"\{\{[ \w.-]*\}\}")


class BadReference(Exception):
    """A reference that cannot be replaced: what is wrong, and what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Substitution:
    """Replaces references by what an environment and a folder hold."""

    def __init__(
        self, environment: Mapping[str, str], base_dir: Path, *, keep_unknown: bool = False
    ) -> None:
        """With `keep_unknown`, text whose references are not known here stays as it is.

        Tools beside a gateway need its paths, not the secrets that only its own environment has.
        """
        self._environment = environment
        self._base_dir = base_dir
        self._keep_unknown = keep_unknown

    def apply(self, text: str) -> str:
        """Return the text with every reference replaced; raises `BadReference`."""
        if "${" not in text:
            return text
        try:
            return _REFERENCE.sub(self._replaced, text)
        except BadReference:
            if self._keep_unknown:
                return text
            raise

    def _replaced(self, found: re.Match[str]) -> str:
        if found["scheme"] is None:
            return "${"
        if not found["end"]:
            raise BadReference(
                f"the reference ${{{found['scheme']}:… has no end",
                "write ${env:NAME}, ${env:NAME:-default} or ${file:PATH}; $${ is a plain ${",
            )
        if found["scheme"] == "env":
            return self._variable(found["what"])
        return self._file(found["what"])

    def _variable(self, what: str) -> str:
        parts = _ENVIRONMENT.fullmatch(what)
        if parts is None:
            raise BadReference(
                f"{what.partition(':')[0]!r} is not the name of a variable",
                "write ${env:NAME} or ${env:NAME:-default}",
            )
        value = self._environment.get(parts["name"], parts["default"])
        if value is None:
            raise BadReference(
                f"the environment has no variable {parts['name']}",
                f"set it, or give a default: ${{env:{parts['name']}:-…}}",
            )
        return value

    def _file(self, name: str) -> str:
        path = self._base_dir / name
        try:
            if not name:
                raise FileNotFoundError("no path is given")
            with path.open("rb") as file:
                content = file.read(REFERENCED_BYTES_MAX + 1)
            text = content.decode()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise BadReference(
                f"the file {name!r} cannot be read: {reason}",
                f"relative paths begin at the folder of the configuration, {self._base_dir}",
            ) from None
        if len(content) > REFERENCED_BYTES_MAX:
            raise BadReference(
                f"the file {name!r} is over {REFERENCED_BYTES_MAX} bytes", "name a smaller one"
            )
        # Editors and `echo` end a file with a line end that nobody means.
        return text.removesuffix("\n").removesuffix("\r")


def bare_references(text: str) -> list[str]:
    """Return what looks like a reference of another tool, such as `${HOME}`: it is not replaced."""
    return _BARE.findall(text)


def whole_reference(text: str) -> bool:
    """Whether the text is one reference and nothing else, and tells no default."""
    found = _REFERENCE.fullmatch(text)
    return found is not None and bool(found["end"]) and ":-" not in text


def escaped(text: str) -> str:
    """Return a text that means `text` when references in it are replaced."""
    return text.replace("${", "$${")


FILE_BYTES_MAX = 4 * 1024 * 1024
DEPTH_MAX = 50
# Counted where they are used: an alias counts with everything below it, so few cannot become many.
NODES_MAX = 100_000

TreePath = tuple[str | int, ...]

_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"(?P<yes>true|True|TRUE)|false|False|FALSE")
# Longer ones are no number that any setting could mean.
_INT = re.compile(r"[-+]?[0-9]{1,300}")
OTHER_INT = re.compile(r"0o[0-7]{1,300}|0x[0-9a-fA-F]{1,300}")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]{1,300}(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL_FLOAT = re.compile(r"(?P<infinite>[-+]?\.(inf|Inf|INF))|\.(nan|NaN|NAN)")
_TEXT_TAGS = (None, "!", "tag:yaml.org,2002:str")


class Location(NamedTuple):
    """A place in the file; both count from 1."""

    line: int
    column: int


@dataclass
class Document:
    """What a file says, and where."""

    file: str
    value: Any = None
    keys: dict[TreePath, Location] = field(default_factory=dict)
    values: dict[TreePath, Location] = field(default_factory=dict)
    # Values that are nothing but one `${…}`, as they are written.
    references: dict[TreePath, str] = field(default_factory=dict)
    findings: list[ConfigFinding] = field(default_factory=list)
    # Keys of versions before of which there is a warning.
    old_keys: set[str] = field(default_factory=set)

    def find(
        self, place: Location, message: str, hint: str = "", *, is_warning: bool = False
    ) -> None:
        """Write down a finding."""
        found = ConfigFinding(self.file, *place, message, hint)
        self.findings.append(found._replace(severity="warning") if is_warning else found)

    @property
    def errors(self) -> int:
        """How many of the findings are errors."""
        return sum(found.severity == "error" for found in self.findings)

    def key_place(self, path: TreePath) -> Location:
        """Return where the key of a path stands, or where its value begins if it has none."""
        return self.keys.get(self._written(path)) or self.value_place(path)

    def value_place(self, path: TreePath) -> Location:
        """Return where the value of a path begins, or of the nearest one above it."""
        path = self._written(path)
        while path and path not in self.values:
            path = path[:-1]
        return self.values.get(path, Location(1, 1))

    def below(self, path: TreePath, part: str | int) -> TreePath | None:
        """Return the path of a part, which the file may have under a name of versions before."""
        names = (part, *old_names(part)) if isinstance(part, str) else (part,)
        return next(((*path, name) for name in names if (*path, name) in self.values), None)

    def _written(self, path: TreePath) -> TreePath:
        found: TreePath = ()
        for part in path:
            found = self.below(found, part) or (*found, part)
        return found


def read_document(path: Path, substitution: Substitution) -> Document:
    """Read a file; what is wrong with it is among the findings of the document."""
    document = Document(str(path))
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        document.find(
            Location(1, 1), f"the file cannot be read: {error.strerror}", "name another one"
        )
        return document
    return parse_document(content, document, substitution)


def parse_document(content: bytes, document: Document, substitution: Substitution) -> Document:
    """Fill a document from the bytes of a file."""
    if len(content) > FILE_BYTES_MAX:
        hint = "a configuration is smaller; was another file meant?"
        document.find(Location(1, 1), f"the file is over {FILE_BYTES_MAX} bytes", hint)
        return document
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        column = len(before.rpartition(b"\n")[2].decode("utf-8", "replace")) + 1
        place = Location(before.count(b"\n") + 1, column)
        document.find(place, "the file is not UTF-8", "save it as UTF-8")
        return document
    try:
        root = _Composer(text).compose()
        document.value = _YamlReader(document, substitution).value(root, ())
    except _Stop as stop:
        document.find(stop.place, stop.message, stop.hint)
    return document


def resolve(text: str) -> Any:
    """Return what a plain scalar means."""
    if _NULL.fullmatch(text):
        return None
    if (found := _BOOL.fullmatch(text)) is not None:
        return found["yes"] is not None
    if _INT.fullmatch(text):
        return int(text)
    if OTHER_INT.fullmatch(text):
        return int(text, 0)
    if FLOAT.fullmatch(text):
        return float(text)
    if (found := _SPECIAL_FLOAT.fullmatch(text)) is not None:
        return float(text.replace(".", "")) if found["infinite"] else float("nan")
    return text


# --------------------------------------------------------------------- composing


@dataclass
class _Scalar:
    place: Location
    text: str
    plain: bool
    tag: str | None


@dataclass
class _Mapping:
    place: Location
    entries: list[tuple[_YamlNode, _YamlNode]]
    tag: str | None


@dataclass
class _Sequence:
    place: Location
    items: list[_YamlNode]
    tag: str | None


_YamlNode = _Scalar | _Mapping | _Sequence


class _Stop(Exception):
    """Nothing after this can be understood."""

    def __init__(self, place: Location, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.place = place
        self.message = message
        self.hint = hint


class _Composer:
    """Builds a tree of nodes from the parser's events."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._anchors: dict[str, _YamlNode] = {}
        # A generator: errors of the parser come out of the `next` that meets them, as `_Stop` with
        # a place.
        self._events = self._parse()

    def _parse(self) -> Iterator[yaml.Event]:
        try:
            yield from yaml.parse(self._text, Loader=yaml.SafeLoader)
        except yaml.reader.ReaderError as error:
            # Found while reading ahead: its position is an index into the text.
            before = self._text[: error.position]
            place = Location(before.count("\n") + 1, len(before.rpartition("\n")[2]) + 1)
            message = f"the character U+{error.character:04X} is not allowed"
            raise _Stop(place, message, "remove it, or write it with an escape") from None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            context = f" {error.context}" if error.context else ""
            raise _Stop(_place(mark), f"not YAML: {error.problem}{context}") from None
        except (ValueError, OverflowError) as error:
            # An escape beyond Unicode, a version with too many digits.
            raise _Stop(Location(1, 1), f"not YAML: {type(error).__name__}") from None

    def compose(self) -> _YamlNode:
        """Return the root of the only document."""
        next(self._events)  # the stream begins
        begin = next(self._events)
        if isinstance(begin, yaml.StreamEndEvent):
            raise _Stop(Location(1, 1), "the file is empty", "it needs `nodes:` at least")
        root = self._node(next(self._events), 0)
        next(self._events)  # the document ends
        after = next(self._events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise _Stop(_place(after.start_mark), "a second document begins", "keep one `---`")
        return root

    def _node(self, event: yaml.Event, depth: int) -> _YamlNode:
        place = _place(event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                hint = f"write &{event.anchor} at a value that is complete before this line"
                raise _Stop(place, f"there is no anchor {event.anchor!r}", hint)
            return self._anchors[event.anchor]
        if depth > DEPTH_MAX:
            raise _Stop(place, f"nested more than {DEPTH_MAX} deep")
        node: _YamlNode
        if isinstance(event, yaml.ScalarEvent):
            node = _Scalar(place, event.value, event.style is None, event.tag)
        elif isinstance(event, yaml.MappingStartEvent):
            node = _Mapping(place, list(self._entries(depth + 1)), event.tag)
        else:
            assert isinstance(event, yaml.SequenceStartEvent), f"BUG: {event}"
            node = _Sequence(place, list(self._items(depth + 1)), event.tag)
        # After its content: an alias to something that is not complete yet is an unknown anchor,
        # so a node cannot contain itself.
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _items(self, depth: int) -> Iterator[_YamlNode]:
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            yield self._node(event, depth)

    def _entries(self, depth: int) -> Iterator[tuple[_YamlNode, _YamlNode]]:
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._node(event, depth)
            yield key, self._node(next(self._events), depth)


def _place(mark: Any) -> Location:
    return Location(1, 1) if mark is None else Location(mark.line + 1, mark.column + 1)


# ----------------------------------------------------------------------- reading


class _YamlReader:
    """Turns nodes into plain data, and writes down where everything stands."""

    def __init__(self, document: Document, substitution: Substitution) -> None:
        self._document = document
        self._substitution = substitution
        self._nodes = 0

    def value(self, node: _YamlNode, path: TreePath) -> Any:
        """Return what a node means."""
        self._nodes += 1
        if self._nodes > NODES_MAX:
            hint = "aliases count with everything below them"
            # The "billion laughs": nine lines of nested aliases are a billion values. They are
            # counted where they are expanded, before memory is used for them.
            raise _Stop(node.place, f"more than {NODES_MAX} values", hint)
        # By path, for aliases too: each use of an anchor has a path of its own, and points to the
        # anchor.
        self._document.values[path] = node.place
        if node.tag not in _TEXT_TAGS or (node.tag and not isinstance(node, _Scalar)):
            hint = "write plain values; quotes make a text"
            self._document.find(node.place, f"the tag {node.tag!r} is not supported", hint)
        if isinstance(node, _Scalar):
            return self._scalar(node, path)
        if isinstance(node, _Sequence):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.items)]
        return self._mapping(node, path)

    def _mapping(self, node: _Mapping, path: TreePath) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in node.entries:
            if not isinstance(key, _Scalar):
                self._document.find(key.place, "a key is text, not a list or a mapping")
                continue
            name = key.text
            if name == "<<" and key.plain:
                hint = "repeat the keys, or use an alias for the whole value: `key: *name`"
                self._document.find(key.place, "merge keys are not supported", hint)
                continue
            if name in found:
                first = self._document.keys[*path, name]
                message = f"duplicate key {name!r}"
                hint = f"it is already in line {first.line}"
                self._document.find(key.place, message, hint)
                continue
            self._document.keys[*path, name] = key.place
            found[name] = self.value(value, (*path, name))
        return found

    def _scalar(self, node: _Scalar, path: TreePath) -> Any:
        for placeholder in _PLACEHOLDER.findall(node.text):
            message = f"{placeholder} is a placeholder, and nothing replaces it"
            hint = "write what it stands for, or ${env:NAME} for a variable"
            self._document.find(node.place, message, hint, is_warning=True)
        if "${" not in node.text:
            # A scalar with a reference is text, whatever is put in its place: a token that happens
            # to be all digits must not become a number. Settings that want a number take it from
            # text.
            return resolve(node.text) if node.plain and not node.tag else node.text
        for bare in bare_references(node.text):
            message = f"{bare} is not replaced"
            hint = f"write ${{env:{bare[2:-1]}}} for the variable, or $${bare[1:]} for this text"
            self._document.find(node.place, message, hint, is_warning=True)
        if whole_reference(node.text):
            self._document.references[path] = node.text
        try:
            return self._substitution.apply(node.text)
        except BadReference as error:
            self._document.find(node.place, error.message, error.hint)
            return node.text
