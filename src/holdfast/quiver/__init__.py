"""Quiver: a durable buffer for Arrow batches and raw events, embeddable with pyarrow alone.

Nouns: a *bundle* is what one append makes durable, one or more record batches or raw payloads, each
in a named *slot*; its *seq* is given at accept and never used again; a *segment* is an immutable
set of consecutive bundles, stored as plain Arrow files.
"""

from holdfast.quiver.config import (
    AckLevel,
    AppendConfig,
    ProducerConfig,
    QuiverConfig,
    SegmentConfig,
    TransactionConfig,
    WalConfig,
)
from holdfast.quiver.envelope import ColumnExtractor, Extractor, TimeFlag
from holdfast.quiver.inbox import Receipt
from holdfast.quiver.quiver import Quiver
from holdfast.quiver.segment import Bundle
from holdfast.quiver.statistics import Statistics
from holdfast.quiver.transaction import Transaction

__all__ = [
    "AckLevel",
    "AppendConfig",
    "Bundle",
    "ColumnExtractor",
    "Extractor",
    "ProducerConfig",
    "Quiver",
    "QuiverConfig",
    "Receipt",
    "SegmentConfig",
    "Statistics",
    "TimeFlag",
    "Transaction",
    "TransactionConfig",
    "WalConfig",
]
