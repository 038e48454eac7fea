"""What belongs to one process, and what becomes of it in a forked child.

A fork copies memory and descriptors, but no threads. A child that used what its parent opened would
write into the parent's files, give its lock away, or wait for ever: for a thread that it does not
have, or for a lock that a thread held when the process was forked. So whatever owns such things is
*bound* to its process. In a child it becomes a stranger: the first thing every call does is to
raise `Forked`, before any lock is taken. Only letting go is still possible, and does nothing: the
end of a `with` block, `close`, and garbage collection. Descriptors that only matter to the parent
are closed in the child at once, so that files that the parent removes do not stay, and its lock
dies with it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

from holdfast.errors import Forked

# By identity: what is bound, and what its descriptors' copies in a child are closed by.
_bound: dict[int, tuple[weakref.ref[object], Callable[[], None] | None]] = {}


def bind_to_process(thing: object, let_go: Callable[[], None] | None = None) -> None:
    """Have a thing refuse all calls in a forked child.

    `let_go` is called in the child; it must not refer to the thing, take locks or raise.
    """
    key = id(thing)
    _bound[key] = weakref.ref(thing, lambda _: _bound.pop(key, None)), let_go


class _Stranger:
    """What a bound thing becomes in a forked child; a base of its new class."""

    def __getattribute__(self, name: str) -> Any:
        if name == "close" or (name.startswith("__") and name.endswith("__")):
            return object.__getattribute__(self, name)
        kind = type(self).__name__
        raise Forked(
            f"this {kind} belongs to process {_parent}, which was forked into this one",
            hint=f"open a {kind} of its own after the fork, or start workers with 'spawn'",
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of process {_parent}, which was forked>"

    def __enter__(self) -> _Stranger:
        return self

    def __exit__(self, *exception: object) -> None:
        """Let go; whatever there is to end is the parent's to end."""

    def close(self) -> None:
        """Let go; whatever there is to end is the parent's to end."""


_parent = os.getpid()
_strangers: dict[type, type] = {}


def _in_child() -> None:
    for reference, let_go in list(_bound.values()):
        thing = reference()
        if thing is not None:
            kind = type(thing)
            if kind not in _strangers:
                _strangers[kind] = type(kind.__name__, (_Stranger, kind), {})
            thing.__class__ = _strangers[kind]
        if let_go is not None:
            let_go()
    _bound.clear()


def _before_fork() -> None:
    global _parent  # noqa: PLW0603 - there is one process
    _parent = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)
