"""No test of readers leaves a thread of a dead quiver running."""

from __future__ import annotations

from tests.crash.conftest import no_thread_left_behind

__all__ = ["no_thread_left_behind"]
