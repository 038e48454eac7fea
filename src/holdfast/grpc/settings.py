"""Bounds of gRPC connections: on what a peer may send, keep open, and leave unread."""

from __future__ import annotations

from pydantic import Field

from holdfast.settings import DurationS, FileSettings, SizeBytes

KB = 1024
MB = 1024 * 1024


class GrpcSettings(FileSettings):
    """Bounds of the connections of one listening port that speaks gRPC."""

    max_connections: int = Field(default=1024, ge=1)
    """Open connections; more are told to go away, and closed."""
    backlog: int = Field(default=1024, ge=1)
    """Connections that the kernel holds until they are taken."""
    max_streams: int = Field(default=128, ge=1, le=65536)
    """Calls under way at once on one connection."""
    header_timeout_s: DurationS = Field(default=10.0, gt=0)
    """From the connection, or the first byte of a call's headers, to their end; also the longest
    TLS handshake."""
    idle_timeout_s: DurationS = Field(default=300.0, gt=0)
    """How long a connection may be open without a call before it is told to go away."""
    max_age_s: DurationS = Field(default=600.0, gt=0)
    """How old a connection may become (a tenth more or less) before it is told to go away: of
    several workers, one that started late would otherwise get no connection."""
    drain_timeout_s: DurationS = Field(default=30.0, gt=0)
    """How long the calls of a connection that was told to go away may take."""
    send_timeout_s: DurationS = Field(default=30.0, gt=0)
    """How long a client may leave answers unread before it is cut off."""
    max_header_bytes: SizeBytes = Field(default=16 * KB, ge=KB, le=MB)
    """All headers of one call, as sent and unpacked."""
    max_frame_bytes: SizeBytes = Field(default=MB, ge=16 * KB, lt=16 * MB)
    """One frame of a body; fewer and larger ones cost less."""
    window_bytes: SizeBytes = Field(default=MB, ge=64 * KB, le=1024 * MB)
    """What a client may send ahead, on one call and on one connection, before it hears that what
    came so far was admitted."""
    max_control_frames_per_s: float = Field(default=100.0, gt=0)
    """Frames that bring no data (PING, SETTINGS, WINDOW_UPDATE, PRIORITY, empty ones); every call
    allows for some more of them."""
    control_frames_burst: int = Field(default=2000, ge=1)
    """How many of these may come at once."""
    max_resets_per_s: float = Field(default=50.0, gt=0)
    """Calls that a client may begin and take back."""
    resets_burst: int = Field(default=500, ge=1)
    """How many of these may come at once."""
    max_unread_bytes: SizeBytes = 64 * MB
    """How much is read (and forgotten) of calls that were refused, until one is taken again."""
