"""Quivers over Arrow Flight: a server beside the owner, and clients that use it like a quiver."""

from holdfast.remote.client import RemoteCursor, RemoteQuiver
from holdfast.remote.server import QuiverServer
from holdfast.remote.settings import ClientSettings, FlightSettings, FlightTls, FlightToken
from holdfast.remote.stored import StoredSegment
from holdfast.remote.wire import PlannedRange

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
