"""Transactions: many bundles, all or none.

Staged bundles wait in memory and are written as one group at commit, so that their seqs follow each
other and no reader sees half of them. Staging has a budget over all transactions, and a lease: a
transaction that is not touched for that long is dropped, and its next call raises.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from holdfast.errors import BadInput, Overloaded, TransactionEnded
from holdfast.quiver.base.bundle import (
    DEFAULT_SLOT,
    BundleData,
    Encoded,
    Headers,
    Payloads,
    encode_arrow,
    encode_raw,
)
from holdfast.quiver.base.config import TransactionConfig
from holdfast.quiver.log.inbox import Receipt
from holdfast.seam.clock import Clock
from holdfast.seam.process import bind_to_process


class OpenTransactions:
    """The budget and the leases of all open transactions."""

    def __init__(self, config: TransactionConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[Transaction, float] = {}
        self._staged_bytes = 0

    @property
    def staged_bytes(self) -> int:
        """Bytes staged by all open transactions."""
        return self._staged_bytes

    def begin(self, transaction: Transaction) -> None:
        """Start a lease."""
        with self._lock:
            self._sweep()
            self._open[transaction] = self._clock.monotonic_s() + self._config.lease_s

    def stage(self, transaction: Transaction, bundle: Encoded) -> None:
        """Take one more bundle, and renew the lease."""
        size_bytes = bundle.size_bytes
        with self._lock:
            self._sweep()
            self._require_open(transaction)
            if self._staged_bytes + size_bytes > self._config.max_staged_bytes:
                raise Overloaded(
                    f"open transactions stage {self._staged_bytes} bytes, the bound is "
                    f"{self._config.max_staged_bytes} (transactions.max_staged_bytes)",
                    hint="commit or abort some, or make transactions smaller",
                    retry_after_s=1.0,
                )
            self._staged_bytes += size_bytes
            transaction.staged_bytes += size_bytes
            transaction.bundles.append(bundle)
            self._open[transaction] = self._clock.monotonic_s() + self._config.lease_s

    def end(self, transaction: Transaction) -> list[Encoded]:
        """Give the room back, and the bundles out; raises if the transaction is not open."""
        with self._lock:
            self._sweep()
            self._require_open(transaction)
            return self._release(transaction)

    def _require_open(self, transaction: Transaction) -> None:
        if transaction not in self._open:
            raise TransactionEnded(
                "the transaction is no longer open",
                hint="it was committed, aborted, or untouched for transactions.lease_s; "
                "begin a new one",
            )

    def _sweep(self) -> None:
        """There is no timer: a transaction left behind holds memory only against others, so it is
        enough to look when one of them wants some.
        """
        now_s = self._clock.monotonic_s()
        for transaction in [t for t, until_s in self._open.items() if until_s < now_s]:
            self._release(transaction)

    def _release(self, transaction: Transaction) -> list[Encoded]:
        del self._open[transaction]
        self._staged_bytes -= transaction.staged_bytes
        transaction.staged_bytes = 0
        bundles, transaction.bundles = transaction.bundles, []
        return bundles


class Transaction:
    """Bundles that become durable together. Use as a context manager, or commit yourself."""

    def __init__(
        self,
        staging: OpenTransactions,
        max_bundle_bytes: int,
        write: Callable[[list[Encoded]], Receipt],
    ) -> None:
        self.bundles: list[Encoded] = []
        self.staged_bytes = 0
        # Set by commit.
        self.receipt: Receipt | None = None
        # By its owner: then the end of a `with` block has nothing more to do.
        self._ended = False
        self._staging = staging
        self._max_bundle_bytes = max_bundle_bytes
        self._write = write
        bind_to_process(self)
        staging.begin(self)

    def append(self, data: BundleData) -> None:
        """Stage one bundle of record batches."""
        self._stage(encode_arrow(data, self._max_bundle_bytes))

    def append_raw(
        self,
        payloads: Payloads,
        *,
        slot: str = DEFAULT_SLOT,
        headers: Sequence[Headers | None] | None = None,
    ) -> None:
        """Stage one bundle of raw events."""
        self._stage(encode_raw(slot, payloads, headers, self._max_bundle_bytes))

    def commit(self) -> Receipt:
        """Make all staged bundles durable, in order, under consecutive seqs."""
        # The staged bytes are given back before the write: from here on they count as pending in
        # the inbox, and are not counted twice.
        bundles = self._end()
        if not bundles:
            raise BadInput("the transaction has no bundles", hint="append before committing")
        self.receipt = self._write(bundles)
        return self.receipt

    def abort(self) -> None:
        """Forget all staged bundles."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            # The block failed; that its lease lapsed as well is no news.
            with contextlib.suppress(TransactionEnded):
                self.abort()
        elif not self._ended:
            self.commit()

    def _end(self) -> list[Encoded]:
        bundles = self._staging.end(self)
        self._ended = True
        return bundles

    def _stage(self, bundle: Encoded) -> None:
        self._staging.stage(self, bundle)
