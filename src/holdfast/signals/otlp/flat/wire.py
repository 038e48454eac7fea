"""Where fields stand within messages of protobuf: many messages at a time, without a reader.

A message is a row of fields, and a field begins with a byte that says its number and how long it
is, or where its length stands. So the first fields of all messages are looked at together, then
their second ones, and so on: a request of a thousand points takes as many steps as a point has
fields. What a field holds is not looked at here, and nothing is copied; whoever wants it knows the
places (`wire_columns.py`).

Few messages with many fields each gain nothing by that, and are gone through one after the other.

`NotOtlp` says that bytes are not such as a writer of protobuf makes them. That need not mean that
they are broken (a number may be written in more bytes than it needs), so the caller has protobuf
settle it. No length is believed before it was compared with where its message ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from holdfast.signals.otlp.problem import NotOtlp

NumpyArray = npt.NDArray[Any]
# How a field's content is written, by the last three bits of its first byte.
_NUMBER, _EIGHT_BYTES, WITH_LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_WIDTHS = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}
CONTINUED = 0x80
# Field 16 to 31 begin with two bytes, the second of which is this one.
_SECOND_BYTE = 1
_TO_LENGTH = np.uint8(CONTINUED)
NUMBER_BYTES_MAX = 10
_LENGTH_BITS_MAX = 31
# Of fewer messages, one after the other is faster.
TOGETHER_MIN = 48
# Behind the last message, so that what follows a byte can be looked at together with it.
_PADDING = bytes(16)
_ONE_BYTE = np.ones(1, np.int32)


class SeveralValues(Exception):
    """A message has more than one field of which it may have only one."""


class Messages(NamedTuple):
    """Where messages are within bytes, in their order."""

    content: NumpyArray
    starts: NumpyArray
    ends: NumpyArray

    def bytes_at(self, places: NumpyArray) -> NumpyArray:
        """Return single bytes; anything for places behind the end."""
        if not len(self.content):
            return np.zeros(len(places), np.uint8)
        return self.content.take(places, mode="clip")

    def numbers_at(self, places: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
        """Return the numbers that begin there, and how many bytes they have; 0 for too many."""
        first = self.bytes_at(places)
        rows = np.flatnonzero(first >= CONTINUED)
        if not len(rows):
            return first.astype(np.int32), _ONE_BYTE
        found, sizes = first.astype(np.int64), np.ones(len(places), np.int32)
        found[rows], sizes[rows] = self._long_numbers(places[rows])
        return found, sizes

    def _long_numbers(self, places: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
        second = self.bytes_at(places + 1)
        if np.count_nonzero(second < CONTINUED) == len(second):
            # Most of them: 128 to 16,383.
            found = (self.bytes_at(places) & np.uint8(0x7F)).astype(np.int64)
            found |= second.astype(np.int64) << 7
            return found, np.full(len(places), 2, np.int32)
        found = np.zeros(len(places), np.uint64)
        sizes = np.zeros(len(places), np.int32)
        goes_on = np.ones(len(places), bool)
        for place in range(NUMBER_BYTES_MAX):
            byte = self.bytes_at(places + place)
            part = (byte & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * place)
            found |= np.where(goes_on, part, np.uint64(0))
            sizes[goes_on & (byte < CONTINUED)] = place + 1
            goes_on &= byte >= CONTINUED
            if not goes_on.any():
                break
        return found.view(np.int64), sizes

    def slices(
        self, firsts: NumpyArray, ends: NumpyArray, flags: NumpyArray | None = None
    ) -> pa.Array:
        """Return the bytes between places, which ascend; null where a flag is not set."""
        rows = len(firsts)
        # What is wanted and what is between are an Arrow column as they are, in turn.
        borders = np.empty(2 * rows, np.int32)
        borders[0::2], borders[1::2] = firsts, ends
        buffers = [None, pa.py_buffer(borders), pa.py_buffer(self.content)]
        in_turn = pa.Array.from_buffers(pa.binary(), max(0, 2 * rows - 1), buffers)
        wanted = pa.py_buffer(np.arange(0, 2 * rows, 2, dtype=np.int32))
        present = None if flags is None else bitmap(flags)
        return in_turn.take(pa.Array.from_buffers(pa.int32(), rows, [present, wanted]))

    def words_at(self, places: NumpyArray, kind: str) -> NumpyArray:
        """Return numbers of fixed width."""
        width = np.dtype(kind).itemsize
        count = max(0, len(self.content) - width + 1)
        # One that begins at each byte.
        return np.ndarray((count,), kind, buffer=self.content, strides=(1,))[places]

    def each(self) -> list[bytes]:
        """Return every message by itself."""
        whole = self.content.tobytes()
        places = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        return [whole[first:end] for first, end in places]


def bitmap(flags: NumpyArray) -> pa.Buffer | None:
    """Return the bits of an Arrow column; None if all are set."""
    return None if flags.all() else pa.py_buffer(np.packbits(flags, bitorder="little"))


def messages_of(bodies: Sequence[bytes]) -> Messages:
    """Return messages that are put behind each other."""
    borders = np.cumsum([0, *map(len, bodies)], dtype=np.int64)
    content = np.frombuffer(b"".join([*bodies, _PADDING]), np.uint8)
    return Messages(content, borders[:-1], borders[1:])


class FieldPlaces(NamedTuple):
    """Where the content of one field is, and in which message; in any order."""

    rows: NumpyArray
    firsts: NumpyArray
    ends: NumpyArray

    def in_order(self) -> FieldPlaces:
        """Return the same in the order of their places, which is that of their messages."""
        if len(self.firsts) < 2 or (self.firsts[1:] > self.firsts[:-1]).all():  # noqa: PLR2004
            return self
        # All three ascend together. A place has 31 bits: a column of texts ends there.
        both = np.sort(self.firsts << 32 | self.ends)
        rows = np.repeat(np.arange(int(self.rows.max()) + 1), np.bincount(self.rows))
        return FieldPlaces(rows, both >> 32, both & 0x7FFFFFFF)

    def inside(self, rows: NumpyArray) -> FieldPlaces:
        """Return places in messages that are themselves such rows of something."""
        return self._replace(rows=rows[self.rows])


_NONE = np.zeros(0, np.int64)
NOWHERE = FieldPlaces(_NONE, _NONE, _NONE)
# The fields that were found, by their names.
Found = dict[str, FieldPlaces]


def together(found: Sequence[FieldPlaces]) -> FieldPlaces:
    """Return places of one field in several kinds of messages."""
    if len(found) == 1:
        return found[0]
    if not found:
        return NOWHERE
    return FieldPlaces(*(np.concatenate(each) for each in zip(*found, strict=True)))


def fields_of(messages: Messages, descriptor: Descriptor) -> Found:
    """Return where the fields of all messages are; raises `NotOtlp` and `SeveralValues`.

    Fields that are not known are left out, and those that are not there.
    """
    form = _form_of(descriptor)
    parts = _walked(messages)
    if not form.never.isdisjoint(parts):
        raise NotOtlp("a list of numbers is not written as one")
    found = {form.names[tag]: together(some) for tag, some in parts.items() if tag in form.names}
    for names in form.once:
        once(together([found[name] for name in names if name in found]))
    return found


def once(places: FieldPlaces) -> None:
    """Raise `SeveralValues` if a message has a field twice."""
    if len(places.rows) and int(np.bincount(places.rows).max()) > 1:
        raise SeveralValues


class _MessageForm(NamedTuple):
    """What is known of a message: first bytes of its fields, and what it may have once only."""

    names: dict[int, str]
    never: frozenset[int]
    once: list[list[str]]


def message_in(field: FieldDescriptor) -> Descriptor:
    """Return the message that a field holds."""
    assert field.message_type is not None, f"BUG: {field.full_name} is no message"
    return field.message_type


@cache
def _form_of(descriptor: Descriptor) -> _MessageForm:
    names, never, single = {}, set(), []
    for field in descriptor.fields:
        wire = _WIRE.get(field.type, _NUMBER)
        if field.is_repeated and wire != WITH_LENGTH:
            never.add(field.number << 3 | wire)
            wire = WITH_LENGTH
            single.append([field.name])
        elif field.message_type is not None and not field.is_repeated:
            single.append([field.name])
        names[field.number << 3 | wire] = field.name
    choices = [[field.name for field in one.fields] for one in descriptor.oneofs]
    return _MessageForm(names, frozenset(never), single + [one for one in choices if len(one) > 1])


_WIRE = {
    FieldDescriptor.TYPE_DOUBLE: _EIGHT_BYTES,
    FieldDescriptor.TYPE_FIXED64: _EIGHT_BYTES,
    FieldDescriptor.TYPE_SFIXED64: _EIGHT_BYTES,
    FieldDescriptor.TYPE_FIXED32: _FOUR_BYTES,
    FieldDescriptor.TYPE_STRING: WITH_LENGTH,
    FieldDescriptor.TYPE_BYTES: WITH_LENGTH,
    FieldDescriptor.TYPE_MESSAGE: WITH_LENGTH,
}


def _tables() -> tuple[list[int], list[int], list[int]]:
    """Return by a field's first byte: what stands before its content, its size, and a mask.

    The mask is for the byte behind, which is the length of some. What no field begins with is
    larger than any message.
    """
    heads, sizes, masks = [_TOO_FAR] * 256, [0] * 256, [0] * 256
    for tag in range(1 << 3, 1 << 8):
        wire = tag & 7
        if wire == WITH_LENGTH:
            heads[tag], masks[tag] = 2, 0xFF
        elif wire == _NUMBER or wire in _WIDTHS:
            heads[tag], sizes[tag] = 1, _WIDTHS.get(wire, 1)
    return heads, sizes, masks


_TOO_FAR = 1 << 40
_HEADS, _SIZES, _MASKS = _tables()
# The same to be looked up for many fields at once.
_EACH_HEAD, _EACH_SIZE = np.array(_HEADS, np.int64), np.array(_SIZES, np.int64)
_EACH_MASK = np.array(_MASKS, np.uint8)
# Places of fields, by their first byte.
_Parts = dict[int, list[FieldPlaces]]


def _walked(messages: Messages) -> _Parts:
    content = messages.content
    parts: _Parts = {}
    rows = np.flatnonzero(messages.starts < messages.ends)
    at, ends = messages.starts[rows], messages.ends[rows]
    while len(rows) >= TOGETHER_MIN:
        tags = content.take(at)
        tag = int(tags[0])
        is_same = np.count_nonzero(tags == tag) == len(tags)
        if is_same:
            firsts, following = _steps_of_one_kind(messages, _behind_tags(content, at, tags), tag)
        else:
            firsts, following = _steps(messages, _behind_tags(content, at, tags), tags)
        ended = following >= ends
        any_ended = np.count_nonzero(ended)
        if any_ended and np.count_nonzero(following > ends):
            raise NotOtlp("a field ends behind its message")
        if is_same:
            parts.setdefault(tag, []).append(FieldPlaces(rows, firsts, following))
        else:
            for each in np.flatnonzero(np.bincount(tags)).tolist():
                some = np.flatnonzero(tags == each)
                places = FieldPlaces(rows[some], firsts[some], following[some])
                parts.setdefault(each, []).append(places)
        at = following
        if any_ended:
            some = np.flatnonzero(~ended)
            rows, at, ends = rows[some], at[some], ends[some]
    if len(rows):
        _walk_one_by_one(content, rows, at, ends, parts)
    return parts


def _behind_tags(content: NumpyArray, at: NumpyArray, tags: NumpyArray) -> NumpyArray:
    """Return the places of the last bytes of what fields begin with: the second, from field 16."""
    are_long = tags >= CONTINUED
    if not np.count_nonzero(are_long):
        return at
    at = at + are_long
    if np.count_nonzero(content.take(at[are_long]) != _SECOND_BYTE):
        raise NotOtlp("a field has a number that is not known")
    return at


def _steps_of_one_kind(
    messages: Messages, at: NumpyArray, tag: int
) -> tuple[NumpyArray, NumpyArray]:
    """Return where the content of fields begins and ends, all with the same first byte."""
    if _HEADS[tag] == _TOO_FAR:
        raise NotOtlp("a field has no number, or is a group")
    if tag & 7 in _WIDTHS:
        return at + 1, at + (1 + _SIZES[tag])
    content = messages.content
    behind = content.take(at + 1)
    long = np.count_nonzero(behind >= CONTINUED)
    if long:
        if long == len(at) and _MASKS[tag]:
            # As of items in a list: most lengths have two bytes.
            second = content.take(at + 2)
            if not np.count_nonzero(second >= CONTINUED):
                firsts = at + 3
                return firsts, firsts + (behind - _TO_LENGTH + second.astype(np.int64) * CONTINUED)
        return _long(messages, at, np.full(len(at), tag, np.uint8))
    firsts = at + _HEADS[tag]
    return firsts, firsts + behind if _MASKS[tag] else firsts + _SIZES[tag]


def _steps(messages: Messages, at: NumpyArray, tags: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
    """Return where the content of fields begins and ends."""
    behind = messages.content.take(at + 1)
    firsts = at + _EACH_HEAD.take(tags)
    following = firsts + _EACH_SIZE.take(tags) + (behind & _EACH_MASK.take(tags))
    some = np.flatnonzero((behind >= CONTINUED) & ((tags & 7 == WITH_LENGTH) | (tags & 7 == 0)))
    if len(some):
        firsts[some], following[some] = _long(messages, at[some], tags[some])
    return firsts, following


def _long(
    messages: Messages, places: NumpyArray, tags: NumpyArray
) -> tuple[NumpyArray, NumpyArray]:
    """Return where the content of fields with long numbers or lengths begins and ends."""
    found, sizes = messages.numbers_at(places + 1)
    lasts = messages.bytes_at(places + sizes)
    has_length = tags & 7 == WITH_LENGTH
    wrong = (sizes == 0) | ((sizes == NUMBER_BYTES_MAX) & (lasts > 1))
    wrong |= has_length & ((found < 0) | (found >> _LENGTH_BITS_MAX > 0))
    # What is no field at all.
    wrong |= tags < 1 << 3
    if wrong.any():
        raise NotOtlp("a length or a number is out of range")
    behind = places + 1 + sizes
    return np.where(has_length, behind, places + 1), np.where(has_length, behind + found, behind)


def _walk_one_by_one(
    content: NumpyArray, rows: NumpyArray, starts: NumpyArray, ends: NumpyArray, parts: _Parts
) -> None:
    first = int(starts[0])
    whole = content[first : int(ends[-1])].tobytes() + _PADDING
    lists: dict[int, tuple[list[int], list[int]]] = {}
    for start, end in zip((starts - first).tolist(), (ends - first).tolist(), strict=True):
        _add_fields(whole, start, end, lists)
    for tag, borders in lists.items():
        begins, stops = (np.array(one, np.int64) + first for one in borders)
        owners = rows[np.searchsorted(starts, begins, "right") - 1]
        parts.setdefault(tag, []).append(FieldPlaces(owners, begins, stops))


def _add_fields(
    whole: bytes, at: int, end: int, lists: dict[int, tuple[list[int], list[int]]]
) -> None:
    """Add where the content of each field of one message begins and ends, by its first byte."""
    last: int | None = None
    begin: Callable[[int], None]
    stop: Callable[[int], None]
    while at < end:
        tag = whole[at]
        if tag >= CONTINUED:
            at += 1
            if whole[at] != _SECOND_BYTE:
                raise NotOtlp("a field has a number that is not known")
        behind = whole[at + 1]
        if tag != last:
            last = tag
            begins, stops = lists.setdefault(tag, ([], []))
            begin, stop = begins.append, stops.append
        if behind < CONTINUED or tag & 7 in _WIDTHS:
            at += _HEADS[tag]
            begin(at)
            at += _SIZES[tag] + (behind & _MASKS[tag])
        else:
            number, following = _number(whole, at + 1, end)
            if tag & 7 == WITH_LENGTH:
                begin(following)
                at = following + number
            else:
                begin(at + 1)
                at = following if tag & 7 == _NUMBER else _TOO_FAR
        if at > end:
            raise NotOtlp("a field ends behind its message")
        stop(at)


def _number(whole: bytes, at: int, end: int) -> tuple[int, int]:
    """Return a number and where it ends."""
    found = 0
    for place in range(min(NUMBER_BYTES_MAX, end - at)):
        byte = whole[at + place]
        found |= (byte & 0x7F) << 7 * place
        if byte < CONTINUED:
            if place == NUMBER_BYTES_MAX - 1 and byte > 1:
                break
            return found, at + place + 1
    raise NotOtlp("a number is too long")
