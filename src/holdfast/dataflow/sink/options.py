"""What `.option(…)` of the sinks understands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from holdfast.errors import BadConfig
from holdfast.settings import Settings, SizeBytes


class SinkOptions(Settings):
    """Options of a sink: a quiver at `path`, or Parquet files in the folder `files`."""

    path: str = ""
    """The data directory of the quiver to append to."""

    files: str = ""
    """The folder for Parquet files."""

    slot: str = "events"
    """The slot of the quiver's bundles."""

    checkpoint: str = ""
    """The query's checkpoint folder; without it `checkpointLocation`."""

    quiver_config: str = ""
    """`module:name` of the QuiverConfig (or of a function that returns it) of `path`."""

    watermark: bool = False
    """State the query's watermark in the quiver, for a source with option `producers`.

    The event time of the results must not be before it: use the end of a window, less 1 ms.
    """

    staging: str = ""
    """A folder that tasks and driver share, for what is too large to be sent to the driver."""

    inline_bytes: SizeBytes = 4 * 1024 * 1024
    """What one task sends to the driver itself; more is staged."""


def parse_sink_options(options: Mapping[str, Any]) -> SinkOptions:
    """Return the options of a sink; raise `BadConfig` with everything that is wrong."""
    given = {name.lower(): value for name, value in options.items()}
    location = given.pop("checkpointlocation", "")
    given.setdefault("checkpoint", location)
    try:
        parsed = SinkOptions.model_validate(given)
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        known = ", ".join(SinkOptions.model_fields)
        raise BadConfig(
            f"nothing can be written like this: {'; '.join(wrong)}",
            hint=f"options of the sinks are {known}",
        ) from None
    if bool(parsed.path) == bool(parsed.files) or not parsed.checkpoint:
        raise BadConfig(
            "a sink needs `path` (a quiver) or `files` (a folder), and the checkpoint",
            hint="name one of the two, and checkpointLocation as an option of the same writer",
        )
    return parsed
