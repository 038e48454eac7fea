"""Quiver: a durable buffer for Arrow batches and raw events, embeddable with pyarrow alone.

Nouns: a *bundle* is what one append makes durable, one or more record batches or raw payloads, each
in a named *slot*; its *seq* is given at accept and never used again; a *segment* is an immutable
set of consecutive bundles, stored as plain Arrow files.
"""

from holdfast.quiver.base.config import (
    AckLevel,
    AppendConfig,
    ArchiveConfig,
    Extractor,
    ItemTable,
    LedgerConfig,
    ProducerConfig,
    QuiverConfig,
    RetentionConfig,
    SegmentConfig,
    TransactionConfig,
    WalConfig,
)
from holdfast.quiver.base.envelope import ColumnExtractor, TimeFlag
from holdfast.quiver.cores import Cores
from holdfast.quiver.engine.balance import Balance
from holdfast.quiver.engine.event_times import EventTimeStatement
from holdfast.quiver.ledger.subscriber import Outcome, Position, SubscriberOptions
from holdfast.quiver.log.inbox import Intake, Receipt
from holdfast.quiver.log.transaction import Transaction
from holdfast.quiver.quiver import Quiver
from holdfast.quiver.read.archive import Archive
from holdfast.quiver.read.cursor import Cursor, Range
from holdfast.quiver.read.lease import Lease, LeasedBundle, LeaseOptions
from holdfast.quiver.segments.segment import Bundle
from holdfast.quiver.statistics import Statistics

# The name it had before; programs that import it go on working.
Delivery = LeasedBundle

__all__ = [
    "AckLevel",
    "AppendConfig",
    "Archive",
    "ArchiveConfig",
    "Balance",
    "Bundle",
    "ColumnExtractor",
    "Cores",
    "Cursor",
    "Delivery",
    "EventTimeStatement",
    "Extractor",
    "Intake",
    "ItemTable",
    "Lease",
    "LeaseOptions",
    "LeasedBundle",
    "LedgerConfig",
    "Outcome",
    "Position",
    "ProducerConfig",
    "Quiver",
    "QuiverConfig",
    "Range",
    "Receipt",
    "RetentionConfig",
    "SegmentConfig",
    "Statistics",
    "SubscriberOptions",
    "TimeFlag",
    "Transaction",
    "TransactionConfig",
    "WalConfig",
]
