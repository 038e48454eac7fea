"""`attributes`: adds, changes, removes and hashes attributes of telemetry.

A digest takes the place of a value that a backend must not see, and is the same each time, so that
items can still be grouped by it. Of values that can be guessed (addresses, names, numbers of a few
digits) a plain digest hides nothing: whoever tries all of them finds it again. For these there is
`hash_key`, which makes the digest one that only its owner can compute.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

from holdfast.processors.match import glob
from holdfast.processors.telemetry import TELEMETRY, items_module, with_change
from holdfast.settings import Secret, Settings
from holdfast.signals.event import Event
from holdfast.signals.otlp.kinds import OtlpKind
from holdfast.signals.signal import Takes

ACTIONS_MAX = 1000
HASH_KEY_CHARACTERS_MIN = 16
_INT_MAX = 2**63
_WILDCARDS = frozenset("*?[")

AttributeKey = Annotated[str, Field(min_length=1, max_length=512)]
AttributePlace = Literal["item", "resource", "scope", "span_event"]


class AttributeAction(Settings):
    """One thing to do with attributes of one place."""

    action: Literal["insert", "update", "delete", "hash"]
    """`insert` adds an attribute where there is none of its key, `update` changes it where there
    is one; both together set it. `delete` removes it, `hash` replaces its value by a digest."""
    key: AttributeKey
    """The key; for `delete` and `hash` a pattern, such as `http.request.header.*`."""
    value: StrictBool | StrictInt | StrictFloat | StrictStr | None = None
    """What `insert` and `update` set: a text, a number, true or false."""
    at: AttributePlace = "item"
    """Whose attributes: those of the `item` (span, data point, log record), of its `resource` or
    `scope`, or of the events of a span (`span_event`)."""
    signals: tuple[OtlpKind, ...] = ()
    """Only for these signals; empty: for all."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        sets = self.action in ("insert", "update")
        if sets != (self.value is not None):
            raise ValueError(
                f"give a value: {self.action} sets it" if sets else f"{self.action} has no value"
            )
        if isinstance(self.value, int) and not -_INT_MAX <= self.value < _INT_MAX:
            raise ValueError("the value does not fit into 64 bits")
        if self.at == "span_event" and any(kind is not OtlpKind.TRACES for kind in self.signals):
            raise ValueError("only spans have events: leave out `signals`, or use [traces]")
        return self


class Config(Settings):
    """What is done with attributes, in this order."""

    actions: tuple[AttributeAction, ...] = Field(min_length=1, max_length=ACTIONS_MAX)
    """Each is done with what those before it left."""
    hash_key: Secret | None = None
    """With it, digests are HMAC-SHA-256 under this key; without, plain SHA-256, which hides no
    value that can be guessed. At least 16 characters; another key makes other digests."""

    @model_validator(mode="after")
    def _has_a_good_key(self) -> Self:
        key = None if self.hash_key is None else self.hash_key.get_secret_value()
        if key is not None and len(key) < HASH_KEY_CHARACTERS_MIN:
            raise ValueError(f"hash_key has fewer than {HASH_KEY_CHARACTERS_MIN} characters")
        return self


# Changes the attributes of one place in place; returns whether it did.
_Edit = Callable[[Any], bool]


class Attributes:
    """Edits the attributes of requests."""

    def __init__(self, config: Config) -> None:
        digest = digest_with(config.hash_key)
        self._edits: dict[OtlpKind, list[tuple[AttributePlace, _Edit]]] = {
            kind: [
                (action.at, _edit(action, digest))
                for action in config.actions
                if (not action.signals or kind in action.signals)
                and (action.at != "span_event" or kind is OtlpKind.TRACES)
            ]
            for kind in OtlpKind
        }

    def process(self, event: Event) -> Event | None:
        """Return the event with its attributes changed; the same one if none was."""
        return with_change(event, self._edited)

    def _edited(self, payload: bytes, kind: OtlpKind) -> bytes | None:
        edits = self._edits[kind]
        if not edits:
            return None

        def change(request: Any) -> bool:
            flags = [self._do(kind, request, place, edit) for place, edit in edits]
            return any(flags)

        changed: bytes | None = items_module().changed(payload, kind, change)
        return changed

    def _do(self, kind: OtlpKind, request: Any, place: AttributePlace, edit: _Edit) -> bool:
        flags = [edit(one.attributes) for one in self._places(kind, request, place)]
        return any(flags)

    def _places(self, kind: OtlpKind, request: Any, place: AttributePlace) -> Iterator[Any]:
        seen = None
        for one in items_module().scopes(kind, request):
            if place == "scope":
                yield one.scope
            elif place == "resource":
                # Several scopes of one resource follow each other.
                if one.resource is not seen:
                    seen = one.resource
                    yield seen
            else:
                for _, items in items_module().lists_of_scope(kind, one.holder):
                    if place == "item":
                        yield from items
                    else:
                        yield from (event for span in items for event in span.events)


def _edit(action: AttributeAction, digest: Callable[[Any], str | None]) -> _Edit:
    """Return what does one action with a list of attributes."""
    if action.action == "insert":
        return lambda attributes: _insert(attributes, action)
    if action.action == "update":
        return lambda attributes: _update(attributes, action)
    is_meant = _key_test(action.key)
    if action.action == "delete":
        return lambda attributes: _delete(attributes, is_meant)
    return lambda attributes: _hash(attributes, is_meant, digest)


def _key_test(pattern: str) -> Callable[[str], bool]:
    """Return what tells the keys of a pattern; most are no patterns, and are compared as such."""
    if _WILDCARDS.isdisjoint(pattern):
        return pattern.__eq__
    compiled = glob([pattern])
    return lambda key: compiled.match(key) is not None


def _insert(attributes: Any, action: AttributeAction) -> bool:
    if any(one.key == action.key for one in attributes):
        return False
    _set(attributes.add(key=action.key).value, action.value)
    return True


def _update(attributes: Any, action: AttributeAction) -> bool:
    found = [one for one in attributes if one.key == action.key]
    for one in found:
        one.value.Clear()
        _set(one.value, action.value)
    return bool(found)


def _delete(attributes: Any, is_meant: Callable[[str], bool]) -> bool:
    places = [place for place, one in enumerate(attributes) if is_meant(one.key)]
    for place in reversed(places):
        del attributes[place]
    return bool(places)


def _hash(
    attributes: Any, is_meant: Callable[[str], bool], digest: Callable[[Any], str | None]
) -> bool:
    is_any = False
    for one in attributes:
        if is_meant(one.key) and (text := digest(one.value)) is not None:
            one.value.Clear()
            one.value.string_value = text
            is_any = True
    return is_any


def _set(target: Any, value: object) -> None:
    """Put a value of the configuration into an attribute; a bool is an int, so it comes first."""
    if isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, int):
        target.int_value = value
    elif isinstance(value, float):
        target.double_value = value
    else:
        target.string_value = value


def digest_with(key: Secret | None) -> Callable[[Any], str | None]:
    """Return what makes a digest of an attribute's value, 64 hexadecimal digits.

    Of a text its UTF-8, of bytes these, of numbers and truth values their text (`42`, `0.5`,
    `true`), of lists and maps their protobuf; None of an attribute without a value.
    """
    secret = None if key is None else key.get_secret_value().encode()

    def digest(value: Any) -> str | None:
        which = value.WhichOneof("value")
        if which is None:
            return None
        found = getattr(value, which)
        if isinstance(found, bool):
            found = "true" if found else "false"
        if isinstance(found, str | int | float):
            data = str(found).encode()
        else:
            data = (
                found if isinstance(found, bytes) else found.SerializeToString(deterministic=True)
            )
        if secret is None:
            return hashlib.sha256(data).hexdigest()
        return hmac.new(secret, data, hashlib.sha256).hexdigest()

    return digest


def takes(config: Config) -> Takes:
    """All telemetry."""
    return TELEMETRY


def make(config: Config) -> Attributes:
    """Return a processor of attributes."""
    return Attributes(config)
