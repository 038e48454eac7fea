"""What one stream may make its reader hold. Each has a test that goes one step beyond it."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.quiver.base.bundle import ROWS_MAX, SLOTS_MAX

_MIB = 1024 * 1024


@dataclass(frozen=True)
class StreamLimits:
    """The bounds of a stream of OTAP."""

    # What the tables of one batch have in memory once they are unpacked.
    batch_bytes_max: int = 64 * _MIB
    # What the dictionaries of a stream have in memory, all tables together.
    dictionary_bytes_max: int = 64 * _MIB
    # Rows of a batch, all tables together. Rows of zeros take hardly a byte when they are sent, and
    # what they cost is time: a million are a second of the sealer's. The ids of a batch have 16
    # bits, so that is fifteen attributes for each of the most items that it can have.
    rows_max: int = 1_000_000
    # Values of one column of a batch, with those in its lists.
    values_max: int = 4 * ROWS_MAX
    # Tables of a batch, and tables of which a stream keeps dictionaries.
    tables_max: int = SLOTS_MAX
    # Fields of a message: the payloads, and what may stand beside them.
    fields_max: int = 2 * SLOTS_MAX
    # Columns of a table, with the fields of structs, and how deeply those may be nested.
    columns_max: int = 256
    nesting_max: int = 8
    # Messages in one payload: a schema, a dictionary for each column, the rows.
    messages_max: int = 1024
    # The message that declares a schema, and the name that its sender gives it.
    schema_bytes_max: int = 256 * 1024
    schema_id_characters_max: int = 16 * 1024
    # The headers of a batch once they are unpacked.
    header_bytes_max: int = 64 * 1024
