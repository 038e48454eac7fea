"""`redact`: takes secrets out of an event before a destination sees it.

Four ways, each on its own, all of them on texts and keys anywhere in the event:

    names        members whose name speaks of a secret (`"db_password": …`), pairs of a name and a
                 value (environment variables, parameters), and `password=…` inside of texts
    credentials  user and password in URIs, bearer tokens, private keys, AWS key ids
    patterns     your own RE2 expressions
    paths        whole values at places you name

A marker takes the place of a secret. It holds no character that would make a URI invalid. What is
taken for a secret and is none is a nuisance, the opposite an incident: where a text leaves it open
how far a secret reaches, more goes rather than less.

The expressions for names and credentials are Python's, and the texts are other people's, so each is
written such that it takes time in proportion to the text: repeats are possessive (`*+`, they never
give back), or are bounded, or end at a character that also ends the next try.

**Order.** Values first, then paths, then keys. What is found refers to places by their number in
one walk over the document; renaming a key would change what later paths lead to, so it comes last.

**Cost.** Most events hold no secret, and finding that out must be cheap: one search for a few
words in all texts joined together. Only texts in which one of the words occurs are looked at
closely.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, Self

import pyarrow as pa
from pydantic import AfterValidator, Field, model_validator

from holdfast.processors.document import Path, changed, document_of, places_at
from holdfast.processors.match import RegexSubstitution, checked_regex, glob
from holdfast.settings import Settings
from holdfast.signals.event import Event

# A quoted text up to its end, or to the end of everything if it has none: doubled quotes and
# escaped ones are part of it.
_QUOTED = r"""(?:'(?:[^'\\]++|\\.|'')*+'?+|"(?:[^"\\]++|\\.|"")*+"?+)"""
# Quotes that are escaped themselves: JSON inside of JSON.
_ESCAPED = r"""\\++["'][^"'\\]*+"""
_BARE = r"""[^\s,;&"'\\]++"""
_SCHEME = r"(?:(?i:bearer|basic|digest|negotiate|token)\s++)?+"

_QUOTED_VALUE = re.compile(_QUOTED, re.DOTALL)
_VALUE = re.compile(rf"{_SCHEME}(?:{_QUOTED}|{_ESCAPED}|{_BARE})", re.DOTALL)
# A name, and what stands between a name and its value.
_NAME = re.compile(
    r"""(?<![\w.\-])(?P<name>[\w.\-]++)(?P<between>[\\"']*+\s*+(?::?=>?|:)\s*+|[\\"']*+\s++)"""
)


class CredentialPattern(NamedTuple):
    """A form that credentials have."""

    # A text without this, in lower case, is not looked at.
    needs: str
    form: re.Pattern[str]
    # With {marker} for the secret.
    replacement: str


def _credential(needs: str, form: str, replacement: str = "{marker}") -> CredentialPattern:
    return CredentialPattern(needs, re.compile(form, re.DOTALL), replacement)


CREDENTIALS = (
    # User and password in a URI. A user alone is left: abfss://container@account is no secret.
    _credential("@", r"""(://)[^/?#\s"'<>@:]*+:[^/?#\s"'<>]*@""", r"\1{marker}@"),
    # But for HTTP a user alone is a token.
    _credential("@", r"""((?i:\bhttps?)://)[^/?#\s"'<>@:]++@""", r"\1{marker}@"),
    _credential(
        "jdbc:oracle", r"""((?i:\bjdbc:oracle:[a-z]{1,16}:))[^@\s"'<>]{1,512}+@""", r"\1{marker}@"
    ),
    _credential("bearer", r"((?i:\bbearer)\s++)[A-Za-z0-9._~+/=\-]{8,}+", r"\1{marker}"),
    _credential("basic", r"((?i:\bbasic)\s++)[A-Za-z0-9._~+/=\-]{8,}+", r"\1{marker}"),
    # AWS key ids.
    _credential("akia", r"\bAKIA[0-9A-Z]{16}\b"),
    _credential("asia", r"\bASIA[0-9A-Z]{16}\b"),
    _credential(
        "private key",
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,60}-----|\Z)",
    ),
    _credential("identified", rf"((?i:\bidentified\s++by)\s++){_QUOTED}", r"\1'{marker}'"),
)


def without_credentials(text: str, folded: str, marker: str) -> str:
    """Return a text with its credentials replaced; `folded` is the same in lower case."""
    for credential in CREDENTIALS:
        if credential.needs in folded:
            text = credential.form.sub(credential.replacement.replace("{marker}", marker), text)
    return text


def without_assignments(text: str, is_secret: Callable[[str], bool], marker: str) -> str:
    """Return a text in which the values behind secret names are replaced.

    Found are `name=value`, `name: value`, `name 'value'` and `--name value`. The value of any
    other name is looked through in its turn: it may be an assignment itself.
    """
    parts: list[str] = []
    done = 0
    for found in _NAME.finditer(text):
        # Inside a value that is gone already: `password='token=abc'` is one secret.
        if found.start() < done or not is_secret(found["name"].strip("-.")):
            continue
        # A name and a value with only a space between them is ordinary prose ("the password was
        # changed") unless the value is quoted, or the name is an option.
        is_loose = found["between"].isspace() and not found["name"].startswith("-")
        value = (_QUOTED_VALUE if is_loose else _VALUE).match(text, found.end())
        if value is not None:
            quote = value[0][0] if value[0][0] in "'\"" else ""
            parts += (text[done : found.end()], quote, marker, quote)
            done = value.end()
    return "".join((*parts, text[done:])) if parts else text


RULES_MAX = 200
# Keys of objects for which is remembered whether they are, or hold, a secret.
REMEMBERED_MAX = 4096
REMEMBERED_CHARACTERS_MAX = 256

DEFAULT_NAMES = (
    "*password*",
    "*passwd*",
    "*pwd",
    "*passphrase*",
    "*secret*",
    "*token",
    "*api_key*",
    "*api-key*",
    "*apikey*",
    "*access_key*",
    "*access-key*",
    "*accesskey*",
    "*account_key*",
    "*private_key*",
    "*credential*",
    "authorization",
)

NamePattern = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[A-Za-z0-9_.*?\-]+$")]
Expression = Annotated[str, Field(min_length=1, max_length=4096), AfterValidator(checked_regex)]
JsonPointer = Annotated[str, Field(pattern=r"^(/[^/]+)+$", max_length=1024)]


class ValuePattern(Settings):
    """Something to look for in all texts, and what takes its place."""

    regex: Expression
    """An RE2 expression (no look-around, no back-references)."""
    replacement: str | None = Field(default=None, max_length=256)
    """The marker by default; `\\1` is the first group of the expression."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        RegexSubstitution(self.regex, self.replacement or "")
        return self


class Config(Settings):
    """What a destination must not see."""

    names: tuple[NamePattern, ...] = Field(default=DEFAULT_NAMES, max_length=RULES_MAX)
    """Globs, without case, for names of secrets. Texts and numbers under such a name go; so does
    the `value` beside such a `name` or `key`."""
    assignments: bool = True
    """Also look for `name=value`, `name: value`, `name 'value'` and `--name value` inside of texts,
    such as SQL, options and query strings."""
    credentials: bool = True
    """Look for user and password in URIs, bearer tokens, private keys, AWS key ids and
    `IDENTIFIED BY '…'`."""
    patterns: tuple[ValuePattern, ...] = Field(default=(), max_length=RULES_MAX)
    """Your own."""
    paths: tuple[JsonPointer, ...] = Field(default=(), max_length=RULES_MAX)
    """JSON pointers to values that go as a whole, such as `/job/facets/sql/query`; `*` is every
    member or item: `/inputs/*/facets/dataSource/uri`."""
    marker: str = Field(default="REDACTED", pattern=r"^[A-Za-z0-9_.\-]{1,64}$")
    """What takes the place of a secret."""


class Redact:
    """Replaces secrets by a marker."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._marker = config.marker
        self._paths: list[Path] = [_steps(pointer) for pointer in config.paths]
        self._names = glob(config.names, re.IGNORECASE) if config.names else None
        self._patterns = [
            RegexSubstitution(
                one.regex, config.marker if one.replacement is None else one.replacement
            )
            for one in config.patterns
        ]
        # A text without any of these, in lower case, holds nothing that Holdfast itself knows.
        self._words = _words(config)
        self._is_known_secret = lru_cache(REMEMBERED_MAX)(self._look_at_name)
        self._clean_keys: dict[str, str] = {}

    def process(self, event: Event) -> Event | None:
        """Return the event without secrets; the same one if it has none.

        None if it has some and cannot be written again: then nobody sees it.
        """
        document = document_of(event)
        if document is None:
            return event
        # On the shared document, which is not changed; the copy below is made only if there is
        # something to change, and walked in the same order, so that the numbers mean the same
        # places.
        values, keys = self._findings(document)
        at_paths = any(
            container[step] != self._marker
            for path in self._paths
            for container, step in places_at(document, path)
        )
        if not values and not keys and not at_paths:
            return event

        def redact(copy: dict[str, Any]) -> None:
            places = list(_places(copy, self._is_secret))
            for number, value in values.items():
                places[number].container[places[number].step] = value
            for path in self._paths:
                for container, step in places_at(copy, path):
                    container[step] = self._marker
            # Last: a path is written with the keys as they were.
            _rename([(places[number], key) for number, key in keys.items()])

        return changed(event, redact)

    def _findings(self, document: dict[str, Any]) -> tuple[dict[int, str], dict[int, str]]:
        """Return new values and new keys by the number of their place."""
        values: dict[int, str] = {}
        keys: dict[int, str] = {}
        # Texts and keys that are looked at together, and the numbers of their places.
        texts: list[str] = []
        numbers: list[int] = []
        unknown: dict[int, str] = {}
        for number, place in enumerate(_places(document, self._is_secret)):
            if place.secret:
                if place.value != self._marker:
                    values[number] = self._marker
            elif isinstance(place.value, str):
                texts.append(place.value)
                numbers.append(number)
            if isinstance(place.step, str):
                clean_key = self._clean_keys.get(place.step)
                if clean_key is None:
                    unknown[number] = place.step
                elif clean_key != place.step:
                    keys[number] = clean_key
        for index, text in self._clean(texts).items():
            values[numbers[index]] = text
        if unknown:
            keys |= self._new_keys(unknown)
        return values, keys

    def _new_keys(self, unknown: dict[int, str]) -> dict[int, str]:
        """Return the keys that change, by number, and remember those that come often."""
        different = list(dict.fromkeys(unknown.values()))
        clean = dict(zip(different, different, strict=True))
        clean |= {different[index]: text for index, text in self._clean(different).items()}
        short = [key for key in different if len(key) <= REMEMBERED_CHARACTERS_MAX]
        # Emptied as a whole, since a producer with generated keys would otherwise fill it for
        # good, and keeping an order would cost more than forgetting.
        if len(self._clean_keys) + len(short) > REMEMBERED_MAX:
            self._clean_keys.clear()  # what comes often is soon here again
        if len(short) <= REMEMBERED_MAX:
            self._clean_keys |= {key: clean[key] for key in short}
        return {number: clean[key] for number, key in unknown.items() if clean[key] != key}

    # -------------------------------------------------------------------- texts

    def _clean(self, texts: list[str]) -> dict[int, str]:
        """Return the texts that change, by index."""
        clean = {}
        # Most events hold nothing at all: one look at all texts together tells.
        if self._may_hold_one("\0".join(texts).casefold()):
            for index, text in enumerate(texts):
                cleaned = self._clean_text(text)
                if cleaned != text:
                    clean[index] = cleaned
        if self._patterns and texts:
            before = [clean.get(index, text) for index, text in enumerate(texts)]
            after = pa.array(before, pa.large_string())
            for pattern in self._patterns:
                after = pattern.apply_all(after)
            texts_after = enumerate(after.to_pylist())
            clean |= {index: text for index, text in texts_after if text != before[index]}
        return clean

    def _may_hold_one(self, folded: str) -> bool:
        return any(word in folded for word in self._words)

    def _clean_text(self, text: str) -> str:
        """Return a text without what Holdfast itself knows of secrets."""
        folded = text.casefold()
        if not self._may_hold_one(folded):
            return text
        if self._config.credentials:
            text = without_credentials(text, folded, self._marker)
        if self._config.assignments:
            text = without_assignments(text, self._is_secret, self._marker)
        return text

    # -------------------------------------------------------------------- names

    def _is_secret(self, name: object) -> bool:
        """Whether a name speaks of a secret."""
        if not isinstance(name, str) or self._names is None:
            return False
        known = len(name) <= REMEMBERED_CHARACTERS_MAX
        return self._is_known_secret(name) if known else self._look_at_name(name)

    def _look_at_name(self, name: str) -> bool:
        return self._names is not None and self._names.match(name) is not None


def _words(config: Config) -> frozenset[str]:
    words: set[str] = set()
    if config.credentials:
        words |= {credential.needs for credential in CREDENTIALS}
    if config.assignments:
        # The longest part of a glob without a star is in every name that it fits.
        # A glob that is nothing but stars yields the empty word, which every text holds: slower,
        # never blind.
        words |= {max(re.split(r"[*?]+", name.casefold()), key=len) for name in config.names}
    return frozenset(words)


def _steps(pointer: str) -> Path:
    return tuple(s.replace("~1", "/").replace("~0", "~") for s in pointer[1:].split("/"))


class _JsonMember:
    """One member of an object or item of an array."""

    __slots__ = ("container", "secret", "step", "value")

    def __init__(self, container: Any, step: str | int, value: Any, secret: bool) -> None:
        self.container = container
        self.step = step
        self.value = value
        # It goes as a whole, because of a name.
        self.secret = secret


def _places(document: dict[str, Any], is_secret: Callable[[object], bool]) -> Iterator[_JsonMember]:
    """Yield every place in a document, in an order that depends on nothing but its shape.

    Not recursive: how deeply it is nested is its producer's choice.
    """
    # What is still to be looked into, and whether the name above it speaks of a secret.
    stack: list[tuple[Any, bool]] = [(document, False)]
    while stack:
        container, below_secret = stack.pop()
        is_pair = False
        if isinstance(container, dict):
            is_pair = is_secret(container.get("name")) or is_secret(container.get("key"))
            members = iter(container.items())
        else:
            members = enumerate(container)
        for step, value in members:
            named = below_secret or (is_pair and step == "value") or is_secret(step)
            yield _JsonMember(container, step, value, named and _is_scalar(value))
            if isinstance(value, dict):
                # A column may be called `password`: what describes it is no secret.
                stack.append((value, False))
            elif isinstance(value, list):
                stack.append((value, named))


def _is_scalar(value: object) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _rename(renamed: list[tuple[_JsonMember, str]]) -> None:
    """Give members new keys; the order of an object's members stays."""
    objects: dict[int, tuple[dict[str, Any], dict[Any, str]]] = {}
    for place, key in renamed:
        _, new_keys = objects.setdefault(id(place.container), (place.container, {}))
        new_keys[place.step] = key
    for container, new_keys in objects.values():
        members = list(container.items())
        container.clear()
        taken: Counter[str] = Counter()
        for key, value in members:
            container[_free(new_keys.get(key, key), container, taken)] = value


def _free(key: str, container: dict[str, Any], taken: Counter[str]) -> str:
    """Return a key that is not taken yet: two secrets may have the same marker."""
    free = key
    while free in container:
        # Counted, so that very many of them do not try all numbers again.
        taken[key] += 1
        free = f"{key}.{taken[key] + 1}"
    return free


def make(config: Config) -> Redact:
    """Return a processor that redacts."""
    return Redact(config)
