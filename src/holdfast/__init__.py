"""Holdfast keeps every event it accepted.

It is a durable, Arrow-native store-and-forward pipeline for telemetry and lineage events. Its
buffer, `Quiver`, is embeddable on its own: a write-ahead log, immutable Arrow segments, and one
ledger of what became of every event. Public names are loaded when they are first used, so that
`import holdfast` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = ["Quiver", "QuiverConfig", "__version__"]

if TYPE_CHECKING:
    from holdfast.quiver import Quiver, QuiverConfig
else:
    _HOME = {"Quiver": "holdfast.quiver", "QuiverConfig": "holdfast.quiver"}

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
