"""What the crash tests append: bundles that can be recognised, and compared byte by byte, later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from holdfast.quiver import AckLevel, Quiver, Receipt, Transaction
from holdfast.quiver.base.frame import FrameKind

Rows = list[dict[str, object]]

ARROW_SLOT, RAW_SLOT, SPANS_SLOT, LINKS_SLOT = "events", "raw", "spans", "links"
ALL_SLOTS = (ARROW_SLOT, RAW_SLOT, SPANS_SLOT, LINKS_SLOT)


class Shape(StrEnum):
    """How a bundle is made."""

    ARROW = "arrow"
    RAW = "raw"
    TWO_SLOTS = "two slots"
    HEARTBEAT = "heartbeat"


_KINDS = {Shape.RAW: FrameKind.RAW, Shape.HEARTBEAT: FrameKind.CONTROL}


@dataclass(frozen=True)
class Content:
    """One bundle. The token is in every row, and no two bundles share one."""

    token: str
    shape: Shape = Shape.RAW
    size_bytes: int = 40

    @property
    def kind(self) -> FrameKind:
        return _KINDS.get(self.shape, FrameKind.ARROW)

    @property
    def filler(self) -> bytes:
        pattern = f"{self.token}.".encode()
        return (pattern * (self.size_bytes // len(pattern) + 1))[: self.size_bytes]

    def rows(self) -> dict[str, Rows]:
        """Return what a reader must find, by slot."""
        if self.shape is Shape.HEARTBEAT:
            return {}
        if self.shape is Shape.RAW:
            headers = f'{{"token": "{self.token}"}}'
            return {RAW_SLOT: [{"payload": self.filler, "headers": headers}]}
        one: Rows = [{"token": self.token, "filler": self.filler}]
        if self.shape is Shape.ARROW:
            return {ARROW_SLOT: [*one, {"token": self.token, "filler": b"second row"}]}
        return {SPANS_SLOT: one, LINKS_SLOT: [{"token": self.token, "link": 7}]}

    def batches(self) -> Mapping[str, pa.RecordBatch]:
        return {slot: pa.RecordBatch.from_pylist(rows) for slot, rows in self.rows().items()}

    def put(
        self, quiver: Quiver, level: AckLevel, producer: str | None, epoch: int | None
    ) -> Receipt:
        """Append the bundle. A heartbeat has its own producer, and the quiver's level."""
        if self.shape is Shape.HEARTBEAT:
            return quiver.heartbeat(self.token, len(self.token))
        if self.shape is Shape.RAW:
            headers = [{"token": self.token}]
            return quiver.append_raw(
                self.filler,
                slot=RAW_SLOT,
                headers=headers,
                producer=producer,
                epoch=epoch,
                level=level,
            )
        return quiver.append(self.batches(), producer=producer, epoch=epoch, level=level)

    def stage(self, transaction: Transaction) -> None:
        if self.shape is Shape.RAW:
            transaction.append_raw(self.filler, slot=RAW_SLOT, headers=[{"token": self.token}])
        else:
            transaction.append(self.batches())


def token_of(slot: str, row: Mapping[str, object]) -> str:
    """Return the token of a stored row."""
    if slot == RAW_SLOT:
        return str(row["headers"]).split('"')[3]
    return str(row["token"])


def stored_rows(quiver: Quiver, *, skip_damage: bool) -> dict[int, dict[str, Rows]]:
    """Return everything a scan finds, by seq and slot, in the order of the scan."""
    found: dict[int, dict[str, Rows]] = {}
    for slot in ALL_SLOTS:
        reader = quiver.scan(slot=slot, on_damage="skip" if skip_damage else "fail")
        for row in reader.read_all().to_pylist():
            seq, place = row["_seq"], row["_row"]
            slots = found.setdefault(seq, {})
            # Rows are counted over all slots of a bundle; those of a damaged one are missing.
            expected = sum(map(len, slots.values()))
            assert place == expected or (skip_damage and place > expected), (
                f"seq {seq} has row {place} of {slot} out of turn, or twice"
            )
            rows = slots.setdefault(slot, [])
            rows.append({name: value for name, value in row.items() if not name.startswith("_")})
    return found
