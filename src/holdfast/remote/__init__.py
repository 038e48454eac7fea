"""Quivers over Arrow Flight: a server beside the owner, and clients that use it like a quiver.

Names are loaded when they are first used: whoever only reads settings needs no Flight, which is
8 MB of memory in every gateway.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = [
    "ClientSettings",
    "FlightSettings",
    "FlightTls",
    "FlightToken",
    "PlannedRange",
    "QuiverServer",
    "RemoteCursor",
    "RemoteQuiver",
    "StoredSegment",
]

if TYPE_CHECKING:
    from holdfast.remote.client import RemoteCursor, RemoteQuiver
    from holdfast.remote.server import QuiverServer
    from holdfast.remote.settings import ClientSettings, FlightSettings, FlightTls, FlightToken
    from holdfast.remote.stored import StoredSegment
    from holdfast.remote.wire import PlannedRange
else:
    _HOME = {
        **dict.fromkeys(("RemoteCursor", "RemoteQuiver"), "client"),
        "QuiverServer": "server",
        **dict.fromkeys(
            ("ClientSettings", "FlightSettings", "FlightTls", "FlightToken"), "settings"
        ),
        "StoredSegment": "stored",
        "PlannedRange": "wire",
    }

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = _HOME.get(name, "settings")
        value = getattr(import_module(f"{__name__}.{module}"), name)
        globals()[name] = value
        return value
