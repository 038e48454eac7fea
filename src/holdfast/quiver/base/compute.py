"""Arrow's functions, loaded by the first that is called.

They take 8 MB, and nothing needs them before the first segment is sealed or read. `pyarrow.compute`
makes all its functions when it is imported; here they are looked up by their names.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Return a function of `pyarrow.compute`."""
    import pyarrow.compute

    return getattr(pyarrow.compute, name)
