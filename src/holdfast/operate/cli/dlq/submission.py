"""Submitting an event anew: to the running gateway over HTTP, or without one into its quiver."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from pathlib import PurePath
from typing import Any, Self

from holdfast.errors import BadInput, CannotOpen, NotAccepted, OwnerGone
from holdfast.operate.cli.dlq.place import DeadLetterTarget
from holdfast.quiver import Quiver, QuiverConfig, RetentionConfig, SegmentConfig
from holdfast.quiver.tools.inspect import require_quiver
from holdfast.receive.openlineage import Config as OpenLineageConfig
from holdfast.seam import Seam
from holdfast.signals.openlineage import OpenLineageExtractor

SLOT = "openlineage"
TIMEOUT_S = 60.0
ANSWER_BYTES_MAX = 64 * 1024
TOKEN_VARIABLE = "HOLDFAST_TOKEN"
# More than any disk: the cap of the quiver is its owner's business, not ours.
NO_CAP_BYTES = 1 << 60
NEVER_S = 24 * 3600.0


class Submitter:
    """Takes events as a gateway does. A context manager: it may hold a quiver open."""

    def __init__(self, url: str | None, directory: PurePath | None) -> None:
        self._url = url
        self._directory = directory
        self._quiver: Quiver | None = None

    @classmethod
    def to(
        cls, place: DeadLetterTarget, url: str | None, quiver: PurePath | None, receiver: str
    ) -> Submitter:
        """Return the way to a gateway: the URL given, the receiver if it runs, or its quiver."""
        if url is not None:
            if not url.startswith(("http://", "https://")):
                raise BadInput(f"{url!r} is no HTTP address", hint="write http://HOST:PORT/PATH")
            return cls(url, None)
        status = place.ask_gateway("status")
        if status is not None:
            return cls(_address(status, place, receiver), None)
        directory = quiver or place.quiver_directory(receiver)
        if directory is None:
            raise OwnerGone(
                "no gateway runs here",
                hint="name its configuration instead of the directory, or say --url or --quiver",
                path=str(place.data_dir),
            )
        return cls(None, directory)

    @property
    def target(self) -> str:
        """Where events go, for people."""
        return self._url or str(self._directory)

    def submit(self, payload: bytes) -> None:
        """Hand over one event; returns once it is on stable storage."""
        if self._url is not None:
            _post(self._url, payload)
            return
        if self._quiver is None:
            assert self._directory is not None, "BUG: nowhere to submit to"
            self._quiver = _open(self._directory)
        self._quiver.append_raw([payload], slot=SLOT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._quiver is not None:
            self._quiver.close()


def _address(status: dict[str, Any], place: DeadLetterTarget, receiver: str) -> str:
    """Return where a running gateway takes OpenLineage events: the same receiver, or any."""
    workers = status.get("workers")
    told = workers[0] if isinstance(workers, list) and workers else status
    addresses: dict[str, list[str]] = told.get("addresses") or {}
    nodes = place.graph.nodes if place.graph else {}
    for name in sorted(addresses, key=lambda name: name != receiver):
        config = nodes[name].config if name in nodes else OpenLineageConfig()
        if addresses[name] and isinstance(config, OpenLineageConfig):
            return f"{addresses[name][0]}{config.path}"
    raise BadInput(
        "the gateway has no receiver for OpenLineage events",
        hint="say --url, the address of one",
        path=str(place.data_dir),
    )


def _post(url: str, payload: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    token = os.environ.get(TOKEN_VARIABLE)
    if token:
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url, payload, headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            answer.read(ANSWER_BYTES_MAX)
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(url, error.code, error.read(ANSWER_BYTES_MAX)) from None
    except OSError as error:
        raise NotAccepted(
            f"the gateway was not reached: {getattr(error, 'reason', error)}",
            hint="is it running, and is this its address?",
            path=url,
            stored="maybe",
        ) from None


def _refused(url: str, status: int, body: bytes) -> NotAccepted | BadInput:
    try:
        told = json.loads(body)
        message, hint = str(told["message"]), str(told["hint"])
    except (ValueError, KeyError, TypeError):
        message, hint = "it did not say why", "is this the address of a Holdfast gateway?"
    if status in (401, 403):
        hint = f"put a token into the environment variable {TOKEN_VARIABLE}"
    kind = NotAccepted if status >= 500 else BadInput  # noqa: PLR2004
    return kind(f"the gateway answered {status}: {message}", hint=hint, path=url)


def _open(directory: PurePath) -> Quiver:
    """Open a quiver without its owner, to append to it and leave everything else as it is."""
    try:
        require_quiver(Seam().disk, directory)
    except CannotOpen as error:
        hint = "start the gateway once, or name its quiver with --quiver"
        raise CannotOpen(error.message, hint=hint, path=error.path) from None
    config = QuiverConfig(
        extractors={SLOT: OpenLineageExtractor()},
        segment=SegmentConfig(max_open_duration_s=NEVER_S),
        # Nothing is removed here: what may go, and when, the owner's configuration says.
        retention=RetentionConfig(
            size_cap_bytes=NO_CAP_BYTES,
            steady_state_headroom_bytes=NO_CAP_BYTES,
            orphan_ttl_s=None,
            tick_s=NEVER_S,
        ),
        control=False,
    )
    return Quiver.open(directory, config)
