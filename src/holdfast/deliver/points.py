"""The named moments of a delivery at which a test or a proof ends the process.

None of them is a disk call: each lies between two effects, one outside of the process and one in
the ledger. `Seam.reached` is called with the value.
"""

from __future__ import annotations

from holdfast.seam.points import FaultPoint


class DeliveryPoint(FaultPoint):
    """One moment between two effects."""

    SENT = "deliver-sent", "the destination has answered, the outcome is not written yet"
    DEAD_LETTER_STORED = (
        "deliver-dead-letter-stored",
        "the dead letter is durable, the outcome is not written yet",
    )
    COMMITTED = "deliver-committed", "the outcome is written; a power cut may still take it back"
