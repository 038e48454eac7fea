"""What all configuration models share: strict models, keys, sizes, durations, paths, secrets."""

from __future__ import annotations

from holdfast.settings.models import FileSettings, LocalPath, Secret, Settings
from holdfast.settings.units import DurationS, SizeBytes

__all__ = ["DurationS", "FileSettings", "LocalPath", "Secret", "Settings", "SizeBytes"]
