"""A machine that keeps its numbers the other way round is refused before it touches anything."""

from __future__ import annotations

import sys

import pytest
from tests.quiver.machine import ROOT, Machine

from holdfast.errors import CannotOpen
from holdfast.quiver.base import identity
from holdfast.quiver.tools.inspect import inspect


def test_a_big_endian_machine_neither_opens_nor_inspects(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert identity.machine_order() == sys.byteorder
    monkeypatch.setattr(identity, "machine_order", lambda: "big")
    with pytest.raises(CannotOpen, match="big-endian"):
        machine.start()
    with pytest.raises(CannotOpen, match="big-endian"):
        inspect(machine.disk, ROOT)
    assert not machine.disk.exists(ROOT)
