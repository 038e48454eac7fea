"""What can be wrong with a batch, and what its sender is to be told."""

from __future__ import annotations

from enum import IntEnum


class BatchCode(IntEnum):
    """What a `BatchStatus` says; the numbers are those of gRPC."""

    OK = 0
    CANCELED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    ABORTED = 10
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class NotOtap(Exception):
    """A batch cannot be taken. The message is for the sender, without its data."""

    def __init__(
        self, reason: str, *, code: BatchCode = BatchCode.INVALID_ARGUMENT, breaks: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code
        # Whether what follows on the stream cannot be read either, because it builds on this. Then
        # the sender has to begin a new one: its tables refer to dictionaries that are not known.
        self.breaks_stream = breaks
        # Which batch it was; None if not even that could be read.
        self.batch_id: int | None = None


class StreamTooLarge(NotOtap):
    """What a stream brings is more than its reader may hold; the limit is named."""

    def __init__(self, reason: str, limit: str, limit_value: int, *, breaks: bool = False) -> None:
        # A batch that is too large by itself can be sent in parts, if it is said that it is; what
        # a stream has gathered is nothing that a smaller batch would change.
        size = "the limit is" if breaks else "too large, the limit is"
        super().__init__(
            f"{reason}; {size} {limit_value} ({limit})",
            code=BatchCode.RESOURCE_EXHAUSTED,
            breaks=breaks,
        )
        self.limit = limit
