"""What an exporter is given besides its configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from holdfast.seam import Seam


@dataclass(frozen=True)
class ExporterContext:
    """Where an exporter stands: its name, the outside world, and the folder of its paths."""

    # Of the destination.
    name: str
    seam: Seam
    # The folder of the configuration file; relative paths in it begin here.
    base_dir: Path
